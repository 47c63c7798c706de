//! The monitor reports commits of other processes and skips our own.

use localnet_core::Family;
use localnet_linux::nft::{Chain, Event, Monitor, Socket, Table, Transaction};

use crate::listing::nft;
use crate::namespace::isolated;
use crate::ruleset::everything;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn commits_of_other_processes_are_reported_with_their_tables() {
    isolated(|| {
        let runtime = runtime();
        let _entered = runtime.enter();
        let mut socket = Socket::open().unwrap();
        let mut monitor = Monitor::subscribe(vec![socket.port()]).unwrap();
        let mut transaction = Transaction::new();
        transaction.add_content(everything(Family::V4)).add_content(everything(Family::V6));
        socket.commit(&transaction).unwrap();

        nft(&["delete", "element", "ip", "everything", "plain", "{ 10.96.0.1 }"], "");
        nft(&["-f", "-"], "add table ip6 another\nflush chain ip6 everything output\n");
        nft(&["add", "table", "inet", "elsewhere"], "");
        let mut commits = Vec::new();
        for _ in 0..3 {
            match runtime.block_on(monitor.next()).unwrap() {
                Event::Committed(commit) => commits.push(commit),
                Event::Lost => panic!("nothing was lost"),
            }
        }
        let everything = |family| Table::new(family, "everything");
        let tables: Vec<Vec<Table>> = commits.iter().map(|commit| commit.tables.iter().cloned().collect()).collect();
        assert_eq!(tables[0], [everything(Family::V4)]);
        assert_eq!(tables[1], [Table::new(Family::V6, "another"), everything(Family::V6)]);
        assert_eq!(tables[2], []);
        assert!(
            commits.iter().all(|commit| commit.process_name.as_deref() == Some("nft") && commit.process_id.is_some())
        );
        assert_eq!(commits[2].generation, socket.generation().unwrap());
    });
}

#[test]
fn notifications_beyond_the_buffer_are_reported_as_lost() {
    isolated(|| {
        let runtime = runtime();
        let _entered = runtime.enter();
        let mut monitor = Monitor::subscribe(Vec::new()).unwrap();
        let mut socket = Socket::open().unwrap();
        let table = Table::new(Family::V4, "t");
        for round in 0..4 {
            let mut transaction = Transaction::new();
            transaction.add_table(&table);
            for number in 0..40_000 {
                let chain = Chain::new(format!("chain-{round}-{number}")).comment("x".repeat(100));
                transaction.declare_chain(&table, &chain.into());
            }
            socket.commit(&transaction).unwrap();
        }
        assert_eq!(runtime.block_on(monitor.next()).unwrap(), Event::Lost);
        // While its queue is not empty, the kernel drops further notifications without an error.
        nft(&["add", "table", "inet", "elsewhere"], "");
        match runtime.block_on(monitor.next()).unwrap() {
            Event::Committed(commit) => assert_eq!(commit.generation, socket.generation().unwrap()),
            Event::Lost => panic!("the queue was empty"),
        }
    });
}

#[test]
fn a_paused_monitor_reports_nothing() {
    isolated(|| {
        let runtime = runtime();
        let _entered = runtime.enter();
        let mut monitor = Monitor::subscribe(Vec::new()).unwrap();
        monitor.pause().unwrap();
        nft(&["add", "table", "ip", "unseen"], "");
        monitor.resume().unwrap();
        nft(&["add", "table", "ip", "seen"], "");
        match runtime.block_on(monitor.next()).unwrap() {
            Event::Committed(commit) => assert_eq!(commit.tables, [Table::new(Family::V4, "seen")].into()),
            Event::Lost => panic!("nothing was lost"),
        }
    });
}
