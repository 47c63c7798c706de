//! The contract of the eBPF maps: what the backend and the simulation rely on. Each behaviour is a function, which runs on the fake
//! kernel of the unit tests and on the real one.

use std::path::Path;

use localnet_ebpf::{
    host::{Host, NAMES},
    kernel::{Change, Content, Full, Kernel},
    layout::{DROP, EXTERNAL, EndpointKey, Endpoints, INTERNAL, MemberKey, PortId, Socket, Vip, VipKey},
    plan::socket,
    testing::{FakeKernel, Sizes},
};
use localnet_lab::{Network, Sandbox, Topology};

use crate::{bpffs, tree};

/// A host: its kernel, and what other processes do.
trait Node {
    type Kernel: Kernel;

    fn kernel(&mut self) -> &mut Self::Kernel;
    /// The backend starts again.
    fn restart(&mut self);
    /// Another program deletes the pins of programs or of maps.
    fn delete_pins(&mut self, of: Pins);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pins {
    Programs,
    Maps,
}

#[derive(Default)]
struct Fake {
    kernel: FakeKernel,
}

impl Node for Fake {
    type Kernel = FakeKernel;

    fn kernel(&mut self) -> &mut FakeKernel {
        &mut self.kernel
    }

    fn restart(&mut self) {}

    fn delete_pins(&mut self, of: Pins) {
        self.kernel.delete_pins(of == Pins::Programs, of == Pins::Maps);
    }
}

struct Real {
    host: Host,
}

fn open() -> Host {
    Host::open(bpffs(), Path::new(Sandbox::CGROUP)).unwrap()
}

impl Node for Real {
    type Kernel = Host;

    fn kernel(&mut self) -> &mut Host {
        &mut self.host
    }

    fn restart(&mut self) {
        self.host = open();
    }

    fn delete_pins(&mut self, of: Pins) {
        let is_program = |name: &str| name.rsplit('/').next().is_some_and(|name| NAMES.contains(&name));
        let pins = tree(bpffs()).unwrap();
        let pins = pins.iter().filter(|name| name.starts_with("localnet-ebpf/") && name.matches('/').count() == 2);
        for pin in pins.filter(|name| is_program(name) == (of == Pins::Programs)) {
            std::fs::remove_file(bpffs().join(pin)).unwrap();
        }
    }
}

/// Runs a behaviour on the real kernel.
fn on_the_kernel(behaviour: impl Fn(&mut Real) + Sync) {
    let _sandbox = Sandbox::enter().unwrap();
    let network = Network::build(Topology::default()).unwrap();
    let run = || {
        behaviour(&mut Real { host: open() });
        Ok(())
    };
    network.node().run(run).unwrap();
}

macro_rules! contract {
    ($($behaviour:ident),+ $(,)?) => {
        mod fake {
            $(#[test] fn $behaviour() { super::$behaviour(&mut super::Fake::default()); })+
        }

        mod kernel {
            $(#[test] fn $behaviour() { super::on_the_kernel(|node| super::$behaviour(node)); })+
        }
    };
}

contract! {
    elements_are_read_back_as_they_were_written,
    a_later_change_of_an_element_wins,
    a_missing_element_may_be_deleted,
    a_full_map_refuses_only_new_elements,
    a_restart_and_another_attachment_change_nothing,
    maps_keep_their_elements_while_no_program_is_attached,
    maps_without_pins_are_replaced_by_empty_ones,
    nothing_remains_after_a_removal,
}

const PORT: PortId = [1, 2, 3, u32::MAX];

fn vip_key(number: u32) -> VipKey {
    let [a, b, c, d] = number.to_be_bytes();
    VipKey { to: socket(([10, a ^ b, c, d], 80).into()), protocol: 17 }
}

fn vip(endpoints: u32) -> Vip {
    Vip { port: PORT, scope: INTERNAL, endpoints, affinity: 0, when_empty: DROP }
}

fn group(text: &str) -> Endpoints {
    let mut group = Endpoints::default();
    group[0] = socket(text.parse().unwrap());
    group
}

const FIRST: EndpointKey = EndpointKey { port: PORT, scope: INTERNAL, group: 0 };

/// The maps must then have exactly the elements of `expected`.
#[track_caller]
fn apply(node: &mut impl Node, changes: &[Change], expected: &Content) {
    node.kernel().apply(changes).unwrap();
    assert_eq!(node.kernel().read().unwrap(), *expected);
}

fn elements_are_read_back_as_they_were_written(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let to = socket("[fd00::ffff:1]:65535".parse().unwrap());
    let vips = [
        (
            VipKey { to, protocol: 6 },
            Vip { port: PORT, scope: EXTERNAL, endpoints: 9, affinity: u32::MAX, when_empty: DROP },
        ),
        (VipKey { to: Socket { port: 0, ..to }, protocol: 0 }, Vip::default()),
    ];
    let endpoints = [(FIRST, group("10.0.0.1:1")), (EndpointKey { scope: EXTERNAL, group: 7, ..FIRST }, [to; 4])];
    let members = [MemberKey { port: PORT, scope: EXTERNAL, endpoint: to }, MemberKey::default()];
    let content = Content { vips: vips.into(), endpoints: endpoints.into(), members: members.into() };
    let mut changes: Vec<_> = vips.into_iter().map(|(key, vip)| Change::Vip(key, Some(vip))).collect();
    changes.extend(endpoints.into_iter().map(|(key, group)| Change::Endpoints(key, Some(group))));
    changes.extend(members.into_iter().map(|key| Change::Member(key, true)));
    apply(node, &changes, &content);
}

fn a_later_change_of_an_element_wins(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let (one, other) = (vip_key(1), vip_key(2));
    let changes = [
        Change::Vip(one, Some(vip(1))),
        Change::Vip(one, Some(vip(2))),
        Change::Vip(other, Some(vip(3))),
        Change::Vip(other, None),
        Change::Vip(one, None),
        Change::Vip(other, Some(vip(4))),
    ];
    apply(node, &changes[..3], &Content { vips: [(one, vip(2)), (other, vip(3))].into(), ..Content::default() });
    apply(node, &changes, &Content { vips: [(other, vip(4))].into(), ..Content::default() });
}

fn a_missing_element_may_be_deleted(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let changes = [
        Change::Vip(vip_key(1), None),
        Change::Endpoints(FIRST, None),
        Change::Member(MemberKey::default(), false),
        Change::Endpoints(FIRST, Some(group("10.0.0.1:1"))),
    ];
    let endpoints = [(FIRST, group("10.0.0.1:1"))].into();
    apply(node, &changes, &Content { endpoints, ..Content::default() });
}

/// Full maps also have elements from before, which the backend can still change and delete.
fn a_full_map_refuses_only_new_elements(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let size = u32::try_from(Sizes::default().vips).unwrap();
    let fill: Vec<_> = (1..size).map(|number| Change::Vip(vip_key(number), Some(vip(1)))).collect();
    node.kernel().apply(&fill).unwrap();
    let last = vip_key(size - 1);
    let [set, more] = [size, size + 1].map(|number| Change::Vip(vip_key(number), Some(vip(1))));
    let change = Change::Vip(last, Some(vip(2)));
    let error = node.kernel().apply(&[set, more, change, Change::Vip(vip_key(1), None)]).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Full("vips")), "{error}");
    let vips = node.kernel().read().unwrap().vips;
    assert!(vips.contains_key(&vip_key(size)), "the change before the refused one is applied");
    assert_eq!((vips.len(), vips[&last]), (size as usize, vip(1)), "the changes after it are not");

    node.kernel().apply(&[change, Change::Endpoints(FIRST, Some(group("10.0.0.1:1")))]).unwrap();
    assert!(node.kernel().apply(&[more]).is_err());
    node.kernel().apply(&[Change::Vip(vip_key(1), None), more]).unwrap();
    let vips = node.kernel().read().unwrap().vips;
    assert_eq!((vips.len(), vips[&last], vips.contains_key(&vip_key(size + 1))), (size as usize, vip(2), true));
}

fn a_restart_and_another_attachment_change_nothing(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let content = Content { vips: [(vip_key(1), vip(0))].into(), ..Content::default() };
    apply(node, &[Change::Vip(vip_key(1), Some(vip(0)))], &content);
    node.kernel().attach().unwrap();
    assert_eq!(node.kernel().read().unwrap(), content);
    node.restart();
    assert!(node.kernel().is_attached());
    node.kernel().attach().unwrap();
    assert_eq!(node.kernel().read().unwrap(), content);
}

fn maps_keep_their_elements_while_no_program_is_attached(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let [one, two] = [1, 2].map(|number| (vip_key(number), vip(0)));
    apply(node, &[Change::Vip(one.0, Some(one.1))], &Content { vips: [one].into(), ..Content::default() });
    node.delete_pins(Pins::Programs);
    assert!(!node.kernel().is_attached());
    let content = Content { vips: [one, two].into(), ..Content::default() };
    apply(node, &[Change::Vip(two.0, Some(two.1))], &content);
    node.kernel().attach().unwrap();
    assert!(node.kernel().is_attached());
    assert_eq!(node.kernel().read().unwrap(), content);
}

fn maps_without_pins_are_replaced_by_empty_ones(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let [one, two] = [1, 2].map(|number| (vip_key(number), vip(0)));
    apply(node, &[Change::Vip(one.0, Some(one.1))], &Content { vips: [one].into(), ..Content::default() });
    node.delete_pins(Pins::Maps);
    assert!(!node.kernel().is_attached());
    // The backend still has the maps without names open.
    apply(node, &[Change::Vip(two.0, Some(two.1))], &Content { vips: [one, two].into(), ..Content::default() });
    node.kernel().attach().unwrap();
    assert!(node.kernel().is_attached());
    assert_eq!(node.kernel().read().unwrap(), Content::default());
    apply(node, &[Change::Vip(two.0, Some(two.1))], &Content { vips: [two].into(), ..Content::default() });
}

fn nothing_remains_after_a_removal(node: &mut impl Node) {
    node.kernel().attach().unwrap();
    let content = Content { vips: [(vip_key(1), vip(0))].into(), ..Content::default() };
    apply(node, &[Change::Vip(vip_key(1), Some(vip(0)))], &content);
    node.kernel().remove().unwrap();
    assert!(!node.kernel().is_attached());
    node.kernel().remove().unwrap();
    node.kernel().attach().unwrap();
    assert_eq!(node.kernel().read().unwrap(), Content::default());
}
