//! The dashboard as a user sees it, in tmux.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use vcoop_testing::{Outcome, Skip, main, test};

/// A terminal of a test's own.
struct Terminal(String);

impl Terminal {
    fn new(name: &str) -> Result<Self, Skip> {
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

    fn types(&self, line: &str) {
        self.tmux(&["send-keys", line, "Enter"]).unwrap();
    }

    fn shows(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).unwrap()
    }

    /// Alternate screen, cursor.
    fn modes(&self) -> String {
        self.tmux(&["display", "-p", "#{alternate_on} #{cursor_flag}"]).unwrap().trim().to_owned()
    }

    fn waits_for(&self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let shown = self.shows();
            if shown.contains(text) {
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

const VCOOP: &str = env!("CARGO_BIN_EXE_vcoop");

test!(
    "tmux",
    the_dashboard_shows_percentiles_and_gives_the_terminal_back,
    the_dashboard_shows_percentiles_and_gives_the_terminal_back
);
fn the_dashboard_shows_percentiles_and_gives_the_terminal_back() -> Outcome {
    let terminal = Terminal::new("end")?;
    let run = "run busy-host --backend sim --duration 1s --repeats 40 --watch";
    terminal.types(&format!("{VCOOP} {run} > /dev/null; echo ENDED $?"));
    let shown = terminal.waits_for("sim dynamic");
    for text in ["p99.9", "boosted", "budget", "host.cyclictest", "of 160 runs", "p99 by repeat"] {
        assert!(shown.contains(text), "no {text:?} in:\n{shown}");
    }
    assert_eq!(terminal.modes(), "1 0", "the alternate screen, without a cursor");
    let shown = terminal.waits_for("ENDED 0");
    assert!(!shown.contains("p99 by repeat"), "the picture is gone:\n{shown}");
    assert_eq!(terminal.modes(), "0 1");
    Ok(())
}

test!(
    "tmux",
    ctrl_c_ends_the_run_and_gives_the_terminal_back,
    ctrl_c_ends_the_run_and_gives_the_terminal_back
);
fn ctrl_c_ends_the_run_and_gives_the_terminal_back() -> Outcome {
    let terminal = Terminal::new("stop")?;
    let run = "run busy-host --backend sim --repeats 500 --watch";
    terminal.types(&format!("{VCOOP} {run}; echo ENDED $?"));
    terminal.waits_for("of 2000 runs");
    terminal.tmux(&["send-keys", "C-c"]).unwrap();
    terminal.waits_for("ENDED 130");
    assert_eq!(terminal.modes(), "0 1");
    Ok(())
}

test!("", without_a_terminal_the_run_goes_on_without, without_a_terminal_the_run_goes_on_without);
fn without_a_terminal_the_run_goes_on_without() {
    let args = ["run", "busy-host-1", "--duration", "100ms", "--warmup", "10ms", "--watch"];
    let output = Command::new(VCOOP).args(args).env("VCOOP_BACKEND", "sim").output().unwrap();
    assert!(output.status.success());
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("--watch: stderr is no terminal"), "{note}");
    assert!(!note.contains('\u{1b}'), "{note}");
}
