//! Columns of text, aligned: widths are known when the last row has come.

use std::fmt::{self, Write as _};

use crate::output::{NONE, Style, Tone};

/// Columns of text. All cells are kept as one text: a state has a hundred thousand rows.
#[derive(Debug, Default)]
pub struct Table {
    text: String,
    cells: Vec<Cell>,
    /// How many cells there are at the end of each row.
    rows: Vec<usize>,
    widths: Vec<usize>,
}

/// One cell of a table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Where it ends in the table's text.
    end: usize,
    /// In characters.
    width: usize,
    tone: Option<Tone>,
}

/// The row that is being added to a table.
#[derive(Debug)]
pub struct Row<'a> {
    table: &'a mut Table,
    column: usize,
}

impl Row<'_> {
    /// One more cell.
    pub fn cell(&mut self, of: impl fmt::Display) -> &mut Self {
        self.toned(of, None)
    }

    /// One more cell, perhaps in a colour.
    pub fn toned(&mut self, of: impl fmt::Display, tone: Option<Tone>) -> &mut Self {
        // Only a `Display` that fails by itself fails here; it has then said all that it says.
        self.written(tone, |text| _ = write!(text, "{of}"))
    }

    /// One more cell, of items with commas between them; a dash if there are none.
    pub fn list<T: fmt::Display>(&mut self, items: impl IntoIterator<Item = T>) -> &mut Self {
        self.toned_list(items, None)
    }

    /// The same, perhaps in a colour.
    pub fn toned_list<T: fmt::Display>(&mut self, items: impl IntoIterator<Item = T>, tone: Option<Tone>) -> &mut Self {
        self.written(tone, |text| {
            let mut comma = "";
            for item in items {
                _ = write!(text, "{comma}{item}");
                comma = ",";
            }
            if comma.is_empty() {
                text.push_str(NONE);
            }
        })
    }

    fn written(&mut self, tone: Option<Tone>, write: impl FnOnce(&mut String)) -> &mut Self {
        let Table { text, cells, widths, .. } = &mut *self.table;
        let start = text.len();
        write(text);
        let of = &text[start..];
        let width = if of.is_ascii() { of.len() } else { of.chars().count() };
        cells.push(Cell { end: text.len(), width, tone });
        match widths.get_mut(self.column) {
            Some(widest) => *widest = width.max(*widest),
            None => widths.push(width),
        }
        self.column += 1;
        self
    }
}

impl Table {
    /// A table with these headings.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = Self::default();
        table.add(|row| headings.into_iter().for_each(|text| _ = row.toned(text, Some(Tone::Dim))));
        table
    }

    /// A table without headings.
    pub fn bare() -> Self {
        Self::default()
    }

    /// One more row, of the cells that `fill` adds.
    pub fn add(&mut self, fill: impl FnOnce(&mut Row<'_>)) {
        fill(&mut Row { table: self, column: 0 });
        self.rows.push(self.cells.len());
    }

    /// One more row.
    pub fn row<T: fmt::Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.add(|row| cells.into_iter().for_each(|text| _ = row.cell(text)));
    }

    /// One more row, some of its cells in a colour.
    pub fn toned(&mut self, cells: impl IntoIterator<Item = (String, Option<Tone>)>) {
        self.add(|row| cells.into_iter().for_each(|(text, tone)| _ = row.toned(text, tone)));
    }

    /// Each row on a line, after as many spaces; the last column is not padded.
    pub fn text(&self, style: Style, indent: usize) -> String {
        let wide = indent + self.widths.iter().sum::<usize>() + 2 * self.widths.len();
        let mut out = String::with_capacity(self.rows.len() * wide);
        let (mut row_start, mut start) = (0, 0);
        for row_end in &self.rows {
            let line = out.len();
            pad(&mut out, indent);
            let last = row_end.saturating_sub(1);
            for (at, cell) in (row_start..*row_end).zip(&self.cells[row_start..*row_end]) {
                let text = &self.text[start..cell.end];
                match cell.tone {
                    Some(tone) if style.colour => out.push_str(&style.paint(tone, text)),
                    _ => out.push_str(text),
                }
                if at < last {
                    pad(&mut out, self.widths[at - row_start] - cell.width + 2);
                }
                start = cell.end;
            }
            row_start = *row_end;
            out.truncate(line + out[line..].trim_end().len());
            out.push('\n');
        }
        out
    }
}

fn pad(out: &mut String, mut width: usize) {
    const SPACES: &str = "                                ";
    while width > 0 {
        let some = width.min(SPACES.len());
        out.push_str(&SPACES[..some]);
        width -= some;
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
