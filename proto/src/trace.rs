//! A trace: the entries of a brain's history in a file, with the full state that the first change belongs to.
//!
//! ```text
//!  localnet record:  Next, History.Read ──► MAGIC, entry, entry, …   (each entry after its length)
//!  localnet replay:  entries ──► history::Replay ──► states, whose digests are those of the brain
//! ```

use std::io::{self, BufRead, Read, Write};

use bytes::Bytes;
use prost::Message as _;

use crate::history::Entry;

/// The first bytes of a trace.
const MAGIC: &[u8] = b"localnet trace 1\n";
/// Maximum size of an entry, in bytes. A greater length is the sign of a damaged trace.
const LARGEST: usize = 64 << 20;

/// Begins a trace.
///
/// # Errors
/// Returns an error if `out` cannot be written.
pub fn begin(out: &mut impl Write) -> io::Result<usize> {
    out.write_all(MAGIC)?;
    Ok(MAGIC.len())
}

/// Appends an entry to a trace in one write. Returns the number of bytes.
///
/// # Errors
/// Returns an error if `out` cannot be written.
pub fn append(out: &mut impl Write, entry: &Entry) -> io::Result<usize> {
    let bytes = entry.encode_length_delimited_to_vec();
    out.write_all(&bytes)?;
    Ok(bytes.len())
}

/// Reads the beginning of a trace.
///
/// # Errors
/// Returns an error if the file is no trace, or cannot be read.
pub fn open(reader: &mut impl Read) -> io::Result<()> {
    let mut head = Vec::new();
    reader.take(MAGIC.len() as u64).read_to_end(&mut head)?;
    if head == MAGIC { Ok(()) } else { Err(io::Error::other("this file is no trace of `localnet record`")) }
}

/// Reads the next entry of a trace. `None` at the end.
///
/// # Errors
/// Returns an error if the file cannot be read, or ends in the middle of an entry.
pub fn next(reader: &mut impl BufRead) -> io::Result<Option<Entry>> {
    let mut length = 0;
    for shift in (0..).step_by(7) {
        let mut byte = [0];
        match reader.read(&mut byte)? {
            0 if shift == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => length |= usize::from(byte[0] & 0x7f) << shift,
        }
        if length > LARGEST || shift > 28 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an entry is damaged"));
        }
        if byte[0] < 0x80 {
            break;
        }
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    Entry::decode(Bytes::from(bytes)).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
