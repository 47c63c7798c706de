//! Tests how changes of files arrive.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        run,
        watcher::{Files, Pace, run_at},
    },
    WEB,
};
use crate::{batch::Batch, metrics::Troubles};
use localnet_cluster::objects::{Event, Kind, Object, Parsed};

/// The objects that result from events.
#[derive(Debug, Default, PartialEq)]
pub(in crate::watch::file) struct World(pub(in crate::watch::file) BTreeMap<(Kind, String, String), Object>);

impl World {
    pub(in crate::watch::file) fn fold(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Apply(object) => self.set(object),
                Event::Delete { kind, namespace, name } => {
                    let gone = self.0.remove(&(kind, namespace.to_string(), name.to_string()));
                    assert!(gone.is_some(), "{namespace}/{name} did not exist");
                }
                Event::Replace { kind, objects } => {
                    self.0.retain(|(of, ..), _| *of != kind);
                    objects.into_iter().for_each(|object| self.set(object));
                }
            }
        }
    }

    fn set(&mut self, object: Object) {
        self.0.insert((object.kind(), object.namespace().to_owned(), object.name().to_owned()), object);
    }

    /// The ClusterIPs, sorted.
    fn cluster_ips(&self) -> Vec<String> {
        let ip = |object: &Object| match object {
            Object::Service(service) => match &service.cluster_ips[0] {
                Parsed::Good(ip) => ip.to_string(),
                Parsed::Bad(text) => text.to_string(),
            },
            other => panic!("{other:?}"),
        };
        let mut ips: Vec<_> = self.0.values().map(ip).collect();
        ips.sort();
        ips
    }
}

fn files(path: &Path) -> Files {
    Files { path: path.to_owned(), node_name: Some("node-1".to_owned()), publish: None }
}

/// A source that watches a path.
struct Source {
    world: World,
    batches: mpsc::Receiver<Batch>,
    troubles: Troubles,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Source {
    fn start(path: &Path) -> Self {
        let (sender, batches) = mpsc::channel(4);
        let (stop, troubles) = (CancellationToken::new(), Troubles::default());
        let task = {
            let (stop, output) = (stop.clone(), (sender, troubles.clone()));
            tokio::spawn(run(files(path), output, stop))
        };
        Self { world: World::default(), batches, troubles, stop, task }
    }

    /// A source that checks the files without waiting for seconds.
    fn hasty(path: &Path) -> Self {
        let (sender, batches) = mpsc::channel(4);
        let (stop, troubles) = (CancellationToken::new(), Troubles::default());
        let pace = Pace { check: Duration::from_millis(20), quiet: Duration::from_millis(5) };
        let task = {
            let (stop, output) = (stop.clone(), (sender, troubles.clone()));
            tokio::spawn(run_at(pace, files(path), output, stop))
        };
        Self { world: World::default(), batches, troubles, stop, task }
    }

    /// The ClusterIPs after the next batch.
    async fn next(&mut self) -> Vec<String> {
        let batch = tokio::time::timeout(Duration::from_secs(20), self.batches.recv());
        self.world.fold(batch.await.expect("no change arrived").expect("the source has ended").events);
        self.world.cluster_ips()
    }

    /// Waits until something cannot be read, and returns the reason.
    async fn trouble(&self) -> String {
        let mut troubles = self.troubles.subscribe();
        let output = tokio::time::timeout(Duration::from_secs(20), troubles.wait_for(|all| !all.is_empty()));
        output.await.expect("no trouble was reported").unwrap()["files"].diagnostic.to_string()
    }

    /// Waits for a state with one ClusterIP. The previous state may come again before it.
    async fn until(&mut self, last: u8) {
        while self.next().await != [format!("10.96.0.{last}")] {}
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn web(last: u8) -> String {
    WEB.replace("10.96.0.10", &format!("10.96.0.{last}"))
}

#[tokio::test]
async fn a_written_or_replaced_file_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, web(1)).unwrap();
    let mut source = Source::start(&file);
    assert_eq!(source.next().await, ["10.96.0.1"]);
    fs::write(&file, web(2)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2"]);
    fs::write(folder.path().join("new"), web(3)).unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    assert_eq!(source.next().await, ["10.96.0.3"]);
    source.stop().await;
}

#[tokio::test]
async fn files_of_a_folder_can_be_added_and_deleted() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("services");
    fs::create_dir(&folder).unwrap();
    let mut source = Source::start(&folder);
    assert_eq!(source.next().await, [""; 0]);
    fs::write(folder.join("a.yaml"), web(1)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.1"]);
    fs::write(folder.join("b.yaml"), web(2).replace("name: web", "name: b")).unwrap();
    assert_eq!(source.next().await, ["10.96.0.1", "10.96.0.2"]);
    fs::remove_file(folder.join("a.yaml")).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2"]);
    // Another folder replaces the folder, and is watched from then on.
    let other = parent.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("c.yaml"), web(3)).unwrap();
    fs::rename(&folder, parent.path().join("old")).unwrap();
    fs::rename(&other, &folder).unwrap();
    assert_eq!(source.next().await, ["10.96.0.3"]);
    fs::write(folder.join("c.yaml"), web(4)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.4"]);
    source.stop().await;
}

#[tokio::test]
async fn a_file_that_appears_complete_is_read() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, outside) = (folder.path().join("a.yaml"), elsewhere.path().join("a"));
    let mut source = Source::start(folder.path());
    assert_eq!(source.next().await, [""; 0]);
    // A second name of a file that is complete.
    fs::write(&outside, web(1)).unwrap();
    fs::hard_link(&outside, &a).unwrap();
    assert_eq!(source.next().await, ["10.96.0.1"]);
    fs::remove_file(&a).unwrap();
    assert_eq!(source.next().await, [""; 0]);
    // A file that was written in another folder.
    fs::write(&outside, web(2)).unwrap();
    fs::rename(&outside, &a).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2"]);
    source.stop().await;

    let mut source = Source::start(&a);
    assert_eq!(source.next().await, ["10.96.0.2"]);
    fs::write(&outside, web(3)).unwrap();
    fs::remove_file(&a).unwrap();
    fs::hard_link(&outside, &a).unwrap();
    assert_eq!(source.next().await, ["10.96.0.3"]);
    source.stop().await;
}

#[tokio::test]
async fn a_swapped_config_map_is_read() {
    let mount = tempfile::tempdir().unwrap();
    let at = |name: &str| mount.path().join(name);
    for (version, ip) in [("..1", 1), ("..2", 2)] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("web.yaml"), web(ip)).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/web.yaml", at("web.yaml")).unwrap();
    let mut folder = Source::start(mount.path());
    let mut file = Source::start(&at("web.yaml"));
    assert_eq!((folder.next().await, file.next().await), (vec!["10.96.0.1".to_owned()], vec!["10.96.0.1".to_owned()]));
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    assert_eq!((folder.next().await, file.next().await), (vec!["10.96.0.2".to_owned()], vec!["10.96.0.2".to_owned()]));
    folder.stop().await;
    file.stop().await;
}

#[tokio::test]
async fn the_target_of_a_link_is_read() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (link, file) = (folder.path().join("link.yaml"), elsewhere.path().join("file.yaml"));
    fs::write(&file, web(1)).unwrap();
    symlink(&file, &link).unwrap();
    let mut source = Source::start(&link);
    assert_eq!(source.next().await, ["10.96.0.1"]);
    fs::write(&file, web(2)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2"]);
    source.stop().await;
}

#[tokio::test]
async fn a_deleted_and_recreated_folder_is_read_again() {
    let root = tempfile::tempdir().unwrap();
    let (top, folder) = (root.path().join("top"), root.path().join("top/middle/services"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a.yaml"), web(1)).unwrap();
    let mut source = Source::hasty(&folder);
    assert_eq!(source.next().await, ["10.96.0.1"]);
    for last in [2, 4] {
        fs::remove_dir_all(&top).unwrap();
        fs::create_dir_all(&folder).unwrap();
        fs::write(root.path().join("new"), web(last)).unwrap();
        fs::rename(root.path().join("new"), folder.join("a.yaml")).unwrap();
        source.until(last).await;
        fs::write(folder.join("a.yaml"), web(last + 1)).unwrap();
        source.until(last + 1).await;
    }
    source.stop().await;
}

#[tokio::test]
async fn a_changed_link_in_the_path_is_followed() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for last in [1, 2] {
        let folder = at(&format!("v{last}/services"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.yaml"), web(last)).unwrap();
    }
    symlink("v1", at("current")).unwrap();
    let mut source = Source::hasty(&at("current/services"));
    assert_eq!(source.next().await, ["10.96.0.1"]);
    symlink("v2", at("next")).unwrap();
    fs::rename(at("next"), at("current")).unwrap();
    source.until(2).await;
    fs::write(at("v2/services/a.yaml"), web(3)).unwrap();
    source.until(3).await;
    source.stop().await;
}

#[tokio::test]
async fn a_file_behind_a_link_of_the_folder_is_read_again() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = elsewhere.path().join("a");
    fs::write(&file, web(1)).unwrap();
    symlink(&file, folder.path().join("a.yaml")).unwrap();
    let mut source = Source::hasty(folder.path());
    assert_eq!(source.next().await, ["10.96.0.1"]);
    fs::write(&file, web(2)).unwrap();
    source.until(2).await;
    // While the path is missing, no object is removed.
    fs::remove_file(&file).unwrap();
    fs::write(elsewhere.path().join("new"), web(3)).unwrap();
    fs::rename(elsewhere.path().join("new"), &file).unwrap();
    source.until(3).await;
    source.stop().await;
}

#[tokio::test]
async fn an_unreadable_file_is_a_trouble_until_it_is_readable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, web(1)).unwrap();
    let mut source = Source::start(&file);
    assert_eq!(source.next().await, ["10.96.0.1"]);
    assert!(source.troubles.all().is_empty());
    fs::write(&file, WEB.replace("80", "x")).unwrap();
    let message = source.trouble().await;
    assert!(message.contains("web.yaml:9: Service default/web: spec.ports[0].port: is \"x\", not a"), "{message}");
    fs::write(&file, web(2)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2"]);
    assert!(source.troubles.all().is_empty());
    source.stop().await;
}

#[tokio::test]
async fn the_last_valid_state_stays_while_a_file_is_invalid() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, web(1)).unwrap();
    let mut source = Source::start(folder.path());
    assert_eq!(source.next().await, ["10.96.0.1"]);
    fs::write(&file, "kind: [").unwrap();
    fs::write(folder.path().join("b.yaml"), web(2).replace("name: web", "name: b")).unwrap();
    // Whatever was read in between, the next state that is sent is the next good one.
    fs::write(&file, web(3)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2", "10.96.0.3"]);
    source.stop().await;
}

/// A shell truncates the file before a command writes to it, and another file changes in between.
#[tokio::test]
async fn emptying_a_file_removes_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    fs::write(&a, web(1)).unwrap();
    fs::write(&b, web(2).replace("name: web", "name: b")).unwrap();
    let mut source = Source::start(folder.path());
    assert_eq!(source.next().await, ["10.96.0.1", "10.96.0.2"]);
    let writer = fs::File::create(&a).unwrap();
    fs::write(&b, web(3).replace("name: web", "name: b")).unwrap();
    assert!(source.trouble().await.contains("a.yaml: is empty, but"));
    drop(writer);
    fs::write(&a, web(4)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.3", "10.96.0.4"]);
    // Deleting the file does remove its objects.
    fs::remove_file(&a).unwrap();
    assert_eq!(source.next().await, ["10.96.0.3"]);
    source.stop().await;
}

/// Regression: a file with only a line break or a comment removed 200 Services.
#[tokio::test]
async fn a_file_without_documents_removes_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, web(1)).unwrap();
    let mut source = Source::start(&file);
    assert_eq!(source.next().await, ["10.96.0.1"]);
    for (number, nothing) in [(2, "\n"), (3, "# all gone\n"), (4, "---\n---\n")] {
        fs::write(&file, nothing).unwrap();
        let message = source.trouble().await;
        assert!(message.contains("web.yaml: is empty, but had objects before"), "{nothing:?}: {message}");
        fs::write(&file, web(number)).unwrap();
        assert_eq!(source.next().await, [format!("10.96.0.{number}")]);
    }
    // An explicit empty List removes the objects.
    fs::write(&file, "apiVersion: v1\nkind: List\nitems: []\n").unwrap();
    assert!(source.next().await.is_empty());
    source.stop().await;
}

/// Regression: unmounting a folder removed 200 Services.
#[tokio::test]
async fn an_unmounted_folder_removes_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let (full, other) = (folder.path().join("full"), tempfile::tempdir_in("/dev/shm").unwrap());
    fs::create_dir(&full).unwrap();
    fs::write(full.join("web.yaml"), web(1)).unwrap();
    let path = folder.path().join("path");
    symlink(&full, &path).unwrap();
    let mut source = Source::start(&path);
    assert_eq!(source.next().await, ["10.96.0.1"]);
    let lead = |to: &Path| {
        symlink(to, folder.path().join("new")).unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
    };
    lead(other.path());
    let message = source.trouble().await;
    assert!(
        message.contains("path: is now a different, empty file system, but had objects before; mount the old"),
        "{message}"
    );
    // A folder with files is read.
    fs::write(other.path().join("web.yaml"), web(2)).unwrap();
    assert_eq!(source.next().await, ["10.96.0.2"]);
    source.stop().await;
}

#[tokio::test]
async fn an_invalid_file_at_the_start_is_an_error_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("web.yaml"), WEB.replace("80", "x")).unwrap();
    let source = Source::start(folder.path());
    let error = source.task.await.unwrap().unwrap_err();
    let message = format!("{error:#}");
    assert!(
        message.ends_with(
            "web.yaml:9: Service default/web: spec.ports[0].port: is \"x\", not a number; write it in digits, without quotes"
        ),
        "{message}"
    );
}
