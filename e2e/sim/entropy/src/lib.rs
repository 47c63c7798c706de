//! `getrandom(2)` from a seed. A program that links this crate gets no real random numbers.
//!
//! The standard library seeds its hash maps, `rand` its generators and tokio its `select!` with `getrandom`, and none of
//! them can be given a seed by their users. The linker prefers this function to that of the C library. The crate
//! `mad-turmoil` does the same, but it also replaces the clock of the whole process, shares one generator among all
//! threads, and brings a network simulator with further features of tokio.

use std::cell::Cell;

thread_local! {
    /// The state of SplitMix64. Each thread has its own, so other threads do not affect the sequence of a seeded thread.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Makes all random numbers of this thread follow from `seed`.
pub fn seed(seed: u64) {
    STATE.set(seed);
}

fn next() -> u64 {
    let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Fills the buffer, as `getrandom(2)` does.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes.
#[expect(unsafe_code, reason = "only a function with this name and signature replaces that of the C library")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if length > 0 {
        // SAFETY: the caller passes a buffer of this length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&next().to_ne_bytes()[..chunk.len()]);
        }
    }
    length.cast_signed()
}
