//! Draws the live view of `localnet top`. Pure: the same model and size give the same screen.

use std::{collections::VecDeque, fmt::Write as _};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table},
};

use super::{
    input::{Destination, destinations},
    model::{Model, Page, Path, eligible},
    seen::{RatesFrom, Share, shares},
};
use crate::{output::utc, style::COLOURS, traffic::short};

/// From this width on, the list of Services has all its columns.
const WIDE: u16 = 120;
/// The least width of the list of changes, in lines.
const CHANGES: u16 = 6;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const HELP: [(&str, &str); 9] = [
    ("↑ ↓ j k", "select a line, or scroll"),
    ("PgUp PgDn g G", "move by a page, or to the first or last line"),
    ("Enter", "the endpoints of a Service; then the path of a packet"),
    ("Esc", "go back"),
    ("← →", "on a path: another address or port of the Service"),
    ("f", "on a path: another sender"),
    ("/", "list only names, addresses and endpoints with a text"),
    ("s", "sort by another column"),
    ("q Ctrl-C", "exit"),
];

/// The colours.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Whether to use colours. Otherwise, only bold, dim and inverted text tell things apart.
    pub has_colour: bool,
}

impl Theme {
    fn of(self, colour: Color, without: Modifier) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new().add_modifier(without) }
    }

    fn good(self) -> Style {
        self.of(Color::Green, Modifier::empty())
    }

    fn odd(self) -> Style {
        self.of(Color::Yellow, Modifier::BOLD)
    }

    fn bad(self) -> Style {
        self.of(Color::Red, Modifier::BOLD)
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// Draws the view.
pub fn draw(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let area = frame.area();
    let changes = if area.height >= 20 { CHANGES } else { 0 };
    let parts = [Constraint::Length(1), Constraint::Min(3), Constraint::Length(changes), Constraint::Length(1)];
    let [head, body, foot, keys] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(title(model, theme, head.width)), head);
    match &model.page {
        Page::Services => services(frame, body, model, theme),
        Page::Endpoints => endpoints(frame, body, model, theme),
        Page::Path(path) => packet(frame, body, model, path, theme),
    }
    if changes > 0 {
        let line = |change: &super::model::Change| {
            let time = change.time.strftime("%T ").to_string();
            Line::from(vec![Span::styled(time, theme.dim()), Span::raw(change.text.clone())])
        };
        let lines: Vec<Line<'_>> = model.changes.iter().take(usize::from(changes)).map(line).collect();
        frame.render_widget(Paragraph::new(lines).block(titled("Changes", theme)), foot);
    }
    frame.render_widget(Paragraph::new(bottom(model, theme)), keys);
    if model.has_help {
        help(frame, area, theme);
    }
}

fn titled<'a>(text: impl Into<Line<'a>>, theme: Theme) -> Block<'a> {
    Block::new().borders(Borders::TOP).border_style(theme.dim()).title_style(theme.title()).title(text)
}

/// The first line: the node, the revision, and where the numbers come from.
fn title(model: &Model, theme: Theme, width: u16) -> Line<'static> {
    let state = &model.state;
    let from = match (model.seen.rates_from, &model.seen.flows_unknown) {
        (RatesFrom::Counted, _) => "rates: counted".to_owned(),
        (RatesFrom::Flows, _) => "rates: of flows".to_owned(),
        (RatesFrom::Nothing, None) => "no rates yet".to_owned(),
        (RatesFrom::Nothing, Some(why)) => format!("no rates: {why}"),
    };
    let text =
        format!(" · revision {} · {} Services · {from} · {}", state.revision.rev, state.services.len(), utc(model.now));
    let name = format!("localnet top · {}", state.node.name);
    let text: String = text.chars().take(usize::from(width).saturating_sub(name.chars().count())).collect();
    Line::from(vec![Span::styled(name, theme.title()), Span::raw(text)])
}

/// The last line: the filter, a problem, or the keys.
fn bottom(model: &Model, theme: Theme) -> Line<'static> {
    if model.is_typing {
        return Line::from(vec![Span::styled("/", theme.title()), Span::raw(format!("{}▏", model.filter))]);
    }
    if let Some(problem) = &model.problem {
        return Line::styled(problem.replace('\n', " "), theme.bad());
    }
    let keys = match model.page {
        Page::Services => "Enter endpoints  / filter  s sort  ? help  q quit",
        Page::Endpoints => "Enter path of a packet  Esc back  ? help  q quit",
        Page::Path(_) => "← → address  f sender  ↑ ↓ scroll  Esc back  ? help  q quit",
    };
    let mut text = keys.to_owned();
    if model.page == Page::Services {
        text.push_str(&format!("  · by {}", model.sort.name()));
    }
    if !model.filter.is_empty() {
        text.push_str(&format!(" · /{}", model.filter));
    }
    Line::styled(text, theme.dim())
}

/// The part of `count` lines that is visible with `selected` in it: whole pages, so that lines do not move under the reader.
fn page(selected: usize, count: usize, height: usize) -> std::ops::Range<usize> {
    let height = height.max(1);
    let first = selected / height * height;
    first..(first + height).min(count)
}

fn services(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let is_wide = area.width >= WIDE;
    // In a narrow terminal, refused packets take room from the name and the trend. The column appears with the first one, and stays.
    let has_refused = is_wide || model.seen.counts_refused;
    let trend = match (is_wide, has_refused) {
        (true, _) => 24,
        (false, false) => 10,
        (false, true) => 6,
    };
    let listed = model.services();
    let selected = model.selected();
    let visible = page(selected, listed.len(), usize::from(area.height).saturating_sub(1));
    let mut headings = vec!["SERVICE", "CONNS/S", "TREND", "BYTES/S", "FLOWS", "UNANSW.", "ENDPTS"];
    let mut widths = vec![
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(trend),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    if has_refused {
        headings.insert(6, "REFUSED/S");
        widths.insert(6, Constraint::Length(9));
    }
    if is_wide {
        headings.extend(["TYPE", "CLUSTER-IP", "SHARES"]);
        widths.extend([Constraint::Length(12), Constraint::Length(16), Constraint::Fill(2)]);
    }
    let row = |index: usize| {
        let service = listed.get(index)?;
        let measure = model.measure(&service.key);
        let (serve, all) = (eligible(service), service.endpoints.len());
        let mark = if model.is_marked(&service.key) { "*" } else { "" };
        let name = Cell::from(format!("{}{mark}", service.key));
        let name = if mark.is_empty() { name } else { name.style(theme.odd()) };
        let rate = |known: bool, text: String| Cell::from(if known { text } else { "-".to_owned() });
        let unanswered = Cell::from(measure.unanswered.to_string());
        let unanswered = if measure.unanswered > 0 { unanswered.style(theme.odd()) } else { unanswered };
        let counts = if serve == all { serve.to_string() } else { format!("{serve}/{all}") };
        let counts = if serve == 0 { Cell::from(counts).style(theme.bad()) } else { Cell::from(counts) };
        let mut cells = vec![
            name,
            rate(model.has_rates(), format!("{:.1}", measure.connections_per_second)),
            Cell::from(sparkline(model.rates(&service.key), trend.into())).style(theme.good()),
            rate(
                measure.bytes_per_second.is_some() || model.seen.rates_from == RatesFrom::Counted,
                short(measure.bytes_per_second.unwrap_or_default()),
            ),
            Cell::from(measure.flows.to_string()),
            unanswered,
            counts,
        ];
        if has_refused {
            let refused = measure.refused_per_second.unwrap_or_default();
            let cell = rate(model.seen.counts_refused, format!("{refused:.1}"));
            cells.insert(6, if refused > 0.0 { cell.style(theme.bad()) } else { cell });
        }
        if is_wide {
            let address = service.cluster_ips.first().map_or_else(|| "-".to_owned(), ToString::to_string);
            let of = shares(service, model.seen.services.get(&service.key), model.has_rates());
            cells.extend([Cell::from(&*service.kind), Cell::from(address), Cell::from(shares_text(&of))]);
        }
        let row = Row::new(cells);
        Some(if index == selected { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row })
    };
    let rows: Vec<Row<'_>> = visible.filter_map(row).collect();
    let table = Table::new(rows, widths).header(Row::new(headings).style(theme.dim())).column_spacing(1);
    frame.render_widget(table, area);
}

/// The greatest measured shares in words.
fn shares_text(shares: &[Share]) -> String {
    let mut with: Vec<(&Share, f64)> = shares.iter().filter_map(|share| Some((share, share.measured?))).collect();
    with.sort_by(|one, other| other.1.total_cmp(&one.1));
    let texts = with.iter().take(4).map(|(share, part)| format!("{} {}", share.endpoint.ip(), percent(*part)));
    texts.collect::<Vec<_>>().join("  ")
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// The last rates as bars, the newest at the right.
fn sparkline(rates: impl DoubleEndedIterator<Item = f64>, width: usize) -> String {
    let mut shown: VecDeque<f64> = VecDeque::new();
    for rate in rates.rev().take(width) {
        shown.push_front(rate);
    }
    let most = shown.iter().copied().fold(0.0, f64::max);
    let bar = |rate: &f64| match *rate > 0.0 {
        // The greatest rate gives the last of the eight bars.
        true => BARS[((rate / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
        false => ' ',
    };
    let bars: String = shown.iter().map(bar).collect();
    format!("{bars:>width$}")
}

/// The measured share as a bar, with a line at the expected share.
fn bar(share: &Share, width: usize) -> String {
    let place = |part: f64| (part * width as f64).round() as usize;
    let (filled, expected) = (place(share.measured.unwrap_or_default()), place(share.expected));
    let cell = |at: usize| match (at < filled, at + 1 == expected) {
        (_, true) => '│',
        (true, false) => '█',
        (false, false) => '·',
    };
    (0..width).map(cell).collect()
}

fn endpoints(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(service) = model.service() else {
        frame.render_widget(Paragraph::new("the Service was deleted"), area);
        return;
    };
    let addresses: Vec<String> = destinations(&model.state, service)
        .iter()
        .map(|Destination { kind, to, protocol }| format!("{kind} {to}/{protocol}"))
        .collect();
    let block = titled(format!("{} ", service.key), theme);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [facts, list] = Layout::vertical([Constraint::Length(2), Constraint::Min(2)]).areas(inner);
    let rate = model.measure(&service.key);
    let mut first = format!(
        "{} · {:.1} connections/s · {} flows, {} unanswered, {} draining",
        service.kind, rate.connections_per_second, rate.flows, rate.unanswered, rate.draining
    );
    if model.seen.counts_refused {
        _ = write!(first, " · {:.1} refused packets/s", rate.refused_per_second.unwrap_or_default());
    }
    let lines = vec![Line::raw(first), Line::styled(addresses.join("  "), theme.dim())];
    frame.render_widget(Paragraph::new(lines), facts);
    let of = shares(service, model.seen.services.get(&service.key), model.has_rates());
    let is_wide = area.width >= WIDE;
    let bars = if is_wide { 40 } else { 12 };
    let mut headings = vec!["ENDPOINT", "WEIGHT", "SHARE", "OF", "", "CONNS/S", "FLOWS"];
    let mut widths = vec![
        Constraint::Fill(1),
        Constraint::Length(6),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(bars),
        Constraint::Length(7),
        Constraint::Length(6),
    ];
    if is_wide {
        headings.extend(["BYTES/S", "PORT", "SERVES"]);
        widths.extend([Constraint::Length(7), Constraint::Length(12), Constraint::Length(30)]);
    }
    let row = |share: &Share| {
        let off = share.measured.is_some_and(|measured| (measured - share.expected).abs() > 0.1);
        let measured = Cell::from(share.measured.map_or_else(|| "-".to_owned(), percent));
        let mut cells = vec![
            Cell::from(share.endpoint.to_string()),
            Cell::from(share.weight.to_string()),
            if off { measured.style(theme.odd()) } else { measured },
            Cell::from(percent(share.expected)),
            Cell::from(bar(share, bars.into())).style(theme.good()),
            Cell::from(format!("{:.1}", share.measure.connections_per_second)),
            Cell::from(share.measure.flows.to_string()),
        ];
        if is_wide {
            let bytes = share.measure.bytes_per_second.map_or_else(|| "-".to_owned(), short);
            let port = share.port.clone().unwrap_or_default();
            let place = if share.local { format!("{} (this node)", share.serves) } else { share.serves.clone() };
            cells.extend([Cell::from(bytes), Cell::from(port), Cell::from(place)]);
        }
        let row = Row::new(cells);
        if share.weight == 0 { row.style(theme.dim()) } else { row }
    };
    let height = usize::from(list.height).saturating_sub(1);
    let rows: Vec<Row<'_>> = of.iter().skip(model.scroll).take(height).map(row).collect();
    let table = Table::new(rows, widths).header(Row::new(headings).style(theme.dim())).column_spacing(1);
    frame.render_widget(table, list);
}

fn packet(frame: &mut Frame<'_>, area: Rect, model: &Model, path: &Path, theme: Theme) {
    let question = &path.question;
    let all = model.service().map(|service| destinations(&model.state, service)).unwrap_or_default();
    let kind = all.get(path.destination).map_or("", |destination| destination.kind);
    let place = format!("{} of {}", path.destination + 1, all.len());
    let title = format!("From {} to {} {}/{} ({place}) ", question.from.name(), kind, question.to, question.protocol);
    let lines = match &path.answer {
        None => vec![Line::raw("reading …")],
        Some(Err(why)) => vec![Line::styled(why.clone(), theme.bad())],
        Some(Ok(text)) => text.lines().skip(model.scroll).map(|line| painted(line, theme)).collect(),
    };
    frame.render_widget(Paragraph::new(lines).block(titled(title, theme)), area);
}

/// Turns the colours of [`crate::style::Style::paint`] into spans.
fn painted(line: &str, theme: Theme) -> Line<'static> {
    let mut spans = Vec::new();
    let (mut rest, mut style) = (line, Style::new());
    while !rest.is_empty() {
        let codes = COLOURS.iter().filter_map(|code| Some((rest.find(code)?, *code)));
        let (at, code) = codes.min().unwrap_or((rest.len(), ""));
        if at > 0 {
            spans.push(Span::styled(rest[..at].to_owned(), style));
        }
        style = match COLOURS.iter().position(|of| *of == code) {
            Some(0) => theme.good(),
            Some(1) => theme.odd(),
            Some(2) => theme.bad(),
            Some(3) => theme.dim(),
            _ => Style::new(),
        };
        rest = &rest[at + code.len()..];
    }
    Line::from(spans)
}

fn help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let height = HELP.len() as u16 + 2;
    let place = area.centered(Constraint::Max(76), Constraint::Max(height));
    let line = |(keys, text): &(&str, &str)| {
        Line::from(vec![Span::styled(format!(" {keys:<14} "), theme.title()), Span::raw((*text).to_owned())])
    };
    frame.render_widget(Clear, place);
    let block = Block::new().borders(Borders::ALL).title_style(theme.title()).title("Keys");
    frame.render_widget(Paragraph::new(HELP.iter().map(line).collect::<Vec<_>>()).block(block), place);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};

    use super::*;
    use localnet_proto::ServiceKey;

    use crate::top::{
        input::Key,
        model::tests::{STATE, model, seen, state},
        seen::{Measure, OfService},
    };

    fn drawn(model: &Model, width: u16, has_colour: bool) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|frame| draw(frame, model, Theme { has_colour })).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(model: &Model, width: u16) -> Vec<String> {
        let buffer = drawn(model, width, false);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..24).map(line).collect()
    }

    #[test]
    fn services_fit_narrow_and_wide_terminals() {
        let mut model = model();
        model.set_state(state(2, &STATE.replace("weight: 3", "weight: 9")));
        let narrow = lines(&model, 80);
        assert_eq!(narrow[0], "localnet top · node-a · revision 2 · 2 Services · rates: counted · 2026-11-27T12");
        assert_eq!(narrow[1], "SERVICE                        CONNS/S TREND      BYTES/S FLOWS  UNANSW. ENDPTS");
        assert_eq!(narrow[2], "shop/web*                      40.0             █ 40.0K   4      0       2");
        assert_eq!(narrow[3], "shop/api                       0.0                0       0      0       0");
        assert!(narrow[17].starts_with("Changes──"), "{}", narrow[17]);
        assert!(narrow[18].starts_with("12:00:00 shop/web: weights: 10.0.0.1 3 -> 9"), "{}", narrow[18]);
        assert_eq!(narrow[23], "Enter endpoints  / filter  s sort  ? help  q quit  · by connections/s");
        let wide = lines(&model, 200);
        assert!(wide[1].contains("TYPE         CLUSTER-IP       SHARES"), "{}", wide[1]);
        assert!(wide[2].ends_with("NodePort     10.96.0.1        10.0.0.1 75 %  10.0.0.2 25 %"), "{}", wide[2]);
    }

    #[test]
    fn refused_packets_have_a_column_once_the_backend_has_counted_one() {
        let mut model = model();
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wide = lines(&model, 200);
        assert_eq!((cells(&wide[1])[6].as_str(), cells(&wide[2])[6].as_str()), ("REFUSED/S", "-"));
        let mut seen = seen(30.0, 10.0);
        let refuses = Measure { refused_per_second: Some(2.5), ..Measure::default() };
        let api = OfService { all: refuses, ..OfService::default() };
        seen.services.insert(ServiceKey::new("shop", "api"), api);
        seen.counts_refused = true;
        model.set_seen(seen);
        let narrow = lines(&model, 80);
        assert_eq!(narrow[1], "SERVICE                  CONNS/S TREND  BYTES/S FLOWS  UNANSW. REFUSED/S ENDPTS");
        assert_eq!(narrow[2], "shop/web                 40.0        ██ 40.0K   4      0       0.0       2");
        assert_eq!(narrow[3], "shop/api                 0.0            0       0      0       2.5       0");
        model.press(Key::Down);
        model.press(Key::Enter);
        assert!(lines(&model, 200)[2].ends_with("draining · 2.5 refused packets/s"), "{}", lines(&model, 200)[2]);
    }

    #[test]
    fn endpoints_show_their_expected_and_measured_share() {
        let mut model = model();
        model.set_state(state(2, &STATE.replace("weight: 3", "weight: 9")));
        model.press(Key::Enter);
        let narrow = lines(&model, 80);
        assert!(narrow[1].starts_with("shop/web ──"), "{}", narrow[1]);
        assert_eq!(narrow[2], "NodePort · 40.0 connections/s · 4 flows, 0 unanswered, 0 draining");
        assert_eq!(narrow[3], "ClusterIP 10.96.0.1:80/TCP  NodePort 192.168.0.2:30080/TCP");
        assert_eq!(narrow[5], "10.0.0.1:8080                     9      75 %  90 %  █████████·│· 30.0    4");
        assert_eq!(narrow[6], "10.0.0.2:8080                     1      25 %  10 %  │██········· 10.0    4");
        let wide = lines(&model, 200);
        assert!(wide[5].contains("internal,external (this node)"), "{}", wide[5]);
    }

    #[test]
    fn a_path_keeps_its_colours_and_scrolls() {
        let mut model = model();
        model.press(Key::Enter);
        model.press(Key::Enter);
        assert_eq!(lines(&model, 80)[2], "reading …");
        let Page::Path(path) = &model.page else { panic!("{:?}", model.page) };
        let text = "first\n  \u{1b}[32mheld\u{1b}[0m  chain\n\u{1b}[31mMISSING\u{1b}[0m\n";
        model.explained(path.question, Ok(text.to_owned()));
        let screen = lines(&model, 80);
        assert!(screen[1].starts_with("From pod to ClusterIP 10.96.0.1:80/TCP (1 of 2) ─"), "{}", screen[1]);
        assert_eq!(screen[2..5], ["first", "  held  chain", "MISSING"]);
        let buffer = drawn(&model, 80, true);
        assert_eq!((buffer[(2, 3)].fg, buffer[(8, 3)].fg, buffer[(0, 4)].fg), (Color::Green, Color::Reset, Color::Red));
        let plain = drawn(&model, 80, false);
        assert!(plain.content().iter().all(|cell| cell.fg == Color::Reset), "NO_COLOR");
        model.press(Key::Down);
        assert_eq!(lines(&model, 80)[2], "  held  chain");
    }

    #[test]
    fn text_cannot_control_the_terminal_and_help_fits() {
        let mut model = model();
        model.problem = Some("\u{1b}[2Jthe brain\nis gone".to_owned());
        assert_eq!(lines(&model, 80)[23], "[2Jthe brain is gone");
        model.press(Key::Char('?'));
        let screen = lines(&model, 80).join("\n");
        for (_, text) in HELP {
            assert!(screen.contains(text), "{text}:\n{screen}");
        }
        model.press(Key::Char('q'));
        assert!(!model.has_help, "any key closes the help");
    }

    #[test]
    fn pages_and_bars_have_their_limits() {
        assert_eq!((page(0, 3, 10), page(10, 25, 10), page(24, 25, 10), page(0, 0, 0)), (0..3, 10..20, 20..25, 0..0));
        assert_eq!(sparkline([0.0, 1.0, 4.0, 8.0].into_iter(), 6), "   ▁▄█");
        assert_eq!(sparkline([9.0, 8.0, 4.0].into_iter(), 2), "█▄");
        assert_eq!(sparkline(std::iter::empty(), 3), "   ");
    }
}
