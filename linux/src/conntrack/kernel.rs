//! The kernel's conntrack table over ctnetlink: dumps flows and deletes single entries.
//!
//! This is the only file of the module that does I/O. It knows nothing of frontends.

use std::io;

use localnet_core::Family;
use netlink_sys::{Socket as Netlink, protocols::NETLINK_NETFILTER};
use rustix::io::Errno;

use super::{Counters, Flow, Selection, Status, flow::write_status_filter};
use crate::netlink::{self, Head, Message, Writer, messages};

/// `NFNL_SUBSYS_CTNETLINK`
pub(crate) const SUBSYSTEM: u16 = 1;
/// `IPCTNL_MSG_CT_GET`
const GET: u16 = 1;
/// `IPCTNL_MSG_CT_DELETE`
pub(crate) const DELETE: u16 = 2;
/// How many times a dump is repeated if the kernel marks it as inconsistent.
const ATTEMPTS: usize = 5;
/// How many deletions are sent at a time. Their answers fit into a receive buffer of the default size.
const WINDOW: usize = 64;
/// The size of the receive buffer in bytes. The kernel fills at most 32 KiB at a time.
const RECEIVE: usize = 64 << 10;

/// A conntrack table.
pub trait Conntrack {
    /// Calls `visit` for each flow of the selection, and for no other. If the table changes during the dump, a flow may appear
    /// twice.
    ///
    /// # Errors
    /// Returns an error if the table cannot be read, or changed during every attempt.
    fn dump(&mut self, selection: Selection, visit: &mut dyn FnMut(&Flow)) -> Result<(), Error>;

    /// Deletes exactly these entries and returns how many existed. Skips an entry that no longer exists, or that a flow to
    /// another endpoint has replaced.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a deletion, or if its answer is lost.
    fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error>;
}

/// Why the table could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks `CAP_NET_ADMIN`. The value is the denied action: `show`, `delete` or `follow`.
    #[error("not permitted to {0} tracked flows: CAP_NET_ADMIN is needed; run as root or grant the capability")]
    NotPermitted(&'static str),
    /// The kernel has no ctnetlink.
    #[error("the kernel has no ctnetlink: load the module nf_conntrack_netlink")]
    Unsupported,
    /// The kernel refused the request for another reason.
    #[error("the kernel refused to {action} tracked flows: {errno}")]
    Refused {
        /// The action: `show`, `delete` or `follow`.
        action: &'static str,
        /// The kernel's error.
        errno: io::Error,
    },
    /// The table changed during every attempt to read it.
    #[error("the conntrack table changed during every attempt to read it: try again later")]
    Interrupted,
    /// The kernel's answer was lost for lack of memory.
    #[error("the kernel's answer about tracked flows was lost for lack of memory: try again later")]
    Unanswered,
    /// The socket failed.
    #[error("the netlink socket of connection tracking failed: {0}")]
    Io(#[from] io::Error),
}

/// A flow of a dump with its traffic, or `None` if the kernel has written the next part of the dump.
pub type Part<'a> = Option<(&'a Flow, Option<Counters>)>;

/// The conntrack table of a network namespace. Calls block while the kernel works.
#[derive(Debug)]
pub struct Kernel {
    /// `None` after an exchange that failed, because leftover answers would disturb the next exchange.
    netlink: Option<Netlink>,
    sequence: u32,
    /// Whether requests for a dump contain a filter, so that the kernel sends only the matching flows.
    filters: bool,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Connects to the table of the calling thread's network namespace. Use it only from threads in that namespace, because it
    /// reconnects after an error.
    ///
    /// # Errors
    /// Returns an error if the kernel has no ctnetlink, or if the socket fails.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Some(connect()?), sequence: 0, filters: true, buffer: vec![0; RECEIVE] })
    }

    /// Sends a request and calls `each` for every message of the answer, until `each` returns `false`. Never
    /// waits: the kernel answers within `send`, and continues a dump within `recv`.
    fn exchange(&mut self, request: &[u8], each: impl FnMut(&Message<'_>) -> bool) -> Result<(), Error> {
        self.exchange_in_parts(request, &mut || (), each)
    }

    /// As [`Self::exchange`]. Calls `part` after the kernel has written each part of the answer, before `each`.
    fn exchange_in_parts(
        &mut self,
        request: &[u8],
        part: &mut dyn FnMut(),
        mut each: impl FnMut(&Message<'_>) -> bool,
    ) -> Result<(), Error> {
        let netlink = match self.netlink.take() {
            Some(netlink) => netlink,
            None => connect()?,
        };
        netlink::send(&netlink, request).map_err(io::Error::from)?;
        loop {
            let len = netlink::next_part(&netlink, &mut self.buffer)?.ok_or(Error::Unanswered)?;
            part();
            for message in messages(&self.buffer[..len]) {
                if !each(&message) {
                    self.netlink = Some(netlink);
                    return Ok(());
                }
            }
        }
    }

    /// Calls `visit` for every flow of a family, whatever its protocol and state. If the table changes during the dump, a flow
    /// may appear twice.
    ///
    /// # Errors
    /// Returns the errors of [`Conntrack::dump`].
    pub fn all(&mut self, family: Family, visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
        self.counted(family, &mut |flow, _| visit(flow))
    }

    /// As [`Self::all`], with the traffic of each flow if the kernel counts it (`nf_conntrack_acct`).
    ///
    /// # Errors
    /// Returns the errors of [`Conntrack::dump`].
    pub fn counted(&mut self, family: Family, visit: &mut dyn FnMut(&Flow, Option<Counters>)) -> Result<(), Error> {
        self.dump_of(family, Wanted::All, &mut || (), visit)
    }

    /// As [`Self::counted`], for the flows whose destination was translated. `visit` gets `None` after the kernel has written each
    /// part of the dump: the flows that follow existed then.
    ///
    /// # Errors
    /// Returns the errors of [`Conntrack::dump`].
    pub fn translated(&mut self, family: Family, visit: &mut dyn FnMut(Part<'_>)) -> Result<(), Error> {
        let visit = std::cell::RefCell::new(visit);
        let mut flow = |flow: &Flow, counters| (visit.borrow_mut())(Some((flow, counters)));
        self.dump_of(family, Wanted::Translated, &mut || (visit.borrow_mut())(None), &mut flow)
    }

    /// Dumps the wanted flows of a family.
    fn dump_of(
        &mut self,
        family: Family,
        wanted: Wanted,
        part: &mut dyn FnMut(),
        visit: &mut dyn FnMut(&Flow, Option<Counters>),
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            match self.dump_once(family, wanted, part, visit)? {
                Dumped::Complete => return Ok(()),
                Dumped::Interrupted => {}
                // This kernel supports filters, but not the filter of this request: read without a filter.
                Dumped::Refused(Errno::INVAL | Errno::OPNOTSUPP) if wanted != Wanted::All && self.filters => {
                    self.filters = false;
                }
                Dumped::Refused(Errno::INVAL | Errno::OPNOTSUPP) => {
                    self.filters = true;
                    return Err(Error::Unsupported);
                }
                Dumped::Refused(errno) => return Err(refused("show", errno)),
            }
        }
        Err(Error::Interrupted)
    }

    fn dump_once(
        &mut self,
        family: Family,
        wanted: Wanted,
        part: &mut dyn FnMut(),
        visit: &mut dyn FnMut(&Flow, Option<Counters>),
    ) -> Result<Dumped, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Writer::default();
        request.message(head(GET, netlink::DUMP, self.sequence, family), |writer| {
            if self.filters {
                wanted.write_filter(writer);
            }
        });
        let mut interrupted = false;
        let mut outcome = Dumped::Complete;
        self.exchange_in_parts(&request.bytes, part, |message| {
            interrupted |= message.flags & netlink::DUMP_INTERRUPTED != 0;
            match message.kind {
                netlink::DONE | netlink::ERROR => {
                    outcome = match message.error() {
                        None if interrupted => Dumped::Interrupted,
                        None => Dumped::Complete,
                        Some(Errno::INTR) => Dumped::Interrupted,
                        Some(errno) => Dumped::Refused(errno),
                    };
                    false
                }
                _ => {
                    if let Some(flow) = Flow::parse(message.attributes()).filter(|flow| wanted.admits(flow)) {
                        visit(&flow, Counters::parse(message.attributes()));
                    }
                    true
                }
            }
        })?;
        Ok(outcome)
    }
}

impl Conntrack for Kernel {
    fn dump(&mut self, selection: Selection, visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
        self.dump_of(selection.family, Wanted::Of(selection), &mut || (), &mut |flow, _| visit(flow))
    }

    fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
        let mut deleted = 0;
        for window in flows.chunks(WINDOW) {
            let mut requests = Writer::default();
            for flow in window {
                self.sequence = self.sequence.wrapping_add(1);
                let head = head(DELETE, netlink::ACK, self.sequence, flow.family());
                requests.message(head, |writer| flow.write_name(writer));
            }
            let mut unanswered = window.len();
            let mut error = None;
            self.exchange(&requests.bytes, |message| {
                if message.kind == netlink::ERROR {
                    unanswered -= 1;
                    match message.error() {
                        None => deleted += 1,
                        Some(Errno::NOENT) => {}
                        Some(errno) => error = Some(refused("delete", errno)),
                    }
                }
                unanswered > 0
            })?;
            if let Some(error) = error {
                return Err(error);
            }
        }
        Ok(deleted)
    }
}

/// The flows that a dump shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// The flows whose destination was translated.
    Translated,
    Of(Selection),
}

impl Wanted {
    fn admits(self, flow: &Flow) -> bool {
        match self {
            Self::All => true,
            Self::Translated => flow.status.has(Status::DESTINATION_NAT),
            Self::Of(selection) => selection.admits(flow),
        }
    }

    fn write_filter(self, writer: &mut Writer) {
        match self {
            Self::All => {}
            Self::Translated => write_status_filter(writer, Status::DESTINATION_NAT, Status::DESTINATION_NAT),
            Self::Of(selection) => selection.write_filter(writer),
        }
    }
}

/// The outcome of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dumped {
    Complete,
    Interrupted,
    Refused(Errno),
}

pub(crate) fn connect() -> Result<Netlink, Error> {
    netlink::connect(NETLINK_NETFILTER).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::PROTONOSUPPORT) => Error::Unsupported,
        _ => Error::Io(error),
    })
}

fn head(message: u16, flags: u16, sequence: u32, family: Family) -> Head {
    let (kind, flags) = (SUBSYSTEM << 8 | message, netlink::REQUEST | flags);
    Head { kind, flags, sequence, family: netlink::family_number(family), resource: 0 }
}

fn refused(action: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::PERM => Error::NotPermitted(action),
        errno => Error::Refused { action, errno: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::process::Command;

    use localnet_core::Protocol;

    use super::*;
    use crate::conntrack::Volume;

    const RULES: &str = "add table inet t; add chain inet t c { type filter hook output priority 0; }; \
                         add rule inet t c ct state new";

    fn run(program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }

    impl Kernel {
        /// The flows of a selection, and the number of flows that the kernel sent.
        fn selected(&mut self, selection: Selection) -> (Vec<Flow>, usize) {
            let mut flows = Vec::new();
            self.dump(selection, &mut |flow| flows.push(*flow)).unwrap();
            let mut request = Writer::default();
            request.message(head(GET, netlink::DUMP, 1, selection.family), |writer| {
                if self.filters {
                    selection.write_filter(writer);
                }
            });
            let mut sent = 0;
            self.exchange(&request.bytes, |message| {
                sent += usize::from(message.kind == SUBSYSTEM << 8);
                message.kind != netlink::DONE
            })
            .unwrap();
            (flows, sent)
        }
    }

    /// Runs `test` in a network namespace of its own with connection tracking.
    fn isolated(test: impl FnOnce() + Send + 'static) {
        let inside = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            run("ip", &["link", "set", "lo", "up"]);
            run("nft", &[RULES]);
            test();
        };
        if let Err(panic) = std::thread::spawn(inside).join() {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn the_kernel_filters_like_selection_admits() {
        isolated(|| {
            let at_v4 = UdpSocket::bind("127.0.0.1:0").unwrap();
            let at_v6 = UdpSocket::bind("[::1]:0").unwrap();
            at_v4.send_to(b"x", at_v4.local_addr().unwrap()).unwrap();
            at_v6.send_to(b"x", at_v6.local_addr().unwrap()).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let _connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();

            let mut filtering = Kernel::open().unwrap();
            let mut plain = Kernel { filters: false, ..Kernel::open().unwrap() };
            for (family, protocol, expected) in [
                (Family::V4, Protocol::Tcp, 0),
                (Family::V4, Protocol::Udp, 1),
                (Family::V4, Protocol::Sctp, 0),
                (Family::V6, Protocol::Tcp, 0),
                (Family::V6, Protocol::Udp, 1),
            ] {
                let selection = Selection { family, protocol, established: false };
                let (flows, sent) = filtering.selected(selection);
                assert_eq!((flows.len(), sent), (expected, expected), "{selection:?}");
                let all = if family == Family::V4 { 2 } else { 1 };
                assert_eq!(plain.selected(selection), (flows, all), "{selection:?}");
            }
        });
    }

    #[test]
    fn traffic_is_counted_where_accounting_is_on() {
        isolated(|| {
            let mut kernel = Kernel::open().unwrap();
            let mut counted = || {
                let mut counted = Vec::new();
                kernel.counted(Family::V4, &mut |_, counters| counted.push(counters)).unwrap();
                counted
            };
            let send = || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(b"four", socket.local_addr().unwrap()).unwrap();
            };
            std::fs::write("/proc/sys/net/netfilter/nf_conntrack_acct", "0").unwrap();
            send();
            assert_eq!(counted(), [None]);
            std::fs::write("/proc/sys/net/netfilter/nf_conntrack_acct", "1").unwrap();
            send();
            let counters: Vec<_> = counted().into_iter().flatten().collect();
            // IP and UDP headers add 28 bytes.
            let original = Volume { packets: 1, bytes: 32 };
            assert_eq!(counters, [Counters { original, reply: Volume::default() }]);
        });
    }

    #[test]
    fn a_lost_answer_is_an_error_and_does_not_disturb_later_requests() {
        isolated(|| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            for port in 1..=WINDOW as u16 {
                client.send_to(b"x", ("127.0.0.1", port)).unwrap();
            }
            let mut kernel = Kernel::open().unwrap();
            let selection = Selection { family: Family::V4, protocol: Protocol::Udp, established: false };
            let (flows, _) = kernel.selected(selection);
            assert_eq!(flows.len(), WINDOW);
            rustix::net::sockopt::set_socket_recv_buffer_size(kernel.netlink.as_ref().unwrap(), 1).unwrap();
            let lost = kernel.delete(&flows);
            assert!(matches!(lost, Err(Error::Unanswered)), "{lost:?}");
            kernel.delete(&flows).unwrap();
            assert_eq!(kernel.selected(selection), (Vec::new(), 0));
        });
    }
}
