//! Indented JSON, equal to that of `serde_json::to_string_pretty`. It writes each indentation, half of the text, in one call.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Writes a value as one JSON document.
///
/// # Errors
/// Returns an error if the value cannot be serialized or `out` cannot be written.
pub fn write(out: &mut impl io::Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *out, Indented::default()))?;
    out.write_all(b"\n").map_err(serde_json::Error::io)
}

/// The end of a document whose last field is an empty list; the text before the first item, and the text after the last one.
pub const LIST: (&str, &str, &str) = ("[]\n}\n", "[", "\n  ]\n}\n");

/// Serializes items of a list that is a field of a document, each after a comma.
///
/// # Errors
/// Returns an error if an item cannot be serialized as JSON.
pub fn items<T: Serialize>(items: &[T]) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(64 << 10);
    items.serialize(&mut Serializer::with_formatter(&mut text, Indented { depth: 1, filled: false }))?;
    text[0] = b',';
    text.truncate(text.len() - "\n  ]".len());
    Ok(text)
}

#[derive(Debug, Default)]
struct Indented {
    depth: usize,
    /// Whether the open list or mapping has an entry.
    filled: bool,
}

impl Indented {
    fn line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        const LINE: &[u8] = b"\n                                ";
        match LINE.get(..=2 * self.depth) {
            Some(line) => out.write_all(line),
            None => writeln!(out).and_then(|()| (0..self.depth).try_for_each(|_| out.write_all(b"  "))),
        }
    }

    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(out)?;
        }
        out.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        self.line(out)
    }
}

impl Formatter for Indented {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_equals_the_pretty_json_of_serde_json() {
        let deep =
            (0..20).fold(serde_json::json!("end"), |inner, depth| serde_json::json!({ depth.to_string(): [inner] }));
        for value in [
            serde_json::json!({}),
            serde_json::json!([]),
            serde_json::json!({"a": [1, "x\ny", [], {}, null], "b": {"c": {"d": []}}, "e": [[]]}),
            deep,
        ] {
            let mut written = Vec::new();
            write(&mut written, &value).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), serde_json::to_string_pretty(&value).unwrap() + "\n");
        }
    }
}
