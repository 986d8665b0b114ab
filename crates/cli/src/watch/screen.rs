//! The terminal: switched to the dashboard, drawn on, and restored.

use std::io::{self, IsTerminal as _, Stderr, Write};
use std::os::fd::AsFd as _;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
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

/// Restores the terminal, if it was changed. Can be called from anywhere, any number of times.
pub(crate) fn restore() {
    // A frame that another thread draws at the moment ends first.
    let _stderr = io::stderr().lock();
    if ON.swap(false, Ordering::SeqCst) {
        // Without effect if it is not in raw mode.
        let _ = disable_raw_mode();
        let _ = execute!(io::stderr(), Show, LeaveAlternateScreen);
        let _ = io::stderr().flush();
    }
}

/// A terminal in use by this process.
#[derive(Debug)]
pub(crate) struct Screen(Terminal<CrosstermBackend<Stderr>>);

impl Screen {
    /// Takes the terminal. A panic restores it before its message.
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

    /// From now on keys are delivered one by one, and not echoed.
    pub(crate) fn take_keys(&self) -> io::Result<()> {
        enable_raw_mode()
    }

    /// The next event of the terminal, if one comes in time. A closed terminal is restored: crossterm would read its
    /// end of file for ever.
    pub(crate) fn next(&self, within: Duration) -> io::Result<Option<Event>> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        // As crossterm does.
        let input = if io::stdin().is_terminal() {
            io::stdin().as_fd().try_clone_to_owned()?
        } else {
            std::fs::File::open("/dev/tty")?.into()
        };
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        let within = Timespec::try_from(within).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&within)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            restore();
            return Ok(None);
        }
        event::poll(Duration::ZERO)?.then(event::read).transpose()
    }

    /// Draws a frame, unless the terminal has been restored.
    pub(crate) fn paint(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        // No other thread restores the terminal during the frame. This thread may, in a panic: the lock is reentrant.
        let _stderr = io::stderr().lock();
        if self.is_there() { self.0.draw(draw).map(drop) } else { Ok(()) }
    }

    /// Whether the terminal has not been restored meanwhile.
    pub(crate) fn is_there(&self) -> bool {
        ON.load(Ordering::SeqCst)
    }

    pub(super) fn draw(&mut self, board: &Board, elapsed: Duration) -> io::Result<()> {
        self.paint(|frame| {
            let [head, bar, table, lines, foot] = Layout::vertical([
                Constraint::Length(1),
                Constraint::Length(1),
                Constraint::Min(6),
                Constraint::Length(2 + board.policies() as u16),
                Constraint::Length(1),
            ])
            .areas(frame.area());
            frame.render_widget(Line::from(board.title.as_str()).bold(), head);
            let label = format!("{}, {} s elapsed", board.going(), elapsed.as_secs());
            frame.render_widget(Gauge::default().ratio(board.share()).label(label), bar);
            frame.render_widget(percentiles(board, table.width), table);
            let title = if board.by_time { "p99 by time, 60 bars a run" } else { "p99 by repeat" };
            let block = Block::bordered().title(title);
            let inside = block.inner(lines);
            frame.render_widget(block, lines);
            let sparks = board.sparklines();
            let names = sparks.iter().map(|(name, _)| name.chars().count() as u16 + 1).max();
            let names = names.unwrap_or(0).min(inside.width / 2);
            for (i, (name, values)) in sparks.into_iter().enumerate() {
                let y = inside.y + i as u16;
                if y >= inside.bottom() {
                    break;
                }
                let row = ratatui::layout::Rect { y, height: 1, ..inside };
                let [left, right] =
                    Layout::horizontal([Constraint::Length(names), Constraint::Min(4)]).areas(row);
                frame.render_widget(Line::from(name), left);
                frame.render_widget(Sparkline::default().data(values), right);
            }
            let hint = "Ctrl-C ends it and shows the result";
            frame.render_widget(Paragraph::new(hint).style(Style::new().dim()), foot);
        })
    }
}

/// The columns of a table of samples.
const HEADER: [&str; 9] =
    ["policy", "probe", "samples", "p50", "p99", "p99.9", "max", "boosted", "budget"];
/// Columns that a narrow terminal leaves out, in this order: an unreadable number is of no use.
const SPARED: [usize; 6] = [8, 2, 7, 5, 3, 6];
/// Columns of names, which may be cut, with the minimum width of a name.
const NAMES: (usize, u16) = (2, 16);
/// Minimum widths if no more columns can be left out.
const SHORT_NAME: u16 = 13;

fn percentiles(board: &Board, width: u16) -> Table<'_> {
    let cells = |entry: &Entry| {
        let mut cells = vec![entry.policy.clone(), entry.probe.clone()];
        cells.extend(entry.cells());
        cells
    };
    let rows: Vec<Vec<String>> = board.entries.iter().map(cells).collect();
    // Within the border.
    let shown = columns(&rows, width.saturating_sub(2));
    let row = |(entry, mut cells): (&Entry, Vec<String>)| {
        let row = Row::new(shown.iter().map(|(i, _)| Cell::from(std::mem::take(&mut cells[*i]))));
        if entry.probe.starts_with("host.") { row.dim() } else { row }
    };
    let rows: Vec<Row<'_>> = board.entries.iter().zip(rows).map(row).collect();
    let header = Row::new(shown.iter().map(|(i, _)| HEADER[*i])).bold();
    let widths = shown.iter().map(|(_, width)| Constraint::Length(*width));
    Table::new(rows, widths).header(header).block(Block::bordered())
}

/// The columns that fit a width without cut numbers, and their widths.
fn columns(rows: &[Vec<String>], width: u16) -> Vec<(usize, u16)> {
    let wide = |i: usize| {
        let cells = rows.iter().map(|cells| cells[i].chars().count());
        cells.chain([HEADER[i].len()]).max().unwrap_or(0) as u16
    };
    let mut shown: Vec<(usize, u16)> = (0..HEADER.len()).map(|i| (i, wide(i))).collect();
    // A space between two.
    let all = |shown: &[(usize, u16)]| shown.iter().map(|(_, w)| w + 1).sum::<u16>() - 1;
    let cut = |(i, w): &(usize, u16)| (*i, if *i < NAMES.0 { (*w).min(NAMES.1) } else { *w });
    let least = |shown: &[(usize, u16)]| all(&shown.iter().map(cut).collect::<Vec<_>>());
    for spared in SPARED {
        if least(&shown) > width {
            shown.retain(|(i, _)| *i != spared);
        }
    }
    // Names are cut to what fits, the probe first.
    let mut over = all(&shown).saturating_sub(width);
    for kept in [NAMES.1, SHORT_NAME] {
        for (_, name) in shown.iter_mut().take(NAMES.0).rev() {
            let less = over.min(name.saturating_sub(kept));
            *name -= less;
            over -= less;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{HEADER, columns};

    #[test]
    fn no_width_cuts_a_unit() {
        let row = |policy: &str| {
            let cells = ["guest.cyclictest", "110546", "15.8 us", "3.50 ms", "6.80 ms", "11.0 ms"];
            let rest = ["6.92 %", "30.6 times/s"];
            [policy].iter().chain(&cells).chain(&rest).map(|s| (*s).to_owned()).collect()
        };
        let rows: Vec<Vec<String>> = vec![row("sim vanilla"), row("sim wake-boost, hogs 12")];
        let names = |width: u16| -> Vec<&str> {
            let shown = columns(&rows, width);
            for (i, width) in &shown[2..] {
                let longest = rows.iter().map(|cells| cells[*i].len()).max().unwrap();
                assert!(usize::from(*width) >= longest.max(HEADER[*i].len()), "{}", HEADER[*i]);
            }
            let all: u16 = shown.iter().map(|(_, w)| w + 1).sum::<u16>() - 1;
            assert!(all <= width, "{all} of {width}");
            shown.iter().map(|(i, _)| HEADER[*i]).collect()
        };
        assert_eq!(names(118), HEADER);
        assert_eq!(names(78), ["policy", "probe", "p50", "p99", "p99.9", "max", "boosted"]);
        assert_eq!(names(58), ["policy", "probe", "p50", "p99", "max"]);
        assert_eq!(names(38), ["policy", "probe", "p99"]);
    }
}
