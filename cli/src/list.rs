//! Prints answers that are lists of tens of thousands of items, with several threads.

use std::io;

use anyhow::Context as _;
use serde::Serialize;

use crate::{json, output::Format, pieces, yaml};

/// The number of items in a piece. The text of a piece fits into the processor's cache, and threads rarely wait for each other.
const PIECE: usize = 64;

/// Writes a JSON or YAML document whose last field is a list. `around` is the document with an empty list.
///
/// # Errors
/// Returns an error if the document cannot be serialized or written.
pub fn document<T: Serialize + Sync>(
    format: Format,
    around: &impl Serialize,
    items: &[T],
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    let is_json = format == Format::Json;
    let mut text = Vec::new();
    if is_json { json::write(&mut text, around) } else { yaml::write(&mut text, around) }?;
    let (empty, begin, end) = if is_json { json::LIST } else { yaml::LIST };
    let Some(before) = text.strip_suffix(empty.as_bytes()).filter(|_| !items.is_empty()) else {
        return Ok(out.write_all(&text)?);
    };
    out.write_all(before)?;
    out.write_all(begin.as_bytes())?;
    let make = |items: &[T]| if is_json { json::items(items) } else { yaml::items(items) };
    // The text of the first item begins with the separator, which `begin` already contains.
    let mut skipped = begin.len();
    pieces::in_order(items, PIECE, make, |made| {
        let made = made.context("writing a list")?;
        out.write_all(&made[std::mem::take(&mut skipped)..])?;
        anyhow::Ok(())
    })?;
    Ok(out.write_all(end.as_bytes())?)
}

/// Writes the output of `line` for each item.
///
/// # Errors
/// Returns an error of `line`, or an error if `out` cannot be written.
pub fn lines<T: Sync>(
    items: &[T],
    line: impl Fn(&mut Vec<u8>, &T) -> anyhow::Result<()> + Sync,
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    let make = |items: &[T]| -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(64 << 10);
        items.iter().try_for_each(|item| line(&mut text, item))?;
        Ok(text)
    };
    pieces::in_order(items, PIECE, make, |made| Ok(out.write_all(&made?)?))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[derive(Serialize)]
    struct Document<'a> {
        before: Vec<&'a str>,
        list: &'a [Item],
    }

    #[derive(Serialize)]
    struct Item {
        number: usize,
        names: Vec<String>,
    }

    fn items(count: usize) -> Vec<Item> {
        (0..count).map(|number| Item { number, names: vec![format!("a: {number}"); number % 3] }).collect()
    }

    #[test]
    fn a_document_equals_one_that_is_written_at_once() {
        for count in [0, 1, PIECE, PIECE + 1, 10 * PIECE + 3] {
            let items = items(count);
            let before = || vec!["x", "y"];
            let whole = Document { before: before(), list: &items };
            for format in [Format::Json, Format::Yaml] {
                let (mut expected, mut written) = (Vec::new(), Vec::new());
                match format {
                    Format::Json => json::write(&mut expected, &whole).unwrap(),
                    _ => yaml::write(&mut expected, &whole).unwrap(),
                }
                document(format, &Document { before: before(), list: &[] }, &items, &mut written).unwrap();
                assert!(written == expected, "{format:?} {count}: {}", String::from_utf8_lossy(&written));
            }
        }
    }

    #[test]
    fn lines_arrive_in_order_and_an_error_ends_them() {
        let items = items(5 * PIECE);
        let number = |text: &mut Vec<u8>, item: &Item| Ok(writeln!(text, "{}", item.number)?);
        let mut written = Vec::new();
        lines(&items, number, &mut written).unwrap();
        let expected: String = (0..items.len()).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(written).unwrap(), expected);
        let odd = |_: &mut Vec<u8>, item: &Item| {
            anyhow::ensure!(item.number < 2 * PIECE, "odd");
            Ok(())
        };
        assert_eq!(lines(&items, odd, &mut io::sink()).unwrap_err().to_string(), "odd");
    }
}
