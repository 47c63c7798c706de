//! The eBPF programs. The kernel runs them when a process of this node calls `connect`, `sendmsg`, `recvmsg` or `getpeername`.
//!
//! This file only reads and writes the kernel's structures: `../src/decide.rs` makes the decisions. It needs `unsafe`, because the
//! kernel's interface consists of pointers. The kernel's verifier proves, before a program runs, that each access is valid.
//! No dependencies: the few functions of the kernel that the programs call are declared here (linux/bpf.h).
#![no_std]
#![no_main]

#[path = "../src/decide.rs"]
mod decide;
#[path = "../src/layout.rs"]
mod layout;

use core::{marker::PhantomData, mem::transmute, ptr};

use decide::{Maps, Verdict};
use layout::{Client, ClientKey, EndpointKey, Endpoints, MemberKey, OriginKey, Socket, Vip, VipKey};

/// `struct bpf_sock_addr`. Addresses and the port have network byte order.
#[repr(C)]
pub struct Context {
    user_family: u32,
    user_ip4: u32,
    user_ip6: [u32; 4],
    user_port: u32,
    family: u32,
    kind: u32,
    protocol: u32,
}

/// The declaration of a map, as loaders read it from the section `maps`.
#[repr(C)]
struct Map<K, V> {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    id: u32,
    pinning: u32,
    types: PhantomData<(K, V)>,
}

// SAFETY: the declaration is constant, and the kernel synchronizes access to the map.
unsafe impl<K, V> Sync for Map<K, V> {}

const HASH: u32 = 1;
const LRU_HASH: u32 = 9;
/// `BPF_F_NO_PREALLOC`: elements use memory only while they exist.
const ON_DEMAND: u32 = 1;
/// The loader pins the map by its name.
const BY_NAME: u32 = 1;

impl<K, V> Map<K, V> {
    const fn new(kind: u32, max_entries: u32) -> Self {
        let flags = if kind == HASH { ON_DEMAND } else { 0 };
        let (key_size, value_size) = (size_of::<K>() as u32, size_of::<V>() as u32);
        Self { kind, key_size, value_size, max_entries, flags, id: 0, pinning: BY_NAME, types: PhantomData }
    }

    #[inline(always)]
    fn get(&self, key: &K) -> Option<&V> {
        // SAFETY: helper 1 is `bpf_map_lookup_elem`. Its result is null or a value that lives as long as the program runs.
        unsafe {
            let lookup: unsafe extern "C" fn(*const Self, *const K) -> *const V = transmute(1_usize);
            lookup(self, key).as_ref()
        }
    }

    #[inline(always)]
    fn set(&self, key: &K, value: &V) {
        // SAFETY: helper 2 is `bpf_map_update_elem`, which copies both. It fails only if the map is full; LRU maps are never full.
        unsafe {
            let update: unsafe extern "C" fn(*const Self, *const K, *const V, u64) -> i64 = transmute(2_usize);
            update(self, key, value, 0);
        }
    }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "maps")]
static vips: Map<VipKey, Vip> = Map::new(HASH, 1 << 18);
#[unsafe(no_mangle)]
#[unsafe(link_section = "maps")]
static endpoints: Map<EndpointKey, Endpoints> = Map::new(HASH, 1 << 18);
#[unsafe(no_mangle)]
#[unsafe(link_section = "maps")]
static members: Map<MemberKey, u32> = Map::new(HASH, 1 << 19);
#[unsafe(no_mangle)]
#[unsafe(link_section = "maps")]
static clients: Map<ClientKey, Client> = Map::new(LRU_HASH, 1 << 16);
#[unsafe(no_mangle)]
#[unsafe(link_section = "maps")]
static origins: Map<OriginKey, Socket> = Map::new(LRU_HASH, 1 << 17);

/// The kernel's maps and functions, for one call.
struct Kernel(*mut Context);

/// Calls a function of the kernel that takes the context and returns a number.
macro_rules! call {
    ($number:literal, $context:expr) => {{
        // SAFETY: the function takes the context, which is valid, and has no other effect.
        let function: unsafe extern "C" fn(*mut Context) -> u64 = unsafe { transmute($number as usize) };
        unsafe { function($context) }
    }};
}

impl Maps for Kernel {
    #[inline(always)]
    fn vip(&self, key: &VipKey) -> Option<&Vip> {
        vips.get(key)
    }
    #[inline(always)]
    fn endpoints(&self, key: &EndpointKey) -> Option<&Endpoints> {
        endpoints.get(key)
    }
    #[inline(always)]
    fn is_member(&self, key: &MemberKey) -> bool {
        members.get(key).is_some()
    }
    #[inline(always)]
    fn client(&self, key: &ClientKey) -> Option<Client> {
        clients.get(key).copied()
    }
    #[inline(always)]
    fn keep_client(&self, key: &ClientKey, client: &Client) {
        clients.set(key, client);
    }
    #[inline(always)]
    fn origin(&self, key: &OriginKey) -> Option<Socket> {
        origins.get(key).copied()
    }
    #[inline(always)]
    fn keep_origin(&self, key: &OriginKey, vip: &Socket) {
        origins.set(key, vip);
    }
    #[inline(always)]
    fn random(&self) -> u32 {
        call!(7, self.0) as u32
    }
    #[inline(always)]
    fn now(&self) -> u64 {
        call!(125, self.0)
    }
    #[inline(always)]
    fn socket_cookie(&self) -> u64 {
        call!(46, self.0)
    }
    #[inline(always)]
    fn namespace_cookie(&self) -> u64 {
        call!(122, self.0)
    }
}

impl Kernel {
    #[inline(always)]
    fn protocol(&self) -> u32 {
        // SAFETY: the kernel passes a valid context. It permits only accesses of whole fields, so they are volatile.
        unsafe { ptr::read_volatile(&raw const (*self.0).protocol) }
    }

    /// The address and port that the call is about.
    #[inline(always)]
    fn socket<const V6: bool>(&self) -> Socket {
        // SAFETY: as in `protocol`.
        let (words, port) = unsafe {
            let words = if V6 {
                [
                    ptr::read_volatile(&raw const (*self.0).user_ip6[0]),
                    ptr::read_volatile(&raw const (*self.0).user_ip6[1]),
                    ptr::read_volatile(&raw const (*self.0).user_ip6[2]),
                    ptr::read_volatile(&raw const (*self.0).user_ip6[3]),
                ]
            } else {
                [0, 0, MAPPED.to_be(), ptr::read_volatile(&raw const (*self.0).user_ip4)]
            };
            (words, ptr::read_volatile(&raw const (*self.0).user_port))
        };
        Socket { address: words, port: u32::from(u16::from_be(port as u16)) }
    }

    #[inline(always)]
    fn set_socket<const V6: bool>(&self, socket: &Socket) {
        // SAFETY: as in `protocol`.
        unsafe {
            if V6 {
                ptr::write_volatile(&raw mut (*self.0).user_ip6[0], socket.address[0]);
                ptr::write_volatile(&raw mut (*self.0).user_ip6[1], socket.address[1]);
                ptr::write_volatile(&raw mut (*self.0).user_ip6[2], socket.address[2]);
                ptr::write_volatile(&raw mut (*self.0).user_ip6[3], socket.address[3]);
            } else {
                ptr::write_volatile(&raw mut (*self.0).user_ip4, socket.address[3]);
            }
            ptr::write_volatile(&raw mut (*self.0).user_port, u32::from((socket.port as u16).to_be()));
        }
    }

    /// Lets the call fail with this error if the program returns [`REFUSE`].
    #[inline(always)]
    fn fail(&self, errno: i32) {
        // SAFETY: helper 187 is `bpf_set_retval`, which takes a number.
        unsafe {
            let set: unsafe extern "C" fn(i32) -> i32 = transmute(187_usize);
            set(-errno);
        }
    }
}

/// The second half of the prefix of IPv4-mapped addresses.
const MAPPED: u32 = 0xffff;
const ECONNREFUSED: i32 = 111;
/// The call continues.
const CONTINUE: i32 = 1;
/// The call fails, with `EPERM` unless [`Kernel::fail`] has set another error.
const REFUSE: i32 = 0;

#[inline(always)]
fn to_endpoint<const V6: bool>(context: *mut Context, is_message: bool) -> i32 {
    let kernel = Kernel(context);
    match decide::destination(&kernel, kernel.protocol(), &kernel.socket::<V6>(), is_message) {
        Verdict::Pass => CONTINUE,
        Verdict::To(endpoint) => {
            kernel.set_socket::<V6>(&endpoint);
            CONTINUE
        }
        Verdict::Reject => {
            kernel.fail(ECONNREFUSED);
            REFUSE
        }
        Verdict::Drop => REFUSE,
    }
}

#[inline(always)]
fn to_vip<const V6: bool>(context: *mut Context) -> i32 {
    let kernel = Kernel(context);
    if let Some(vip) = decide::origin(&kernel, kernel.protocol(), &kernel.socket::<V6>()) {
        kernel.set_socket::<V6>(&vip);
    }
    CONTINUE
}

/// Declares programs, each in the section that tells a loader where to attach it.
macro_rules! programs {
    ($($section:literal $name:ident = |$context:ident| $run:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(link_section = $section)]
            extern "C" fn $name($context: *mut Context) -> i32 {
                $run
            }
        )*
    };
}

programs! {
    "cgroup/connect4" connect4 = |context| to_endpoint::<false>(context, false);
    "cgroup/connect6" connect6 = |context| to_endpoint::<true>(context, false);
    "cgroup/sendmsg4" sendmsg4 = |context| to_endpoint::<false>(context, true);
    "cgroup/sendmsg6" sendmsg6 = |context| to_endpoint::<true>(context, true);
    "cgroup/recvmsg4" recvmsg4 = |context| to_vip::<false>(context);
    "cgroup/recvmsg6" recvmsg6 = |context| to_vip::<true>(context);
    "cgroup/getpeername4" getpeername4 = |context| to_vip::<false>(context);
    "cgroup/getpeername6" getpeername6 = |context| to_vip::<true>(context);
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 11] = *b"Apache-2.0\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The programs contain no panic: the kernel refuses programs that may not end.
    loop {}
}
