//! `localnet top` and the tables of all commands, in terminals of 80 and 200 columns.

use std::{fmt::Write as _, path::Path};

use crate::{node::Node, terminal::Terminal};

const WIDTHS: [u16; 2] = [80, 200];

/// The rate that the line of a Service shows.
fn rate(screen: &str, service: &str) -> Option<f64> {
    let line = screen.lines().find(|line| line.starts_with(service))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The rate of refused packets that the line of a Service without endpoints shows. Its trend is empty.
fn refused(screen: &str, service: &str) -> Option<f64> {
    let line = screen.lines().find(|line| line.starts_with(service))?;
    line.split_whitespace().nth(5)?.parse().ok()
}

#[test]
fn top_shows_traffic_and_changes_and_explains_a_packet() {
    let node = Node::build().unwrap();
    let [mut narrow, mut wide] = WIDTHS
        .map(|columns| Terminal::start(node.network.node(), &mut node.localnet(&["top"]).unwrap(), columns).unwrap());
    let connect = || node.connect(10).unwrap();
    for terminal in [&mut narrow, &mut wide] {
        terminal.await_text("the Services", || {}, |screen| screen.contains("default/nothing"));
        let counted = |screen: &str| screen.contains("rates: counted") && rate(screen, "default/web") > Some(0.0);
        terminal.await_text("counted rates", connect, counted);
        let refuses = |screen: &str| screen.contains("REFUSED/S") && refused(screen, "default/nothing") > Some(0.0);
        terminal.await_text("refused packets", connect, refuses);
    }
    node.set_weights("a=6,b=3,c=1").unwrap();
    for terminal in [&mut narrow, &mut wide] {
        let changed = |screen: &str| screen.contains("default/web*") && screen.contains("weights: 10.180.0.1 1 -> 6");
        terminal.await_text("the change of the weights", connect, changed);
        assert!(!terminal.text().contains("SHARES") || terminal.screen().size().1.get() == 200);
    }
    picture(&wide, "top.svg");
    for terminal in [&mut narrow, &mut wide] {
        terminal.press("/web\r").unwrap();
        terminal.await_text("the filtered list", || {}, |screen| !screen.contains("default/nothing "));
        terminal.press("\r").unwrap();
        terminal.await_text(
            "the endpoints",
            || {},
            |screen| screen.contains("10.180.0.1:8080") && screen.contains("60 %"),
        );
    }
    picture(&wide, "top-endpoints.svg");
    for terminal in [&mut narrow, &mut wide] {
        terminal.press("\r").unwrap();
        let explained = |screen: &str| screen.contains("verdict") && screen.contains("held");
        terminal.await_text("the path", || {}, explained);
        terminal.press("\x1b[C").unwrap();
        terminal.await_text("the next address", || {}, |screen| screen.contains("NodePort 192.168.0.2:30080/TCP"));
        terminal.press("q").unwrap();
        assert!(terminal.exited().unwrap().success());
        assert!(!terminal.screen().alternate_screen() && !terminal.screen().hide_cursor(), "the terminal is restored");
    }
}

#[test]
fn without_a_terminal_or_with_a_flag_top_prints_a_table() {
    let node = Node::build().unwrap();
    let plain = node.network.node().output(&mut node.localnet(&["top"]).unwrap()).unwrap();
    assert!(plain.starts_with("NAME") && plain.contains("default/web:http") && !plain.contains('\x1b'), "{plain}");
    let mut command = node.localnet(&["top", "--count", "1"]).unwrap();
    let mut terminal = Terminal::start(node.network.node(), &mut command, 80).unwrap();
    assert!(terminal.exited().unwrap().success());
    assert!(terminal.text().starts_with("NAME"), "{}", terminal.text());
}

/// A terminal breaks a longer line in the middle of a cell.
#[test]
fn the_tables_of_all_commands_fit_the_terminal() {
    let node = Node::build().unwrap();
    node.connect(10).unwrap();
    let packet = ["explain", "--from", "pod", "--to", "default/web:http", "-o", "wide"];
    let commands: [&[&str]; 13] = [
        &["get", "services"],
        &["get", "services", "-o", "wide"],
        &["get", "endpoints", "-o", "wide"],
        &["get", "node"],
        &["get", "revision"],
        &["history", "-o", "wide"],
        &["watch", "--count", "1"],
        &["top", "--count", "2"],
        &["top", "--by", "client"],
        &["diff", "--from", "1"],
        &["doctor", "-o", "wide"],
        &["status"],
        &packet,
    ];
    for columns in WIDTHS {
        for arguments in commands {
            let mut command = node.localnet(arguments).unwrap();
            let mut terminal = Terminal::start(node.network.node(), &mut command, columns).unwrap();
            terminal.exited().unwrap();
            let text = uncoloured(&String::from_utf8(terminal.bytes.clone()).unwrap());
            assert!(!text.is_empty(), "{arguments:?}");
            for line in text.lines().filter(|line| is_of_table(line)) {
                assert!(line.chars().count() <= columns.into(), "{arguments:?} at {columns} columns:\n{text}");
            }
        }
    }
}

/// Whether a line belongs to a table. The others are sentences, which the terminal may break anywhere.
fn is_of_table(line: &str) -> bool {
    line.trim_start().contains("  ")
}

fn uncoloured(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| out.push_str(part.split_once('m').map_or("", |(_, rest)| rest)));
    out.replace('\r', "")
}

/// Writes a picture of a screen into the docs if `UPDATE_EXPECT=1`. Otherwise only checks that the docs have one.
fn picture(terminal: &Terminal, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/ui").join(name);
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, svg(terminal.screen())).unwrap();
    }
    assert!(path.exists(), "{} is missing: run the same test with UPDATE_EXPECT=1", path.display());
}

/// A screen as a picture: a text for each run of cells in the same style.
fn svg(screen: &vt100::Screen) -> String {
    const COLOURS: [&str; 8] = ["#1b1f24", "#ff8f9b", "#6fdc8c", "#ffd479", "#8ab8ff", "#d8a8ff", "#7fdbda", "#e6eaef"];
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let (wide, high) = (f32::from(columns) * 7.25 + 20.0, f32::from(rows) * 17.0 + 20.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" font-family=\"monospace\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{high}\" rx=\"8\" fill=\"#101418\"/>\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let style = |at| {
                let cell = screen.cell(row, at).unwrap();
                (cell.fgcolor(), cell.bold(), cell.dim(), cell.inverse())
            };
            let (first, of) = (column, style(column));
            let mut text = String::new();
            while column < columns && style(column) == of {
                let content = screen.cell(row, column).unwrap().contents();
                text.push_str(if content.is_empty() { " " } else { content });
                column += 1;
            }
            let (x, y) = (f32::from(first) * 7.25 + 10.0, f32::from(row) * 17.0 + 24.0);
            let (colour, bold, dim, inverse) = of;
            let length = f32::from(column - first) * 7.25;
            let mut fill = match colour {
                vt100::Color::Idx(index) => COLOURS[usize::from(index) % 8],
                vt100::Color::Default | vt100::Color::Rgb(..) => "#e6eaef",
            };
            if inverse {
                _ = writeln!(
                    out,
                    "<rect x=\"{x}\" y=\"{}\" width=\"{length}\" height=\"17\" fill=\"{fill}\"/>",
                    y - 13.0
                );
                fill = "#101418";
            }
            if text.trim().is_empty() {
                continue;
            }
            let weight = if bold { " font-weight=\"bold\"" } else { "" };
            let opacity = if dim { " opacity=\"0.65\"" } else { "" };
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\" textLength=\"{length}\" xml:space=\"preserve\"{weight}{opacity}>{text}</text>"
            );
        }
    }
    out + "</svg>\n"
}
