//! Writes many elements of an eBPF map with one system call, `BPF_MAP_UPDATE_BATCH`, which the library aya does not offer (linux/bpf.h).

#![expect(unsafe_code, reason = "only bpf(2) offers this, and it reads memory by address")]

use std::{
    ffi::c_long,
    io, mem,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::{MapData, MapType};

/// The command `BPF_MAP_UPDATE_BATCH`, since Linux 5.6.
const UPDATE_BATCH: c_long = 26;

/// The member `batch` of `union bpf_attr`. The kernel accepts a shorter argument than the union.
#[repr(C)]
#[derive(Debug, Default)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Sets the elements of a hash map, in their order. A key and its value have the same index.
///
/// # Errors
/// Returns an error if the numbers of keys and values differ, if the map is no hash map of these sizes, or if the kernel refuses an
/// element (`E2BIG` if the map is full). The map may then have some of the elements.
pub fn set<const K: usize, const V: usize>(map: &MapData, keys: &[[u32; K]], values: &[[u32; V]]) -> io::Result<()> {
    let info = map.info().map_err(io::Error::other)?;
    let sizes = (info.key_size() as usize, info.value_size() as usize);
    // A map with a value for each CPU would have larger values than it says.
    let fits = matches!(info.map_type(), Ok(MapType::Hash)) && sizes == (size_of::<[u32; K]>(), size_of::<[u32; V]>());
    let (Ok(count), true) = (u32::try_from(keys.len()), fits && keys.len() == values.len()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut batch = Batch {
        keys: keys.as_ptr().expose_provenance() as u64,
        values: values.as_ptr().expose_provenance() as u64,
        count,
        map_fd: map.fd().as_fd().as_raw_fd().cast_unsigned(),
        ..Batch::default()
    };
    // SAFETY: the kernel reads `count` keys and values of the map's sizes, which both slices have, and it writes only `count`, in
    // the batch, which lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, UPDATE_BATCH, &raw mut batch, mem::size_of::<Batch>()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
