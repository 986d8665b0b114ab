//! The dashboard as a user sees it, in tmux.

use std::process::Command;

use vcoop_testing::{Outcome, Terminal, main, test};

const VCOOP: &str = env!("CARGO_BIN_EXE_vcoop");

test!("tmux", the_dashboard_shows_percentiles_and_gives_the_terminal_back, || -> Outcome {
    let terminal = Terminal::new("end")?;
    let run = "run busy-host --backend sim --duration 1s --repeats 40 --watch";
    terminal.types(&format!("{VCOOP} {run} > /dev/null; echo ENDED $?"));
    // The alternate screen, without a cursor.
    let shown = terminal.waits_for_in("1 0", "sim dynamic");
    for text in ["p99.9", "boosted", "budget", "host.cyclictest", "of 160 runs", "p99 by repeat"] {
        assert!(shown.contains(text), "no {text:?} in:\n{shown}");
    }
    let shown = terminal.waits_for("ENDED 0");
    assert!(!shown.contains("p99 by repeat"), "the picture is gone:\n{shown}");
    assert_eq!(terminal.modes(), "0 1");
    Ok(())
});

test!("tmux", ctrl_c_ends_the_run_and_gives_the_terminal_back, || -> Outcome {
    let terminal = Terminal::new("stop")?;
    let run = "run busy-host --backend sim --repeats 500 --watch";
    terminal.types(&format!("{VCOOP} {run}; echo ENDED $?"));
    terminal.waits_for("of 2000 runs");
    terminal.presses("C-c");
    terminal.waits_for("ENDED 130");
    assert_eq!(terminal.modes(), "0 1");
    Ok(())
});

test!("", without_a_terminal_the_run_goes_on_without, || {
    let args = ["run", "busy-host-1", "--duration", "100ms", "--warmup", "10ms", "--watch"];
    let output = Command::new(VCOOP).args(args).env("VCOOP_BACKEND", "sim").output().unwrap();
    assert!(output.status.success());
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("--watch: stderr is no terminal"), "{note}");
    assert!(!note.contains('\u{1b}'), "{note}");
});
