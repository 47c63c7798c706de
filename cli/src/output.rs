//! Prints answers: aligned tables for people, JSON and YAML with stable fields for programs, names for other commands.

use std::{
    io::{self, IsTerminal as _, Write as _},
    num::NonZero,
    sync::mpsc::sync_channel,
    thread,
};

use anyhow::Context as _;
use clap::{ColorChoice, ValueEnum};
use jiff::Timestamp;
use serde::Serialize;

use crate::style::{COLOURS, Style};

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns
    #[default]
    Table,
    /// Aligned columns, and more of them
    Wide,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
    /// Names only, one per line
    Name,
}

/// An answer that can be printed in every format. Its serialized fields are stable: fields are only added.
pub trait Show: Serialize + Sized {
    /// Returns the answer as text for people.
    fn human(&self, style: Style) -> String;
    /// Returns the names of the objects in the answer.
    fn names(&self) -> Vec<String>;
    /// Writes the answer as YAML.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written or the answer cannot be serialized.
    fn yaml(&self, out: &mut impl io::Write) -> anyhow::Result<()> {
        Ok(out.write_all(serde_saphyr::to_string(self)?.as_bytes())?)
    }
}

/// Writes an answer in a format.
///
/// # Errors
/// Returns an error if `out` cannot be written or the answer cannot be serialized.
pub fn write(answer: &impl Show, format: Format, style: Style, out: &mut impl io::Write) -> anyhow::Result<()> {
    match format {
        Format::Table | Format::Wide => {
            out.write_all(answer.human(Style { wide: format == Format::Wide, ..style }).as_bytes())?;
        }
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, answer).context("failed to write JSON")?;
            writeln!(out)?;
        }
        Format::Yaml => answer.yaml(out).context("failed to write YAML")?,
        Format::Name => answer.names().iter().try_for_each(|name| writeln!(out, "{name}"))?,
    }
    Ok(())
}

/// Writes a YAML document whose last field is a list. `head` is the document with this list empty; `items` are the list's items.
///
/// # Errors
/// Returns an error if `out` cannot be written or an item cannot be serialized.
pub fn yaml_list<T: Serialize + Sync>(
    head: &impl Serialize,
    items: &[T],
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    let head = serde_saphyr::to_string(head)?;
    match head.strip_suffix(" []\n") {
        Some(head) if !items.is_empty() => {
            writeln!(out, "{head}")?;
            in_threads(items, |part| Ok(serde_saphyr::to_string(&part)?), out)
        }
        _ => Ok(out.write_all(head.as_bytes())?),
    }
}

/// The number of items in a part of a list. Parts are so small that the allocator reuses the memory of their texts.
const PART: usize = 100;

/// Writes a long list part by part. Several threads compute the texts of the parts, because the library for YAML is slow.
///
/// # Errors
/// Returns an error if `out` cannot be written, or the error of `text`.
pub fn in_threads<T: Sync>(
    items: &[T],
    text: impl Fn(&[T]) -> anyhow::Result<String> + Sync,
    out: &mut impl io::Write,
) -> anyhow::Result<()> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let start = |first| {
            // The channel holds only a few texts, so that memory stays small even if `out` is slow.
            let (sender, receiver) = sync_channel(8);
            let mut parts = items.chunks(PART).skip(first).step_by(threads);
            let text = &text;
            scope.spawn(move || parts.try_for_each(|part| sender.send(text(part))));
            receiver
        };
        let receivers: Vec<_> = (0..threads).map(start).collect();
        let texts = receivers.iter().cycle().map_while(|receiver| receiver.recv().ok());
        texts.into_iter().try_for_each(|text| Ok(out.write_all(text?.as_bytes())?))
    })
}

/// Returns the answer in a format.
///
/// # Errors
/// Returns an error if the answer cannot be serialized as JSON or YAML.
#[cfg(test)]
pub(crate) fn render(answer: &impl Show, format: Format) -> String {
    let mut text = Vec::new();
    write(answer, format, Style::default(), &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Formats a time in UTC to the second, as in RFC 3339.
pub fn utc(time: Timestamp) -> String {
    time.strftime("%FT%TZ").to_string()
}

/// Whether standard output is coloured. `Auto` means on a terminal, unless `NO_COLOR` is set.
pub fn is_coloured(colour: ColorChoice) -> bool {
    match colour {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
        }
    }
}

/// The width of standard output in columns; `None` if it is not a terminal.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Prints what `write` writes. It is no error if the reader closes the pipe early, as `head` does.
///
/// # Errors
/// Returns an error if standard output cannot be written, or the error of `write`.
pub fn print(write: impl FnOnce(&mut Out<io::StdoutLock<'static>>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut out = buffered(io::stdout().lock());
    write(&mut out)?;
    out.flush().context("failed to write to standard output")
}

/// Returns a writer for answers. It writes large blocks to `to`, and stops once the reader has closed the pipe.
///
/// Reports of backends and values of a state must not control the terminal. Of the control characters, only line ends, tabs and
/// our own colours pass; all others are escaped.
pub fn buffered<W: io::Write>(to: W) -> Out<W> {
    io::BufWriter::with_capacity(BLOCK, Harmless { to, closed: false })
}

/// A writer for answers, as [`buffered`] returns it.
pub type Out<W> = io::BufWriter<Harmless<W>>;

/// How many bytes are buffered before they are written.
const BLOCK: usize = 64 << 10;

/// Writes text with its control characters escaped, until the reader closes the pipe. The buffer in front of this writer passes
/// on each text as a whole, so that no character and no colour code is split.
#[derive(Debug)]
pub struct Harmless<W> {
    to: W,
    closed: bool,
}

impl<W: io::Write> Harmless<W> {
    fn unless_closed(&mut self, done: io::Result<()>) -> io::Result<()> {
        self.closed |= matches!(&done, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
        if self.closed { Ok(()) } else { done }
    }
}

impl<W: io::Write> io::Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.closed {
            let done = match may_command(bytes) {
                true => self.to.write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes()),
                false => self.to.write_all(bytes),
            };
            self.unless_closed(done)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.unless_closed(flushed)
    }
}

/// Whether any byte may begin a control character. The byte 0xc2 begins the C1 control characters, but also some others.
fn may_command(bytes: &[u8]) -> bool {
    // The loop has no early exit, so that the compiler compares many bytes at once.
    let begins = |byte: u8| (byte < b' ' && byte != b'\n' && byte != b'\t') || byte == 0x7f || byte == 0xc2;
    bytes.iter().fold(false, |any, byte| any | begins(*byte))
}

/// Returns the text with its control characters escaped, except line ends, tabs and the colours of [`Style`].
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let colour = COLOURS.iter().find(|colour| rest.starts_with(**colour));
        let length = match colour {
            Some(colour) => colour.len(),
            None => next.len_utf8(),
        };
        if colour.is_none() && next.is_control() && next != '\n' && next != '\t' {
            out.extend(next.escape_default());
        } else {
            out.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::Tone;

    #[test]
    fn printed_text_cannot_control_the_terminal() {
        let style = Style { colour: true, ..Style::default() };
        for tone in [Tone::Good, Tone::Odd, Tone::Bad, Tone::Dim] {
            let painted = style.paint(tone, "web");
            assert_eq!(harmless(&painted), painted);
        }
        for (text, expected) in [
            ("a\tb\nc é", "a\tb\nc é"),
            ("\x1b]0;title\x07", r"\u{1b}]0;title\u{7}"),
            ("\x1b[2Jcleared\r", r"\u{1b}[2Jcleared\r"),
            ("\u{9b}2J \x7f", r"\u{9b}2J \u{7f}"),
        ] {
            let mut written = Vec::new();
            let mut out = buffered(&mut written);
            out.write_all(text.as_bytes()).unwrap();
            out.flush().unwrap();
            drop(out);
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut out = buffered(writer);
        out.write_all(&[b'x'; 1 << 20]).unwrap();
        out.flush().unwrap();
    }
}
