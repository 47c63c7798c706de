//! What is printed: aligned tables for people, JSON and YAML with stable fields for programs, names for other commands.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

/// How the answer is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, for people
    #[default]
    Table,
    /// The same with more columns
    Wide,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
    /// Names alone, one on a line
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

/// How to print for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// More columns.
    pub wide: bool,
    /// With colour.
    pub colour: bool,
}

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Worth a look.
    Odd,
    /// Wrong.
    Bad,
    /// Of little weight.
    Dim,
}

impl Style {
    /// A text in the colour of what it says.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Odd => "33",
            Tone::Bad => "31",
            Tone::Dim => "2",
        };
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// An answer that can be printed in every format. What is serialized is stable: fields are only added.
pub trait Show: Serialize {
    /// For people.
    fn human(&self, style: Style) -> String;
    /// The names of what it is about.
    fn names(&self) -> Vec<String>;
}

/// Columns of text.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<(String, Option<Tone>)>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(|text| (text.to_owned(), Some(Tone::Dim))).collect()] }
    }

    /// A table without headings.
    pub fn bare() -> Self {
        Self::default()
    }

    /// One more row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|text| (text.into(), None)).collect());
    }

    /// One more row, some of its cells in a colour.
    pub fn toned(&mut self, cells: impl IntoIterator<Item = (String, Option<Tone>)>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Each row on a line, after as many spaces; the last column is not padded.
    pub fn text(&self, style: Style, indent: usize) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, (text, _)) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        let mut out = String::with_capacity(self.rows.len() * (widths.iter().sum::<usize>() + 2 * widths.len()));
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (at, (text, tone)) in row.iter().enumerate() {
                match tone {
                    Some(tone) => line.push_str(&style.paint(*tone, text)),
                    None => line.push_str(text),
                }
                if at + 1 < row.len() {
                    line.extend(std::iter::repeat_n(' ', widths[at] - text.chars().count() + 2));
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// The answer in a format.
///
/// # Errors
/// It cannot be written as JSON or YAML.
pub fn render(answer: &impl Show, format: Format, colour: bool) -> anyhow::Result<String> {
    Ok(match format {
        Format::Table => answer.human(Style { wide: false, colour }),
        Format::Wide => answer.human(Style { wide: true, colour }),
        Format::Json => serde_json::to_string_pretty(answer).context("writing JSON")? + "\n",
        Format::Yaml => serde_saphyr::to_string(answer).context("writing YAML")?,
        Format::Name => answer.names().iter().flat_map(|name| [name, "\n"]).collect(),
    })
}

/// Whether standard output is to be coloured.
pub fn is_coloured(colour: Colour) -> bool {
    match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
    }
}

/// Prints at once. A reader that has seen enough, as `head` has, is no error.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_space_at_their_end() {
        let mut table = Table::new(["NAME", "PORTS"]);
        table.row(["a/long-name", "80"]);
        table.row(["é/b", ""]);
        assert_eq!(table.text(Style::default(), 0), "NAME         PORTS\na/long-name  80\né/b\n");
        assert_eq!(table.text(Style::default(), 2).lines().next(), Some("  NAME         PORTS"));
    }

    #[test]
    fn colour_does_not_move_columns() {
        let mut table = Table::bare();
        table.toned([("yes".to_owned(), Some(Tone::Good)), ("x".to_owned(), None)]);
        table.toned([("no".to_owned(), Some(Tone::Bad)), ("y".to_owned(), None)]);
        let coloured = table.text(Style { wide: false, colour: true }, 0);
        assert_eq!(coloured, "\x1b[32myes\x1b[0m  x\n\x1b[31mno\x1b[0m   y\n");
        assert_eq!(table.text(Style::default(), 0), "yes  x\nno   y\n");
    }
}
