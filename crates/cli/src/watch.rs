//! `--watch`: a dashboard on the terminal while a run goes on.
//!
//! It draws on stderr's alternate screen and reads no keys: Ctrl-C is the signal that it always is.
//! Whatever ends the run, a panic too, the screen is as it was before.

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

/// Time between two pictures.
const FRAME: Duration = Duration::from_millis(100);

/// A dashboard that is shown.
#[derive(Debug)]
pub(crate) struct Dashboard {
    board: Arc<Mutex<Board>>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dashboard {
    /// Shows a dashboard of so many runs, or says why there is none.
    ///
    /// # Errors
    ///
    /// There is no terminal, or it cannot be drawn on: the run goes on without.
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

    /// Takes note of a finished repeat.
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
    /// A run is about to begin: who watches it.
    pub(crate) fn begins(&self, run: RunId, plan: &Plan) -> Box<dyn Observer + '_> {
        Box::new(Watcher::new(&self.board, run, plan))
    }

    /// A run is over.
    pub(crate) fn ended(&self, run: RunId, digest: &RepeatSummary) {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).book(run, digest);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    use super::Dashboard;

    #[test]
    #[ignore = "run by the test below, on a terminal of its own"]
    fn panics_on_a_screen() {
        let _dashboard = Dashboard::show("a run that breaks", &[], 1).expect("a terminal");
        // Until who looks has seen it.
        let _ = std::io::stdin().read_line(&mut String::new());
        panic!("as planned");
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let own = std::env::current_exe().expect("this test has a file");
        let socket = format!("vcoop-panic-{}", std::process::id());
        let tmux = |args: &[&str]| {
            let mut command = Command::new("tmux");
            command.args(["-L", &socket]).args(args).env("TERM", "xterm-256color");
            let output = command.output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let session = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "sh"];
        if tmux(&session).is_none() {
            return vcoop_testing::Skip::because("no tmux here").tell();
        }
        let test = "watch::tests::panics_on_a_screen --ignored --exact --nocapture";
        let line = format!("{} {test}; echo ENDED", own.display());
        tmux(&["send-keys", &line, "Enter"]);
        let mut seen = false;
        for _ in 0..600 {
            sleep(Duration::from_millis(50));
            let modes = tmux(&["display", "-p", "#{alternate_on} #{cursor_flag}"]);
            if !seen && modes.as_deref().map(str::trim) == Some("1 0") {
                seen = true;
                tmux(&["send-keys", "Enter"]);
            }
            let shown = tmux(&["capture-pane", "-p"]).unwrap_or_default();
            if shown.contains("as planned") && shown.lines().any(|l| l.trim() == "ENDED") {
                break;
            }
        }
        let modes = tmux(&["display", "-p", "#{alternate_on} #{cursor_flag}"]);
        let shown = tmux(&["capture-pane", "-p"]).unwrap_or_default();
        tmux(&["kill-server"]);
        assert!(seen, "the picture was there:\n{shown}");
        assert_eq!(modes.as_deref().map(str::trim), Some("0 1"), "and is gone:\n{shown}");
        assert!(shown.contains("as planned"), "the panic can be read:\n{shown}");
    }
}
