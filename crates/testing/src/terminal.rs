//! A terminal in which a test reads a program's screen and presses keys.

use std::cmp::Ordering;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Skip, found, until};

/// A terminal in tmux for one test. Dropping it ends it.
#[derive(Debug)]
pub struct Terminal(String);

impl Terminal {
    /// Starts a terminal with a shell.
    ///
    /// # Errors
    ///
    /// This host has no tmux.
    pub fn new(name: &str) -> Result<Self, Skip> {
        let socket = format!("vcoop-{name}-{}", std::process::id());
        let this = Self(socket);
        let made =
            this.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "110", "-y", "34", "sh"]);
        made.map(|_| this).ok_or_else(|| Skip::because("no tmux here"))
    }

    fn tmux(&self, args: &[&str]) -> Option<String> {
        let output = Command::new("tmux")
            .args(["-L", &self.0])
            .args(args)
            .env("TERM", "xterm-256color")
            .stderr(Stdio::null())
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Types a line.
    pub fn types(&self, line: &str) {
        self.tmux(&["send-keys", line, "Enter"]).expect("tmux goes on");
    }

    /// Presses a key: `q`, `C-c`.
    pub fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]).expect("tmux goes on");
    }

    fn shows(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).expect("tmux goes on")
    }

    /// In a program with a list, presses up and down until the line of this text is the one in reverse video.
    pub fn chooses(&self, text: &str) {
        let look = || {
            let shown = self.tmux(&["capture-pane", "-p", "-e"]).expect("tmux goes on");
            let line = |is: &dyn Fn(&str) -> bool| shown.lines().position(is);
            let is_reverse = |line: &str| line.contains("[7m") || line.contains(";7m");
            line(&is_reverse).zip(line(&|line| line.contains(text)))
        };
        found(format!("{text} is chosen"), || {
            let (chosen, wanted) = look()?;
            let key = match wanted.cmp(&chosen) {
                Ordering::Equal => return Some(()),
                Ordering::Less => "Up",
                Ordering::Greater => "Down",
            };
            self.presses(key);
            // A key that is not handled yet would count twice.
            until("it is handled", || look().is_some_and(|(now, _)| now != chosen));
            None
        });
    }

    /// The state of alternate screen and cursor: `1 0`.
    pub fn modes(&self) -> String {
        let modes = self.tmux(&["display", "-p", "#{alternate_on} #{cursor_flag}"]);
        modes.expect("tmux goes on").trim().to_owned()
    }

    /// The screen once it contains a text, within a minute.
    pub fn waits_for(&self, text: &str) -> String {
        self.waits(text, || true)
    }

    /// As [`waits_for`](Self::waits_for), once these [`modes`](Self::modes) are set too: a later query could come after
    /// the program's end.
    pub fn waits_for_in(&self, modes: &str, text: &str) -> String {
        self.waits(text, || self.modes() == modes)
    }

    fn waits(&self, text: &str, before: impl Fn() -> bool) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let (ready, shown) = (before(), self.shows());
            if ready && shown.contains(text) {
                return shown;
            }
            assert!(Instant::now() < end, "no {text:?} in:\n{shown}");
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
