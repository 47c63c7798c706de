//! Tables with aligned columns. The widths are computed once all rows are added.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use crate::style::{NONE, Style, Tone};

/// A table with aligned columns. One string contains the text of all cells, so that a hundred thousand rows need little time and
/// memory.
#[derive(Debug, Default)]
pub struct Table {
    text: String,
    cells: Vec<Cell>,
    /// For each row: the number of cells in this row and all earlier rows.
    rows: Vec<usize>,
    widths: Vec<usize>,
    /// Whether the first row contains the headings.
    headed: bool,
    /// Whether the last column is prose. On a narrow terminal prose is wrapped, while other columns are cut.
    prose: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The end of the cell's text in the table's text, in bytes.
    end: usize,
    /// The width in characters.
    width: usize,
    tone: Option<Tone>,
}

/// A row to which cells are added.
#[derive(Debug)]
pub struct Row<'a> {
    table: &'a mut Table,
    column: usize,
}

impl Row<'_> {
    /// Adds a cell.
    pub fn cell(&mut self, of: impl fmt::Display) -> &mut Self {
        self.toned(of, None)
    }

    /// Adds a cell with an optional colour.
    pub fn toned(&mut self, of: impl fmt::Display, tone: Option<Tone>) -> &mut Self {
        // The write fails only if the `Display` implementation fails. The cell then contains the text that was written so far.
        self.written(tone, |text| _ = write!(text, "{of}"))
    }

    /// Adds a cell with a list separated by commas, or a dash if the list is empty.
    pub fn list<T: fmt::Display>(&mut self, items: impl IntoIterator<Item = T>) -> &mut Self {
        self.toned_list(items, None)
    }

    /// Adds a cell with a list, like [`list`](Self::list), and with an optional colour.
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

/// Cuts a text to a width and marks the cut.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    let mut shown: String = text.chars().take(width.saturating_sub(1)).collect();
    shown.push('…');
    Cow::Owned(shown)
}

/// Wraps a text between words and indents all lines but the first by `place` spaces. It does not break long words.
fn wrapped(text: &str, width: usize, place: usize) -> Cow<'_, str> {
    let mut lines = String::with_capacity(text.len());
    let mut used = 0;
    for word in text.split(' ') {
        let wide = word.chars().count();
        if used > 0 && used + 1 + wide > width {
            lines.push('\n');
            pad(&mut lines, place);
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += wide;
    }
    Cow::Owned(lines)
}

/// The minimum width of a narrowed column, in characters.
const NARROWEST: usize = 8;

/// Narrows the widest columns until a row fits. If the row still does not fit, the last columns are omitted.
fn fit(widths: &mut Vec<usize>, room: usize, prose: bool) {
    let needed = |widths: &[usize]| widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    if let Some(last) = widths.len().checked_sub(1).filter(|_| prose) {
        let others = needed(&widths[..last]) + 2;
        widths[last] = widths[last].min(room.saturating_sub(others).max(2 * NARROWEST));
    }
    while needed(widths) > room {
        let Some(widest) = widths.iter().copied().max().filter(|widest| *widest > NARROWEST) else {
            if widths.len() <= 1 {
                return;
            }
            widths.pop();
            continue;
        };
        let second = widths.iter().copied().filter(|width| *width < widest).max().unwrap_or_default();
        let count = widths.iter().filter(|width| **width == widest).count();
        let over = (needed(widths) - room).div_ceil(count);
        let narrower = (widest - over.min(widest)).max(second).max(NARROWEST);
        widths.iter_mut().filter(|width| **width == widest).for_each(|width| *width = narrower);
    }
}

impl Table {
    /// Creates a table with these headings.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = Self { headed: true, ..Self::default() };
        table.add(|row| headings.into_iter().for_each(|text| _ = row.toned(text, Some(Tone::Dim))));
        table
    }

    /// Creates a table without headings.
    pub fn bare() -> Self {
        Self::default()
    }

    /// Creates a table without headings whose last column is prose.
    pub fn of_prose() -> Self {
        Self { prose: true, ..Self::default() }
    }

    /// Adds a row with the cells that `fill` adds.
    pub fn add(&mut self, fill: impl FnOnce(&mut Row<'_>)) {
        fill(&mut Row { table: self, column: 0 });
        self.rows.push(self.cells.len());
    }

    /// Adds a row.
    pub fn row<T: fmt::Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.add(|row| cells.into_iter().for_each(|text| _ = row.cell(text)));
    }

    /// Returns the table with each row on a line after `indent` spaces. The last column is not padded. Columns that do not fit
    /// are omitted.
    pub fn text(&self, style: Style, indent: usize) -> String {
        let mut widths = self.widths.clone();
        if let Some(width) = style.width {
            fit(&mut widths, width.saturating_sub(indent), self.prose);
        }
        let line = indent + widths.iter().sum::<usize>() + 2 * widths.len();
        let mut out = String::with_capacity(self.rows.len() * line);
        let (mut first, mut start) = (0, 0);
        for (number, end) in self.rows.iter().enumerate() {
            let row = &self.cells[first..*end];
            first = *end;
            if number == 0 && self.headed && style.no_headings {
                start = row.last().map_or(start, |cell| cell.end);
                continue;
            }
            let line = out.len();
            pad(&mut out, indent);
            let mut place = indent;
            for (column, cell) in row.iter().enumerate() {
                let text = &self.text[start..cell.end];
                start = cell.end;
                let Some(width) = widths.get(column).copied() else { continue };
                let is_last = column + 1 == row.len();
                let shown = match cell.width > width {
                    true if self.prose && is_last => wrapped(text, width, place),
                    true => cut(text, width),
                    false => Cow::Borrowed(text),
                };
                match cell.tone {
                    Some(tone) if style.colour => out.push_str(&style.paint(tone, &shown)),
                    _ => out.push_str(&shown),
                }
                if !is_last {
                    pad(&mut out, (width + 2).saturating_sub(cell.width.min(width)));
                    place += width + 2;
                }
            }
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
        table.add(|row| _ = row.toned("yes", Some(Tone::Good)).cell("x"));
        table.add(|row| _ = row.toned("no", Some(Tone::Bad)).cell("y"));
        let coloured = table.text(Style { colour: true, ..Style::default() }, 0);
        assert_eq!(coloured, "\x1b[32myes\x1b[0m  x\n\x1b[31mno\x1b[0m   y\n");
        assert_eq!(table.text(Style::default(), 0), "yes  x\nno   y\n");
    }

    fn on_terminal(width: usize) -> Style {
        Style { width: Some(width), ..Style::default() }
    }

    /// If a row is wider than the terminal, the terminal breaks it within a cell and it becomes unreadable.
    #[test]
    fn no_row_is_wider_than_the_terminal() {
        let mut table = Table::new(["NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORTS", "ENDPOINTS"]);
        table.row([
            "kube-system",
            "kube-dns",
            "LoadBalancer",
            "10.96.0.10,fd00:10:96::a",
            "192.0.2.10,2001:db8::10",
            "53/UDP,53/TCP,9153/TCP",
            "2/3",
        ]);
        table.row(["é", "b", "c", "d", "e", "f", "0"]);
        for width in [40, 60, 80, 100] {
            let text = table.text(on_terminal(width), 0);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert_eq!(text.lines().count(), 3);
        }
        let text = table.text(on_terminal(80), 0);
        assert_eq!(
            text.lines().nth(1),
            Some("kube-syst…  kube-dns  LoadBalan…  10.96.0.1…  192.0.2.1…  53/UDP,53…  2/3")
        );
        assert_eq!(table.text(on_terminal(200), 0), table.text(Style::default(), 0), "if everything fits");
        assert_eq!(
            table.text(on_terminal(20), 0).lines().next(),
            Some("NAMESPA…  NAME"),
            "columns that do not fit are cut"
        );
    }

    #[test]
    fn prose_wraps_within_its_column() {
        let mut table = Table::of_prose();
        table.row(["ok", "state", "3 Services, each with an endpoint"]);
        let text = table.text(on_terminal(30), 0);
        assert_eq!(text, "ok  state  3 Services, each\n           with an endpoint\n");
        assert_eq!(table.text(Style::default(), 0), "ok  state  3 Services, each with an endpoint\n");
    }

    #[test]
    fn headings_can_be_omitted() {
        let mut table = Table::new(["NAME"]);
        table.row(["web"]);
        let style = Style { no_headings: true, ..Style::default() };
        assert_eq!(table.text(style, 0), "web\n");
        let mut bare = Table::bare();
        bare.row(["web"]);
        assert_eq!(bare.text(style, 0), "web\n");
    }
}
