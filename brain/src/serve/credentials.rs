//! The credentials of the process at the other end of a unix socket.
//!
//! `SO_PEERCRED` has the user, the primary group and the process ID of the peer at the time when it connected.
//! `SO_PEERGROUPS` has the supplementary groups, but no crate offers it without `unsafe`, so they are read from `/proc`
//! when they are needed. By then, the peer's process may have ended, and another process may have its ID. The groups of
//! that process are accepted only if it has the peer's user and primary group: a program of the same user can do whatever
//! the peer can do.

use std::io;

use procfs::process::Process;
use tokio::net::UnixStream;

/// The credentials of a peer at the time when it connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    uid: u32,
    gid: u32,
    /// The process ID. `None` if the peer's PID namespace is not visible to this process.
    pid: Option<i32>,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().filter(|pid| *pid > 0);
        Ok(Self { uid: credentials.uid(), gid: credentials.gid(), pid })
    }

    /// The user.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Checks that the peer is one of these users, or a member of one of these groups.
    ///
    /// # Errors
    /// Returns the reason if the peer may not connect. If its supplementary groups cannot be read, the peer counts as having
    /// none, and the reason includes the error.
    pub(super) fn check(&self, uids: &[u32], gids: &[u32]) -> Result<(), String> {
        if uids.contains(&self.uid) || gids.contains(&self.gid) {
            return Ok(());
        }
        let groups = if gids.is_empty() { Ok(Vec::new()) } else { self.groups() };
        let unknown = match groups {
            Ok(groups) if groups.iter().any(|group| gids.contains(group)) => return Ok(()),
            Ok(_) => String::new(),
            Err(why) => format!(" (its supplementary groups are unknown: {why})"),
        };
        let Self { uid, gid, pid } = self;
        let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        Err(format!(
            "user {uid}, group {gid}{process} may not connect; allow it with --allow-uid {uid} or --allow-gid {gid}{unknown}"
        ))
    }

    /// The supplementary groups.
    fn groups(&self) -> Result<Vec<u32>, String> {
        let pid = self.pid.ok_or("its process is in another PID namespace")?;
        let status = Process::new(pid).and_then(|process| process.status()).map_err(|error| error.to_string())?;
        if (status.euid, status.egid) != (self.uid, self.gid) {
            return Err("another process has its ID now".to_owned());
        }
        Ok(status.groups)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// A process of user 1111 and group 2222 with the supplementary groups 3333 and 4444. It runs until its input ends.
    fn member() -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1111", "--regid", "2222", "--groups", "3333,4444"]);
        command.args(["sh", "-c", "echo ready; read -r end"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }

    #[test]
    fn only_listed_users_and_members_of_listed_groups_may_connect() {
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
            "user 1111, group 2222 (process {process}) may not connect; allow it with --allow-uid 1111 or --allow-gid 2222"
        );
        assert_eq!(refused(peer, 5), plain);
        // Another process with the same ID, or an invisible process, does not lend its groups to the peer.
        for other in [Peer { uid: 1112, ..peer }, Peer { gid: 2223, ..peer }] {
            assert!(
                refused(other, 4444).contains("(its supplementary groups are unknown: another process has its ID now)")
            );
        }
        assert!(refused(Peer { pid: None, ..peer }, 4444).ends_with("its process is in another PID namespace)"));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(refused(peer, 4444).contains(&format!("unknown: File not found: /proc/{process}")));
    }
}
