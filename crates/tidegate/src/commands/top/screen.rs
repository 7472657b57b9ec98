//! The live view: a table that fills the terminal, and keys that sort it.

use super::Sample;
use super::rows::{self, COLUMNS, Order, Row};
use crate::client::Client;
use crate::commands::window::Window;
use crate::exit::Failure;
use crate::format;
use crate::table::Align;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Table};
use std::time::Duration;
use tokio::sync::mpsc;

const KEYS: &str = "q quit   sort by: n name  t tx  r rx  d delay  m misses  w throttled  c worker";

struct View {
    rows: Vec<Row>,
    order: Order,
    /// Why the rows could not be refreshed.
    trouble: Option<String>,
    socket: String,
}

/// Shows the view until `q`, Escape or Ctrl-C, and then restores the terminal.
///
/// # Errors
/// The agent cannot be reached at the start. A later failure appears on the screen instead.
pub async fn run(client: &Client, interval: Duration, window: Window) -> Result<(), Failure> {
    let mut last = Sample::read_for_display(client, window).await?;
    let mut view = View {
        rows: last.rows_since(&last),
        order: Order::Name,
        trouble: None,
        socket: format::path(client.socket()),
    };
    let mut terminal = ratatui::try_init().map_err(|e| Failure::failed(format!("no terminal: {e}")))?;
    let restore = Restore;
    let mut keys = keys();
    // The first interval is short, so that rates appear soon.
    let mut due = tokio::time::Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        rows::sort(&mut view.rows, view.order);
        terminal
            .draw(|frame| draw(frame, &view))
            .map_err(|e| Failure::failed(format!("no terminal: {e}")))?;
        tokio::select! {
            key = keys.recv() => match key {
                Some(Key::Quit) | None => break,
                Some(Key::Letter(letter)) => view.order = Order::of_key(letter).unwrap_or(view.order),
                Some(Key::Redraw) => {}
            },
            () = tokio::time::sleep_until(due) => {
                due = tokio::time::Instant::now() + interval;
                match Sample::read_for_display(client, window).await {
                    Ok(look) => {
                        view.rows = look.rows_since(&last);
                        view.trouble = None;
                        last = look;
                    }
                    Err(e) => view.trouble = Some(tidegate_visible::lines(&e.to_string()).into_owned()),
                }
            }
        }
    }
    drop(restore);
    Ok(())
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

enum Key {
    Quit,
    Letter(char),
    Redraw,
}

/// Reads keys in a thread of their own, because reading a terminal blocks.
fn keys() -> mpsc::UnboundedReceiver<Key> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
                    KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
                    KeyCode::Char(letter) => Key::Letter(letter),
                    _ => continue,
                },
                Event::Resize(..) => Key::Redraw,
                _ => continue,
            };
            if sender.send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

fn draw(frame: &mut Frame, view: &View) {
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    let (table, hidden) = table(&view.rows, usize::from(body.width));
    let mut heading = format!("tidegate top   {} vNICs   {}", view.rows.len(), view.socket);
    if hidden > 0 {
        heading += &format!("\nin a wider terminal: {hidden} more of {} columns", COLUMNS.len());
    }
    frame.render_widget(Paragraph::new(heading).style(Modifier::BOLD), title);
    frame.render_widget(table, body);
    let foot_line = match &view.trouble {
        Some(trouble) => Line::from(trouble.lines().next().unwrap_or("").to_owned()).style(Color::Red),
        None => Line::from(KEYS).style(Modifier::DIM),
    };
    frame.render_widget(foot_line, foot);
}

/// Builds the table for `room` columns of the terminal. Returns it with the number of hidden table columns.
fn table(rows: &[Row], room: usize) -> (Table<'static>, usize) {
    let lines: Vec<[String; COLUMNS.len()]> = rows.iter().map(rows::cells).collect();
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(|column| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0).max(COLUMNS[column].0.len())
    });
    let shown = rows::fitting(&widths, room);
    let aligned = |column: usize, text: &str| {
        let side = match COLUMNS[column].1 {
            Align::Left => Alignment::Left,
            Align::Right => Alignment::Right,
        };
        Cell::from(Text::from(text.to_owned()).alignment(side))
    };
    let header = shown.iter().map(|c| aligned(*c, COLUMNS[*c].0));
    let body = rows.iter().zip(&lines).map(|(row, line)| {
        ratatui::widgets::Row::new(shown.iter().map(|c| aligned(*c, &line[*c]))).style(style(row))
    });
    let table = Table::new(body, shown.iter().map(|c| Constraint::Length(widths[*c] as u16)))
        .header(ratatui::widgets::Row::new(header).style(Modifier::REVERSED))
        .column_spacing(1);
    (table, COLUMNS.len() - shown.len())
}

/// Returns red for a vNIC that misses deadlines, yellow if frames are dropped or wait for tokens most of
/// the time, and dim if it is not up.
fn style(row: &Row) -> Style {
    if row.new_misses.is_some_and(|n| n > 0) {
        Color::Red.into()
    } else if row.dropped.is_some_and(|n| n > 0) || row.throttled.is_some_and(|share| share > 0.5) {
        Color::Yellow.into()
    } else if !row.state.starts_with("up") {
        Modifier::DIM.into()
    } else {
        Style::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(width: u16, trouble: Option<&str>) -> String {
        let now = [samples::voice(), samples::idle()];
        let view = View {
            rows: rows::rows(&now, &now, Duration::from_secs(1)),
            order: Order::Name,
            trouble: trouble.map(Into::into),
            socket: "/run/tidegate/api.sock".into(),
        };
        let mut terminal = Terminal::new(TestBackend::new(width, 6)).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_has_a_heading_rows_and_keys() {
        let screen = screen(140, None);
        for part in
            ["tidegate top   2 vNICs   /run/tidegate/api.sock", "delay p99", "███░░░░░", "waiting", "q quit"]
        {
            assert!(screen.contains(part), "{part} is missing in\n{screen}");
        }
    }

    #[test]
    fn a_narrow_terminal_shows_whole_cells() {
        let screen = screen(80, None);
        for part in ["1.60 Mbit/s", "delay p99", "missed", "more of 17 columns"] {
            assert!(screen.contains(part), "{part} is missing in\n{screen}");
        }
        assert!(!screen.contains('█'), "{screen}");
    }

    #[test]
    fn trouble_takes_the_place_of_the_keys() {
        let screen = screen(120, Some("cannot reach the agent\nmore"));
        assert!(screen.contains("cannot reach the agent") && !screen.contains("q quit"), "{screen}");
    }
}
