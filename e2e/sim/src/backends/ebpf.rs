//! The eBPF backend, on the maps in memory of its unit tests.

use std::collections::BTreeSet;

use anyhow::{anyhow, ensure};
use localnet_client::{
    Changes, Counts,
    served::{Lack, Served},
    vips::Config,
};
use localnet_ebpf::{
    EbpfBackend,
    kernel::{Change, Content, Kernel as Maps},
    layout::Socket,
    live::Pins,
    plan::{socket, socket_addr},
    testing::{FakeKernel, Sizes},
};
use localnet_linux_backend::live::Live;
use localnet_proto::{ByFamily, Family, Snapshot};
use rand::{Rng as _, rngs::StdRng};
use tokio::sync::watch;

use super::Program;
use crate::{
    flows::Node,
    kernel::{Failure, Kernel},
    subsystem::{Edit, Subsystem},
};

/// The programs and maps.
#[derive(Clone, Debug, Default)]
pub struct Ebpf(FakeKernel);

impl Program for Ebpf {
    type Backend = Live<EbpfBackend<Kernel<Self>>, Pins, Node>;

    async fn open(mut kernel: Kernel<Self>, node: Node) -> anyhow::Result<Self::Backend> {
        kernel.attach()?;
        let backend = EbpfBackend::new(Config::default(), kernel);
        Ok(Live::on(node, backend, Pins::default(), watch::Sender::<Counts>::default()).await)
    }
}

impl Subsystem for Ebpf {
    const NAME: &'static str = "ebpf";
    const LACKS: &'static [Lack] = &[Lack::Outside];
    const IS_ATOMIC: bool = false;
    const SEES_ALL_FLOWS: bool = false;
    type Notice = ();

    fn new(_: &mut StdRng) -> Self {
        Self::default()
    }

    fn after(self, state: &Snapshot) -> Self {
        let mut backend = EbpfBackend::new(Config::default(), self.0);
        _ = backend.apply(state, &Changes::everything());
        Self(backend.kernel_mut().clone())
    }

    fn served(&self) -> Served {
        if self.0.attached { self.0.content.served() } else { Served::default() }
    }

    fn entered(&self) -> ByFamily<bool> {
        ByFamily::from_fn(|_| self.0.attached)
    }

    /// Maps without names serve until the next programs are attached.
    fn is_whole(&self, _: Family) -> bool {
        !self.0.nameless
    }

    fn objects(&self, _: &Snapshot) -> Vec<String> {
        self.0.content.text().lines().map(str::to_owned).collect()
    }

    /// The maps get full, or the kernel lacks memory for elements.
    fn hate(&mut self, rng: &mut StdRng) {
        let more = rng.random_range(0..10);
        if rng.random() {
            self.0.limit = Some(self.0.applied + more);
        } else {
            let Content { vips, endpoints, members } = &self.0.content;
            let (vips, endpoints, members) = (vips.len() + more, endpoints.len() + more, members.len() + more);
            self.0.sizes = Sizes { vips, endpoints, members };
        }
    }

    fn heal(&mut self) {
        (self.0.limit, self.0.sizes) = (None, Sizes::default());
    }

    /// Deletes the pins of the programs, of the maps, or of both.
    fn edit(&mut self, rng: &mut StdRng, elsewhere: bool, _: bool) -> Edit<()> {
        if elsewhere {
            return Edit { what: "attaches programs of its own".to_owned(), damages: BTreeSet::new(), notice: None };
        }
        let (programs, maps, what) = match rng.random_range(0..3_u8) {
            0 => (true, false, "deletes the pins of the programs"),
            1 => (false, true, "deletes the pins of the maps"),
            _ => (true, true, "deletes all pins"),
        };
        self.0.delete_pins(programs, maps);
        Edit { what: what.to_owned(), damages: Family::BOTH.into(), notice: None }
    }
}

fn error(failure: Failure) -> anyhow::Error {
    match failure {
        Failure::Denied => anyhow!("not permitted"),
        Failure::Short => anyhow!("out of memory"),
        Failure::Unanswered | Failure::Unreadable => anyhow!("interrupted"),
    }
}

impl Maps for Kernel<Ebpf> {
    /// If everything is attached, this only opens the maps.
    fn attach(&mut self) -> anyhow::Result<()> {
        match self.is_attached() {
            true => Kernel::read(self, &[], error, |_| Ok(())),
            false => self.commit("programs", error, |ebpf| ebpf.0.attach()),
        }
    }

    fn is_attached(&mut self) -> bool {
        self.ask(|ebpf| ebpf.0.is_attached())
    }

    fn read(&mut self) -> anyhow::Result<Content> {
        Kernel::read(self, &Family::BOTH, error, |ebpf| ebpf.0.read())
    }

    /// The kernel applies each change for itself.
    fn apply(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        changes.iter().try_for_each(|change| {
            let what = match change {
                Change::Vip(key, vip) => format!("{} a VIP {}", verb(vip.is_some()), socket_addr(&key.to)),
                Change::Endpoints(key, group) => format!("{} the endpoints {key:?}", verb(group.is_some())),
                Change::Member(key, is_there) => {
                    format!("{} the member {}", verb(*is_there), socket_addr(&key.endpoint))
                }
            };
            self.commit(what, error, |ebpf| ebpf.0.apply(std::slice::from_ref(change)))
        })
    }

    fn end_sockets(&mut self, is_stale: &dyn Fn(&Socket, &Socket) -> bool) -> anyhow::Result<()> {
        let ended = self.flows().end(|vip, endpoint| is_stale(&socket(vip), &socket(endpoint)));
        ensure!(ended, "cannot search network namespaces");
        Ok(())
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        self.ask(|ebpf| ebpf.0.remove())
    }
}

fn verb(is_there: bool) -> &'static str {
    if is_there { "writes" } else { "deletes" }
}
