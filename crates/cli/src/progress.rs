//! A progress bar for long runs.

use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vcoop_experiment::runner;

/// One line on stderr, if that is a terminal. It is overwritten and finally erased, if it is a bar, by an empty line.
pub(crate) fn line(quiet: bool, text: &str) {
    if !quiet && io::stderr().is_terminal() {
        let _ = write!(io::stderr().lock(), "\r\x1b[K{text}");
    }
}

/// Runs shorter than this show no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows the progress of a run on stderr, if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    wanted: bool,
}

impl Progress {
    /// No output yet; runs will be counted.
    pub(crate) fn new(quiet: bool) -> Self {
        Self::of("runs", quiet)
    }

    /// No output yet; points of a sweep will be counted.
    pub(crate) fn points(quiet: bool) -> Self {
        Self::of("points", quiet)
    }

    fn of(what: &str, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let shape = format!("{{bar:40}} {{pos}}/{{len}} {what}, {{elapsed}} gone, {{eta}} to go");
        if let Ok(style) = ProgressStyle::with_template(&shape) {
            bar.set_style(style);
        }
        Self { bar, started: Instant::now(), wanted: !quiet && io::stderr().is_terminal() }
    }

    /// Counts a finished repeat.
    pub(crate) fn tell(&self, progress: runner::Progress) {
        self.bar.set_length(progress.total as u64);
        self.bar.set_position(progress.done as u64);
        if self.wanted && self.bar.is_hidden() && self.started.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Erases the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
