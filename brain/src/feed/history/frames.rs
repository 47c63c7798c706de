//! The format of a history file: frames, each of which survives the loss of everything after it. Pure.
//!
//! ```text
//! file:  MAGIC, frame, frame, …
//! frame: length of the content and FRESH (u32), checksum (u32), content: a part of a deflate stream that ends at a byte
//! ```
//!
//! Names and addresses repeat from entry to entry, so the frames share one deflate stream. Each brain begins a new stream.

use std::io::Read;

use bytes::Bytes;
use miniz_oxide::{
    DataFormat, MZError, MZFlush,
    deflate::{
        CompressionLevel,
        core::{CompressionStrategy, CompressorOxide, TDEFLFlush, compress_to_output},
    },
    inflate::stream::{InflateState, inflate},
};
use twox_hash::XxHash64;

/// The first bytes of each history file.
pub(super) const MAGIC: &[u8] = b"localnet history 1\n";
/// Maximum size of the content of a frame, compressed or not, in bytes. A greater length is the sign of a damaged file.
const LARGEST: usize = 16 << 20;
/// Set in the length of a frame that begins a new deflate stream.
const FRESH: u32 = 1 << 31;

/// Compresses entries into frames.
pub(super) struct Encoder {
    deflate: Box<CompressorOxide>,
    fresh: bool,
}

impl Default for Encoder {
    fn default() -> Self {
        // Frames are small. A table of codes for each frame would take more bytes than it saves.
        let (level, strategy) = (CompressionLevel::BestSpeed as u8, CompressionStrategy::Fixed);
        Self { deflate: Box::new(CompressorOxide::with_params(DataFormat::Raw, level, strategy, 15)), fresh: true }
    }
}

impl Encoder {
    /// Returns a frame with this content.
    pub(super) fn frame(&mut self, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 8];
        compress_to_output(&mut self.deflate, content, TDEFLFlush::Sync, |bytes| {
            frame.extend_from_slice(bytes);
            true
        });
        let length = u32::try_from(frame.len() - 8).unwrap_or(FRESH);
        let word = length | if std::mem::take(&mut self.fresh) { FRESH } else { 0 };
        let sum = checksum(word, &frame[8..]);
        frame[..4].copy_from_slice(&word.to_le_bytes());
        frame[4..8].copy_from_slice(&sum.to_le_bytes());
        frame
    }
}

fn checksum(word: u32, content: &[u8]) -> u32 {
    // The length is the seed, so that a file of zeros contains no valid frame.
    (XxHash64::oneshot(u64::from(word), content) >> 32) as u32
}

/// Reads the frames of a file after its magic bytes, up to the first frame that is incomplete or damaged.
pub(super) struct Frames<R> {
    reader: R,
    /// The number of bytes in the frames so far.
    pub(super) valid: u64,
}

impl<R: Read> Frames<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, valid: 0 }
    }

    /// The next frame: whether it begins a new deflate stream, and its content, still compressed.
    fn frame(&mut self) -> Option<(bool, Vec<u8>)> {
        let mut head = [0; 8];
        self.reader.read_exact(&mut head).ok()?;
        let [word, sum] = [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let length = usize::try_from(word & !FRESH).ok().filter(|length| *length <= LARGEST)?;
        let mut content = Vec::new();
        self.reader.by_ref().take(length as u64).read_to_end(&mut content).ok()?;
        if content.len() != length || checksum(word, &content) != sum {
            return None;
        }
        self.valid += 8 + length as u64;
        Some((word & FRESH != 0, content))
    }

    /// Skips all frames.
    pub(super) fn skip(&mut self) {
        while self.frame().is_some() {}
    }

    /// The content of all frames.
    pub(super) fn contents(mut self) -> impl Iterator<Item = Bytes> {
        let mut state = InflateState::new_boxed(DataFormat::Raw);
        std::iter::from_fn(move || {
            let (fresh, content) = self.frame()?;
            if fresh {
                state.reset(DataFormat::Raw);
            }
            inflated(&mut state, &content).map(Bytes::from)
        })
        .fuse()
    }
}

/// Decompresses the content of a frame. `None` if it is damaged.
fn inflated(state: &mut InflateState, mut content: &[u8]) -> Option<Vec<u8>> {
    let (mut all, mut part) = (Vec::new(), vec![0; 32 << 10]);
    while all.len() <= LARGEST {
        let result = inflate(state, content, &mut part, MZFlush::None);
        content = &content[result.bytes_consumed..];
        all.extend_from_slice(&part[..result.bytes_written]);
        match result.status {
            // More output may be waiting.
            Ok(_) if !content.is_empty() || result.bytes_written == part.len() => {}
            Ok(_) | Err(MZError::Buf) if content.is_empty() => return Some(all),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A frame survives the loss of everything after it, and a damaged byte costs nothing before its frame.
        #[test]
        fn frames_before_a_damage_are_read(
            contents in proptest::collection::vec(proptest::collection::vec(0_u8..4, 0..300), 1..6),
            fresh in 0..6_usize, damage in any::<prop::sample::Index>(), flip in 1_u8..,
        ) {
            let (mut encoder, mut file, mut ends) = (Encoder::default(), Vec::new(), vec![0]);
            for (number, content) in contents.iter().enumerate() {
                if number == fresh {
                    encoder = Encoder::default();
                }
                file.extend(encoder.frame(content));
                ends.push(file.len());
            }
            let at = damage.index(file.len());
            let whole = ends.partition_point(|end| *end <= at) - 1;
            let mut flipped = file.clone();
            flipped[at] ^= flip;
            for damaged in [&file[..at], &flipped] {
                let read: Vec<_> = Frames::new(damaged).contents().collect();
                prop_assert_eq!(&read[..], &contents[..whole]);
                let mut frames = Frames::new(damaged);
                frames.skip();
                prop_assert_eq!(frames.valid, ends[whole] as u64);
            }
            let read: Vec<_> = Frames::new(&*file).contents().collect();
            prop_assert_eq!(read, contents);
        }
    }
}
