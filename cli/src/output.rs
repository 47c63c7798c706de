//! Prints answers: aligned tables for people, JSON and YAML with stable fields for programs, names for other commands.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

use crate::{
    json,
    style::{COLOURS, Style},
    yaml,
};

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

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// An answer that can be printed in every format. Its serialized fields are stable: fields are only added.
pub trait Show: Serialize {
    /// Returns the answer as text for people.
    fn human(&self, style: Style) -> String;
    /// Returns the names of the objects in the answer.
    fn names(&self) -> Vec<String>;
}

/// A value that can be printed in a given format: any `Show`, and long lists.
pub trait Print {
    /// Writes the value.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written or the value cannot be serialized.
    fn print(&self, format: Format, style: Style, out: &mut impl io::Write) -> anyhow::Result<()>;
}

impl<A: Show> Print for A {
    fn print(&self, format: Format, style: Style, out: &mut impl io::Write) -> anyhow::Result<()> {
        match format {
            Format::Table => out.write_all(self.human(Style { wide: false, ..style }).as_bytes())?,
            Format::Wide => out.write_all(self.human(Style { wide: true, ..style }).as_bytes())?,
            Format::Json => json::write(out, self).context("writing JSON")?,
            Format::Yaml => yaml::write(out, self).context("writing YAML")?,
            Format::Name => self.names().iter().try_for_each(|name| writeln!(out, "{name}"))?,
        }
        Ok(())
    }
}

/// Returns the answer in a format.
///
/// # Errors
/// Returns an error if the answer cannot be serialized as JSON or YAML.
pub fn render(answer: &impl Print, format: Format, colour: bool) -> anyhow::Result<String> {
    let mut text = Vec::new();
    answer.print(format, Style { colour, ..Style::default() }, &mut text)?;
    Ok(String::from_utf8(text)?)
}

/// Whether standard output is coloured.
pub fn is_coloured(colour: Colour) -> bool {
    match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
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
    let mut out = Out::new(io::stdout().lock());
    write(&mut out)?;
    out.flush().context("writing to standard output")
}

/// The output of an answer. It writes large blocks and stops once the reader has closed the pipe.
///
/// Reports of backends and values of a state must not control the terminal. Of the control characters, only line ends, tabs and
/// our own colours pass; all others are escaped.
#[derive(Debug)]
pub struct Out<W: io::Write> {
    to: UntilClosed<W>,
    /// The buffered text. A call of `write_all` never ends within a character or a colour.
    text: Vec<u8>,
}

/// How many bytes are buffered before they are written.
const ENOUGH: usize = 64 << 10;

impl<W: io::Write> Out<W> {
    /// Creates an output that writes to `to`.
    pub fn new(to: W) -> Self {
        Self { to: UntilClosed { to, closed: false }, text: Vec::with_capacity(2 * ENOUGH) }
    }

    /// Writes the buffer.
    fn pass(&mut self) -> io::Result<()> {
        let text = std::mem::take(&mut self.text);
        let passed = self.pass_all(&text);
        self.text = text;
        self.text.clear();
        passed
    }

    fn pass_all(&mut self, text: &[u8]) -> io::Result<()> {
        match may_command(text) {
            true => self.to.write_all(harmless(&String::from_utf8_lossy(text)).as_bytes()),
            false => self.to.write_all(text),
        }
    }
}

impl<W: io::Write> io::Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // A long text is written directly, which saves a copy.
        if bytes.len() >= ENOUGH / 4 {
            self.pass()?;
            return self.pass_all(bytes);
        }
        self.text.extend_from_slice(bytes);
        if self.text.len() >= ENOUGH { self.pass() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass()?;
        self.to.flush()
    }
}

/// Whether any byte may begin a control character. Those of C1 begin with 0xc2, as do some other characters.
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

#[derive(Debug)]
struct UntilClosed<W> {
    to: W,
    closed: bool,
}

impl<W: io::Write> UntilClosed<W> {
    fn unless_closed<T>(&mut self, given: io::Result<T>, else_: T) -> io::Result<T> {
        match given {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(else_)
            }
            given => given,
        }
    }
}

impl<W: io::Write> io::Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        let written = self.to.write(bytes);
        self.unless_closed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let flushed = self.to.flush();
        self.unless_closed(flushed, ())
    }
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
            let mut out = Out::new(&mut written);
            write!(out, "{text}").unwrap();
            out.flush().unwrap();
            drop(out);
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut out = Out::new(writer);
        out.write_all(&[b'x'; 1 << 20]).unwrap();
        out.flush().unwrap();
    }
}
