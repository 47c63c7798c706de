//! YAML with block mappings and lists, as a formatter of serde_json. Writing a large state takes no longer than writing its
//! JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};

/// Writes a value as one YAML document.
///
/// # Errors
/// Returns an error if the value cannot be serialized or `out` cannot be written.
pub fn write(out: &mut impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    // Allocated once, with room for most strings.
    let block = Block { string: Vec::with_capacity(64), ..Block::default() };
    let mut yaml = Serializer::with_formatter(&mut *out, block);
    value.serialize(&mut yaml)?;
    out.write_all(b"\n").map_err(serde_json::Error::io)
}

/// The end of a document whose last field is an empty list; the text before the first item, and the text after the last one.
pub const LIST: (&str, &str, &str) = (" []\n", "\n", "\n");

/// Serializes items of a list that is a field of a document, each after a line end.
///
/// # Errors
/// Returns an error if an item cannot be serialized as YAML.
pub fn items<T: Serialize>(items: &[T]) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(64 << 10);
    let block = Block { depth: 1, after: After::Key, ..Block::default() };
    items.serialize(&mut Serializer::with_formatter(&mut text, block))?;
    Ok(text)
}

#[derive(Debug, Default)]
struct Block {
    /// The number of open mappings and lists.
    depth: usize,
    /// What was written last, which decides the separator before the next value.
    after: After,
    /// Whether the open mapping or list has an entry.
    filled: bool,
    /// The current string, escaped as in JSON.
    string: Vec<u8>,
    in_string: bool,
    escaped: bool,
}

/// What was written last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum After {
    /// Nothing, or the dash of an item: the next value stays on this line.
    #[default]
    Dash,
    /// A key and its colon, `key:`.
    Key,
    /// A whole entry.
    Entry,
}

impl Block {
    /// Begins a scalar, or an empty list or mapping.
    fn scalar<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.after == After::Key {
            out.write_all(b" ")?;
        }
        self.after = After::Entry;
        Ok(())
    }

    /// Begins a key or a dash. The first one after a dash stays on its line; every other one gets a new line.
    fn entry<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        const LINE: &[u8] = b"\n                                ";
        if first && self.after == After::Dash {
            return Ok(());
        }
        let indent = 2 * (self.depth - 1);
        match LINE.get(..=indent) {
            Some(line) => out.write_all(line),
            None => write!(out, "\n{:indent$}", ""),
        }
    }

    fn open(&mut self) {
        self.depth += 1;
        self.filled = false;
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, empty: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.filled {
            self.scalar(out)?;
            out.write_all(empty)?;
        }
        self.filled = true;
        self.after = After::Entry;
        Ok(())
    }
}

macro_rules! numbers {
    ($($name:ident: $number:ty),+) => {$(
        /// Numbers look as in JSON. A numeric key is quoted, as in JSON.
        fn $name<W: ?Sized + Write>(&mut self, out: &mut W, value: $number) -> io::Result<()> {
            if self.in_string {
                return CompactFormatter.$name(&mut self.string, value);
            }
            self.scalar(out)?;
            CompactFormatter.$name(out, value)
        }
    )+};
}

impl Formatter for Block {
    fn begin_array<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.open();
        Ok(())
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"[]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.entry(out, first)?;
        self.after = After::Dash;
        out.write_all(b"- ")
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.open();
        Ok(())
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"{}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.entry(out, first)?;
        self.after = After::Dash;
        Ok(())
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.after = After::Key;
        out.write_all(b":")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn write_null<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.scalar(out)?;
        out.write_all(b"null")
    }

    fn write_bool<W: ?Sized + Write>(&mut self, out: &mut W, value: bool) -> io::Result<()> {
        self.scalar(out)?;
        out.write_all(if value { b"true" } else { b"false" })
    }

    numbers! {
        write_i8: i8, write_i16: i16, write_i32: i32, write_i64: i64,
        write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64,
        write_f32: f32, write_f64: f64
    }

    fn begin_string<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.string.clear();
        self.escaped = false;
        self.in_string = true;
        self.scalar(out)
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, _: &mut W, fragment: &str) -> io::Result<()> {
        self.string.extend_from_slice(fragment.as_bytes());
        Ok(())
    }

    /// YAML escapes the same characters in double quotes as JSON, in the same way.
    fn write_char_escape<W: ?Sized + Write>(&mut self, _: &mut W, escape: CharEscape) -> io::Result<()> {
        self.escaped = true;
        CompactFormatter.write_char_escape(&mut self.string, escape)
    }

    fn end_string<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.in_string = false;
        if !self.escaped && is_plain(&self.string) {
            return out.write_all(&self.string);
        }
        out.write_all(b"\"")?;
        // Characters that YAML 1.2 calls unprintable are escaped, and so are line breaks that only YAML knows.
        match std::str::from_utf8(&self.string) {
            Ok(text) if self.string.iter().any(|byte| *byte >= 0x7f) => text.chars().try_for_each(|c| match c {
                '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                    write!(out, "\\u{:04x}", u32::from(c))
                }
                c => write!(out, "{c}"),
            })?,
            _ => out.write_all(&self.string)?,
        }
        out.write_all(b"\"")
    }
}

/// The bytes that a plain word may contain after its first one. Most of a document is words, and a table is the fastest test.
const INNER: [bool; 256] = {
    let mut inner = [false; 256];
    let mut byte = u8::MAX;
    while byte > 0 {
        inner[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
        byte -= 1;
    }
    inner
};

/// Whether every version of YAML reads a text as a string without quotes. Words, IPv4 addresses and IPv4 prefixes are such
/// texts.
fn is_plain(text: &[u8]) -> bool {
    const RESERVED: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    match text.first() {
        Some(first) if first.is_ascii_alphabetic() => {
            let is_reserved = || RESERVED.iter().any(|word| word.as_bytes().eq_ignore_ascii_case(text));
            text.iter().all(|byte| INNER[usize::from(*byte)]) && (text.len() > 5 || !is_reserved())
        }
        Some(first) if first.is_ascii_digit() => {
            let dots = text.iter().filter(|byte| **byte == b'.').count();
            dots == 3 && text.iter().all(|byte| byte.is_ascii_digit() || b"./".contains(byte))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn written(value: &impl Serialize) -> String {
        let mut out = Vec::new();
        write(&mut out, value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn documents_are_blocks() {
        let document = json!({
            "a": {"b": "text", "c": [1, "1", "10.0.0.1", "10.0.0.0/8", "fd00::1", true, null, "yes", ""]},
            "d": [{"e": [], "f": {}, "g": [["x"], []]}, {"h": "a: b\n"}],
        });
        let expected = "a:
  b: text
  c:
    - 1
    - \"1\"
    - 10.0.0.1
    - 10.0.0.0/8
    - \"fd00::1\"
    - true
    - null
    - \"yes\"
    - \"\"
d:
  - e: []
    f: {}
    g:
      - - x
      - []
  - h: \"a: b\\n\"
";
        assert_eq!(written(&document), expected);
        assert_eq!(written(&std::collections::BTreeMap::from([(1, "x")])), "\"1\": x\n");
        assert_eq!(written(&json!([])), "[]\n");
        assert_eq!(written(&json!("x")), "x\n");
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[ -~]{0,6}", "\\PC{0,4}", any::<String>(), "[0-9.:/eExX_+-]{1,8}", "[a-zA-Z.~]{1,5}"];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 32, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((text.clone(), inner), 0..4)
                    .prop_map(|entries| entries.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_values_parse_to_the_same_values(value in value()) {
            let text = written(&value);
            let read: Value = serde_saphyr::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text:?}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }
}
