//! The style of tables: their colours, their width, and the sign for an empty value.

/// The sign for an empty value in tables.
pub const NONE: &str = "-";

/// The style of output for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether tables have the additional columns of the format `wide`.
    pub wide: bool,
    /// Whether to use colour.
    pub colour: bool,
    /// The terminal's width in columns. No row of a table is wider. `None` means unlimited.
    pub width: Option<usize>,
    /// Whether tables have no headings.
    pub no_headings: bool,
}

/// Whether a text reports something good or bad. This determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Correct.
    Good,
    /// Unusual; may be a problem.
    Odd,
    /// Wrong.
    Bad,
    /// Unimportant.
    Dim,
}

impl Style {
    /// Returns a text in the colour of its tone.
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

/// The sequences that [`Style::paint`] writes.
pub(crate) const COLOURS: [&str; 5] = ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"];
