//! `--watch`: a dashboard on the terminal during a run.
//!
//! It draws on stderr's alternate screen and reads no keys, so Ctrl-C remains a signal. However the run ends, even by a
//! panic, the screen is restored.

mod board;
mod screen;
mod watcher;

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vcoop_experiment::repeat_summary::RepeatSummary;
use vcoop_experiment::runner::{Progress, RunId};
use vcoop_model::plan::Plan;
use vcoop_model::trace_event::Observer;

use board::Board;
pub(crate) use screen::{Screen, restore};
use watcher::Watcher;

/// Time between two redraws.
const FRAME: Duration = Duration::from_millis(100);

/// A dashboard on screen.
#[derive(Debug)]
pub(crate) struct Dashboard {
    board: Arc<Mutex<Board>>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dashboard {
    /// Shows a dashboard for `runs` runs, or returns why there is none.
    ///
    /// # Errors
    ///
    /// There is no terminal, or it cannot be drawn on: the run continues without a dashboard.
    pub(crate) fn show(title: &str, plans: &[Plan], runs: usize) -> Result<Self, String> {
        if !io::stderr().is_terminal() {
            return Err("--watch: stderr is no terminal; running without a dashboard".to_owned());
        }
        let mut screen = Screen::enter()
            .map_err(|e| format!("--watch: cannot draw ({e}); running without a dashboard"))?;
        let board = Arc::new(Mutex::new(Board::new(title, plans, runs)));
        let done = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (Arc::clone(&board), Arc::clone(&done));
        let started = Instant::now();
        let draw = move || {
            while !stop.load(Ordering::Relaxed) && screen.is_there() {
                let picture = shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if screen.draw(&picture, started.elapsed()).is_err() {
                    break;
                }
                thread::park_timeout(FRAME);
            }
        };
        let thread = thread::Builder::new().name("dashboard".to_owned()).spawn(draw);
        let thread = thread.map_err(|e| {
            restore();
            format!("--watch: no thread for it ({e}); running without a dashboard")
        })?;
        Ok(Self { board, done, thread: Some(thread) })
    }

    /// Counts a finished repeat.
    pub(crate) fn tell(&self, progress: Progress) {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).progress = progress;
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        restore();
    }
}

impl Dashboard {
    /// A run is about to begin; returns its observer.
    pub(crate) fn begins(&self, run: RunId, plan: &Plan) -> Box<dyn Observer + '_> {
        Box::new(Watcher::new(&self.board, run, plan))
    }

    /// A run has ended.
    pub(crate) fn ended(&self, run: RunId, digest: &RepeatSummary) {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).book(run, digest);
    }
}

#[cfg(test)]
mod tests {
    use super::Dashboard;
    use vcoop_testing::Terminal;

    #[test]
    #[ignore = "run by the test below, on a terminal of its own"]
    fn panics_on_a_screen() {
        let _dashboard = Dashboard::show("a run that breaks", &[], 1).expect("a terminal");
        // Until the user has seen it.
        let _ = std::io::stdin().read_line(&mut String::new());
        panic!("as planned");
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let terminal = match Terminal::new("panic") {
            Ok(terminal) => terminal,
            Err(skip) => return skip.tell(),
        };
        let own = std::env::current_exe().expect("this test has a file");
        let test = "watch::tests::panics_on_a_screen --ignored --exact --nocapture";
        terminal.types(&format!("{} {test}; echo ENDED $?", own.display()));
        // The picture is there.
        terminal.waits_for_in("1 0", "");
        terminal.presses("Enter");
        let shown = terminal.waits_for_in("0 1", "ENDED 101");
        assert!(shown.contains("as planned"), "the panic can be read:\n{shown}");
    }
}
