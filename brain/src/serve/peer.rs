//! Who is at the other end of a unix socket.
//!
//! The kernel knows user, primary group and process as they were when the peer connected (`SO_PEERCRED`). It knows the
//! other groups too (`SO_PEERGROUPS`), but no safe interface asks for them, so they are read from `/proc` when they matter.
//! By then the process may have ended, and another one may have its number: that is believed only if it has the same user
//! and primary group. A program of the same user could do whatever that process does anyway.

use std::{fmt, fs, io};

use tokio::net::UnixStream;

/// A peer, as it was when it connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    uid: u32,
    gid: u32,
    /// `None` when it is in a PID namespace that cannot be seen from here.
    pid: Option<i32>,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().filter(|pid| *pid > 0);
        Ok(Self { uid: credentials.uid(), gid: credentials.gid(), pid })
    }

    /// Whether it is one of these users, or in one of these groups.
    pub(super) fn check(&self, uids: &[u32], gids: &[u32]) -> Result<(), Refused> {
        if uids.contains(&self.uid) || gids.contains(&self.gid) {
            return Ok(());
        }
        let groups = if gids.is_empty() { Ok(Vec::new()) } else { self.groups() };
        match groups {
            Ok(groups) if groups.iter().any(|group| gids.contains(group)) => Ok(()),
            Ok(_) => Err(Refused { peer: *self, unknown: None }),
            Err(unknown) => Err(Refused { peer: *self, unknown: Some(unknown) }),
        }
    }

    /// Its groups beside the primary one.
    fn groups(&self) -> Result<Vec<u32>, String> {
        let pid = self.pid.ok_or("its process cannot be seen from here")?;
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let status = Status::parse(&status).ok_or_else(|| format!("{path}: cannot be understood"))?;
        if (status.uid, status.gid) != (self.uid, self.gid) {
            return Err("its process is another one by now".to_owned());
        }
        Ok(status.groups)
    }
}

/// What the kernel says of a process.
#[derive(Debug, PartialEq)]
struct Status {
    /// Effective, as in `SO_PEERCRED`.
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().map(|number| number.parse().ok()).collect()
        };
        // Real, effective, saved, of the file system.
        let effective = |name| numbers(name)?.get(1).copied();
        Some(Self { uid: effective("Uid")?, gid: effective("Gid")?, groups: numbers("Groups")? })
    }
}

/// Somebody who is on no list.
#[derive(Debug, thiserror::Error)]
pub(super) struct Refused {
    peer: Peer,
    /// Why its other groups are not known.
    unknown: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peer { uid, gid, pid } = self.peer;
        write!(f, "user {uid}, group {gid}")?;
        if let Some(pid) = pid {
            write!(f, " (process {pid})")?;
        }
        write!(f, " may not connect; --allow-uid {uid} or --allow-gid {gid} would let it")?;
        match &self.unknown {
            Some(why) => write!(f, " (its other groups are not known: {why})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    #[test]
    fn a_status_is_read() {
        let text =
            |groups: &str| format!("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t{groups}\n");
        let status = |groups: &[u32]| Some(Status { uid: 2, gid: 6, groups: groups.to_vec() });
        assert_eq!(Status::parse(&text("")), status(&[]));
        assert_eq!(Status::parse(&text("10 4242 ")), status(&[10, 4242]));
        for odd in ["".to_owned(), text("x"), text("1").replace("Gid", "G"), text("1").replace("\t6\t7\t8", "")] {
            assert_eq!(Status::parse(&odd), None, "{odd:?}");
        }
    }

    /// A process of user 1111 and group 2222, also in 3333 and 4444, until its input ends.
    fn member() -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1111", "--regid", "2222", "--groups", "3333,4444"]);
        command.args(["sh", "-c", "echo ready; read -r end"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }

    #[test]
    fn whoever_is_on_a_list_may_connect() {
        let mut child = member();
        let pid = i32::try_from(child.id()).ok();
        let peer = Peer { uid: 1111, gid: 2222, pid };
        let rows: [(&[u32], &[u32], bool); 8] = [
            (&[1111], &[], true),
            (&[1], &[], false),
            (&[1], &[2222], true),
            (&[], &[3333], true),
            (&[], &[1, 4444], true),
            (&[1], &[4444], true),
            (&[], &[1111, 1], false),
            (&[2222, 3333], &[1], false),
        ];
        for (uids, gids, expected) in rows {
            assert_eq!(peer.check(uids, gids).is_ok(), expected, "{uids:?} {gids:?}");
        }
        let refused = |peer: Peer, gid| peer.check(&[], &[gid]).unwrap_err().to_string();
        let process = pid.unwrap();
        let plain = format!(
            "user 1111, group 2222 (process {process}) may not connect; --allow-uid 1111 or --allow-gid 2222 would let it"
        );
        assert_eq!(refused(peer, 5), plain);
        // Another process that has the number now is not believed, nor is one that cannot be seen.
        for other in [Peer { uid: 1112, ..peer }, Peer { gid: 2223, ..peer }] {
            assert!(
                refused(other, 4444).contains("(its other groups are not known: its process is another one by now)")
            );
        }
        assert!(refused(Peer { pid: None, ..peer }, 4444).ends_with("its process cannot be seen from here)"));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(refused(peer, 4444).contains(&format!("not known: /proc/{process}/status: No such file")));
    }
}
