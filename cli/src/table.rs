//! Columns of text, aligned: widths are known when the last row has come.

use std::{
    convert::Infallible,
    fmt::{self, Write as _},
    io,
};

use crate::{
    output::{NONE, Style, Tone},
    pieces,
};

/// So many rows are made by one thread at a time.
const BLOCK: usize = 512;

/// Columns of text: a state has a hundred thousand rows.
#[derive(Debug, Default)]
pub struct Table {
    blocks: Vec<Block>,
    widths: Vec<usize>,
}

/// Some rows of a table. All their cells are kept as one text.
#[derive(Debug, Default)]
struct Block {
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

/// The row that is being added.
#[derive(Debug)]
pub struct Row<'a> {
    block: &'a mut Block,
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
                text.push_str(comma);
                _ = write!(text, "{item}");
                comma = ",";
            }
            if comma.is_empty() {
                text.push_str(NONE);
            }
        })
    }

    fn written(&mut self, tone: Option<Tone>, write: impl FnOnce(&mut String)) -> &mut Self {
        let Block { text, cells, widths, .. } = &mut *self.block;
        let start = text.len();
        write(text);
        let of = &text[start..];
        let width = if of.is_ascii() { of.len() } else { of.chars().count() };
        cells.push(Cell { end: text.len(), width, tone });
        widen(widths, self.column, width);
        self.column += 1;
        self
    }
}

impl Block {
    fn add(&mut self, fill: impl FnOnce(&mut Row<'_>)) {
        fill(&mut Row { block: self, column: 0 });
        self.rows.push(self.cells.len());
    }

    fn text(&self, widths: &[usize], style: Style, indent: usize) -> String {
        let wide = indent + widths.iter().sum::<usize>() + 2 * widths.len();
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
                    pad(&mut out, widths[at - row_start] - cell.width + 2);
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
        let mut block = self.blocks.pop().unwrap_or_default();
        block.add(fill);
        self.push(block);
    }

    /// Rows of many items, made by several threads.
    pub fn add_all<T: Sync>(&mut self, items: &[T], fill: impl Fn(&mut Row<'_>, &T) + Sync) {
        let rows = |items: &[T]| {
            let mut block = Block::default();
            items.iter().for_each(|item| block.add(|row| fill(row, item)));
            block
        };
        let Ok(()) = pieces::in_order(items, BLOCK, rows, |block| {
            self.push(block);
            Ok::<_, Infallible>(())
        });
    }

    fn push(&mut self, block: Block) {
        block.widths.iter().enumerate().for_each(|(column, width)| widen(&mut self.widths, column, *width));
        self.blocks.push(block);
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
        self.blocks.iter().map(|block| block.text(&self.widths, style, indent)).collect()
    }

    /// Writes the same, made by several threads.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, style: Style, out: &mut impl io::Write) -> io::Result<()> {
        let text = |blocks: &[Block]| blocks.iter().map(|block| block.text(&self.widths, style, 0)).collect::<String>();
        pieces::in_order(&self.blocks, 1, text, |text| out.write_all(text.as_bytes()))
    }
}

fn widen(widths: &mut Vec<usize>, column: usize, width: usize) {
    match widths.get_mut(column) {
        Some(widest) => *widest = width.max(*widest),
        None => widths.push(width),
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

    #[test]
    fn rows_of_several_threads_are_those_of_one() {
        let numbers: Vec<usize> = (0..5 * BLOCK + 3).map(|number| number * number).collect();
        let fill = |row: &mut Row<'_>, number: &usize| _ = row.cell(number).list([number % 7, 1]).cell("end");
        let (mut one, mut several) = (Table::new(["SQUARE"]), Table::new(["SQUARE"]));
        numbers.iter().for_each(|number| one.add(|row| fill(row, number)));
        several.add_all(&numbers, fill);
        let mut written = Vec::new();
        several.write(Style::default(), &mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), one.text(Style::default(), 0));
    }
}
