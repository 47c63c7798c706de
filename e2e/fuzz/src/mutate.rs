//! Mutates inputs. Pure.

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

/// The maximum length of an input, in bytes.
const MAX_LEN: usize = 64 << 10;
/// Numbers at the limits of types, which parsers often mishandle.
const NUMBERS: [u64; 12] = [0, 1, 2, 3, 4, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff];
/// Tokens that parsers often mishandle.
const TOKENS: [&[u8]; 16] = [
    b"\0",
    b"\n",
    b"---\n",
    b"- ",
    b": ",
    b"{}",
    b"[]",
    b"\"",
    b"&a *a",
    b"-1",
    b"99999999999999999999",
    b"1e9",
    b"::",
    b"/0",
    b"\xff\xfe",
    b"\xf0\x9f\x92\xa5",
];

/// A copy of an input from `pool`, with one to six mutations.
pub fn mutated(pool: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = pool.choose(random).cloned().unwrap_or_default();
    for _ in 0..random.random_range(1..=6) {
        change(&mut bytes, pool, random);
    }
    bytes.truncate(MAX_LEN);
    bytes
}

fn change(bytes: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut StdRng) {
    let at = random.random_range(0..=bytes.len());
    let rest = bytes.len() - at;
    let length = random.random_range(0..=rest.min(32));
    match random.random_range(0..10) {
        0 if rest > 0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 if rest > 0 => bytes[at] = random.random(),
        2 => drop(bytes.drain(at..at + length)),
        3 => bytes.truncate(at),
        4 => {
            let piece = bytes[at..at + length].to_vec();
            let to = random.random_range(0..=bytes.len());
            bytes.splice(to..to, piece);
        }
        5 => {
            let piece = TOKENS.choose(random).copied().unwrap_or_default();
            bytes.splice(at..at, piece.iter().copied());
        }
        6 => {
            let number = NUMBERS.choose(random).copied().unwrap_or_default();
            let width = *[1, 2, 4, 8].choose(random).unwrap_or(&1);
            let mut number = number.to_le_bytes()[..width].to_vec();
            if random.random() {
                number.reverse();
            }
            let end = (at + width).min(bytes.len());
            bytes.splice(at..end, number);
        }
        7 => {
            // Replaces a part by a part of another input.
            let other = pool.choose(random).map_or(&[][..], Vec::as_slice);
            let from = random.random_range(0..=other.len());
            let to = random.random_range(from..=other.len().min(from + 256));
            bytes.splice(at..at + length, other[from..to].iter().copied());
        }
        8 => {
            let number = random.random_range(-70_000_i64..70_000).to_string();
            bytes.splice(at..at + length.min(5), number.into_bytes());
        }
        _ => {
            let new: Vec<u8> = (0..random.random_range(1..8)).map(|_| random.random()).collect();
            bytes.splice(at..at, new);
        }
    }
}
