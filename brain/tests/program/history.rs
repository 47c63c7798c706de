//! A history in a file: it survives `kill -9` and a damaged end, and a full disk does not affect the brain.

use std::{fs::OpenOptions, io::Write as _};

use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::Revision;

use super::{start_with, write};

#[tokio::test]
async fn the_history_survives_kill_9_and_a_torn_end() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let history = folder.path().join("history");
    let file = format!("--history-file={}", history.display());
    let connect = || Brain::new(listen.parse().unwrap(), None).unwrap();
    let (program, mut lines) = start_with(folder.path(), &listen, &[&file]);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    write(folder.path(), &["10.0.0.2"]);
    lines.find(|line| line["fields"]["message"] == "Service changed").unwrap();
    let before = connect().history().await.unwrap();
    assert!(before.len() >= 4, "start, two changes and a state: {before:?}");
    // Kills the brain.
    drop(program);
    OpenOptions::new().append(true).open(&history).unwrap().write_all(b"torn").unwrap();
    let (_program, mut lines) = start_with(folder.path(), &listen, &[&file]);
    let cut = lines.find(|line| line["fields"]["message"].as_str().unwrap().contains("is damaged")).unwrap();
    assert_eq!((&cut["level"], &cut["fields"]["bytes"]), (&"WARN".into(), &4.into()));
    let brain = connect();
    brain.next(Revision::default(), false).await.unwrap();
    let after = brain.history().await.unwrap();
    assert_eq!(after[..before.len()], before);
    assert!(after.len() >= before.len() + 3, "start, change and state of the new brain: {after:?}");
}

#[tokio::test]
async fn a_full_disk_stops_only_the_recording() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let (_program, mut lines) = start_with(folder.path(), &listen, &["--history-file=/dev/full"]);
    // The first state and the error come in any order. A change before the first state would go unnoticed.
    let mut stopped = None;
    let mut has_state = false;
    while stopped.is_none() || !has_state {
        let line = lines.next().unwrap();
        has_state |= line["fields"]["message"] == "first complete state";
        stopped = stopped.or_else(|| (line["level"] == "ERROR").then_some(line));
    }
    let fields = &stopped.unwrap()["fields"];
    assert!(fields["message"].as_str().unwrap().starts_with("cannot record the history in this file; "), "{fields}");
    assert!(fields["error"].as_str().unwrap().contains("No space left"), "{fields}");
    write(folder.path(), &["10.0.0.2"]);
    lines.find(|line| line["fields"]["message"] == "Service changed").unwrap();
    let brain = Brain::new(listen.parse().unwrap(), None).unwrap();
    assert!(brain.history().await.unwrap().len() >= 3, "start and two changes");
}
