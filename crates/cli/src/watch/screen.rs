//! The terminal: taken, drawn on, and given back.

use std::io::{self, Stderr, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table};

use super::board::{Board, Entry};

/// The alternate screen is on.
static ON: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back, if it was taken. Callable from anywhere, as often as one likes.
pub(crate) fn restore() {
    if ON.swap(false, Ordering::SeqCst) {
        // Not everybody has made it raw; then this does nothing.
        let _ = disable_raw_mode();
        let _ = execute!(io::stderr(), Show, LeaveAlternateScreen);
        let _ = io::stderr().flush();
    }
}

/// A terminal that is ours for a while.
#[derive(Debug)]
pub(crate) struct Screen(Terminal<CrosstermBackend<Stderr>>);

impl Screen {
    /// Takes the terminal. A panic gives it back before it says anything.
    pub(crate) fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        let terminal = Terminal::new(CrosstermBackend::new(io::stderr()))?;
        ON.store(true, Ordering::SeqCst);
        if let Err(e) = execute!(io::stderr(), EnterAlternateScreen, Hide) {
            restore();
            return Err(e);
        }
        Ok(Self(terminal))
    }

    /// Keys come one by one from now on, and are not shown.
    pub(crate) fn take_keys(&self) -> io::Result<()> {
        enable_raw_mode()
    }

    /// Draws whatever is drawn.
    pub(crate) fn paint(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Whether nobody has given the terminal back meanwhile.
    pub(crate) fn is_there(&self) -> bool {
        ON.load(Ordering::SeqCst)
    }

    /// Draws a picture.
    pub(super) fn draw(&mut self, board: &Board, gone: Duration) -> io::Result<()> {
        self.0.draw(|frame| {
            let [head, bar, table, lines, foot] = Layout::vertical([
                Constraint::Length(1),
                Constraint::Length(1),
                Constraint::Min(6),
                Constraint::Length(2 + board.policies() as u16),
                Constraint::Length(1),
            ])
            .areas(frame.area());
            frame.render_widget(Line::from(board.title.as_str()).bold(), head);
            let label = format!("{}, {} s gone", board.going(), gone.as_secs());
            frame.render_widget(Gauge::default().ratio(board.share()).label(label), bar);
            frame.render_widget(percentiles(board), table);
            let title = if board.by_time { "p99 by time, 60 bars a run" } else { "p99 by repeat" };
            let block = Block::bordered().title(title);
            let inside = block.inner(lines);
            frame.render_widget(block, lines);
            for (i, (name, values)) in board.sparks().into_iter().enumerate() {
                let y = inside.y + i as u16;
                if y >= inside.bottom() {
                    break;
                }
                let row = ratatui::layout::Rect { y, height: 1, ..inside };
                let [left, right] =
                    Layout::horizontal([Constraint::Length(30), Constraint::Min(4)]).areas(row);
                frame.render_widget(Line::from(name), left);
                frame.render_widget(Sparkline::default().data(values), right);
            }
            let hint = "Ctrl-C ends the run and shows what was measured";
            frame.render_widget(Paragraph::new(hint).style(Style::new().dim()), foot);
        })?;
        Ok(())
    }
}

fn percentiles(board: &Board) -> Table<'_> {
    let header = ["policy", "probe", "samples", "p50", "p99", "p99.9", "max", "boosted", "budget"];
    let rows = board.entries.iter().map(|entry: &Entry| {
        let mut cells = vec![Cell::from(entry.policy.as_str()), Cell::from(entry.probe.as_str())];
        cells.extend(entry.cells().into_iter().map(Cell::from));
        let row = Row::new(cells);
        if entry.probe.starts_with("host.") { row.dim() } else { row }
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Min(16),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(16),
    ];
    Table::new(rows, widths).header(Row::new(header).bold()).block(Block::bordered())
}
