//! Captures of a million lines and of a gigabyte: read in bounded memory, or refused by name.

mod common;

use std::io::{self, Read};

use common::Trace;
use vcoop_capture::{Capture, CaptureError, Limits};

/// Lines of a busy CPU, generated while they are read: two threads that take turns, with `others` events of other kinds
/// after each switch.
struct Busy {
    lines: u64,
    others: u64,
    made: u64,
    block: Vec<u8>,
    at: usize,
}

impl Busy {
    fn new(lines: u64, others: u64) -> Self {
        Self { lines, others, made: 0, block: Vec::new(), at: 0 }
    }

    /// The next thousand lines.
    fn make(&mut self) {
        let mut t = Trace::default();
        let end = self.lines.min(self.made + 1_000);
        for n in self.made..end {
            if n.is_multiple_of(1 + self.others) {
                let odd = (n / (1 + self.others) % 2) as i32;
                // Without other events each turn ends with a sleep, which is a step. Preempted turns merge into one
                // run.
                let state = if self.others == 0 { "S" } else { "R" };
                t.switch(2 * n, 0, 1 + odd, state, 2 - odd);
            } else {
                t.event(2 * n, 0, 1, "d.h..", "irq_handler_entry: irq=24 name=virtio0-input.0");
            }
        }
        self.made = end;
        (self.block, self.at) = (t.0.into_bytes(), 0);
    }
}

impl Read for Busy {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.block.len() {
            self.make();
        }
        let n = out.len().min(self.block.len() - self.at);
        out[..n].copy_from_slice(&self.block[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// Peak memory of this process, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn a_million_lines_are_read() {
    let lines = 1_000_000;
    let capture = Capture::read(Busy::new(lines, 3), &Limits::default()).unwrap();
    assert_eq!((capture.losses.lines, capture.losses.not_understood), (lines, 0));
    assert_eq!(capture.threads.len(), 2);
    // One CPU that is never idle, from the first switch to the last line; lines are 2 us apart.
    let time = &capture.losses.cpus[&0];
    assert_eq!(time.busy_ns + time.idle_ns + time.unattributed_ns, capture.span_ns);
    assert!(time.busy_ns > capture.span_ns * 99 / 100);
}

/// Input beyond a limit is refused by name, other input is read, both in memory that the limits bound. `fits`: a number
/// of lines with few switches just within the limit of bytes.
fn is_bounded(limits: &Limits, fits: u64, most_mib: u64) {
    // Mostly events that are not used: it is read up to the last line that fits.
    let capture = Capture::read(Busy::new(fits, 9), limits).unwrap();
    assert_eq!(capture.losses.lines, fits);
    let refused = |others| match Capture::read(Busy::new(u64::MAX, others), limits) {
        Err(CaptureError::Limit { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!((refused(9), refused(0)), ("max_text_bytes", "max_steps"));
    let peak = peak_mib();
    println!("at most {peak} MiB");
    assert!(peak < most_mib, "{peak} MiB");
}

/// The default limits at a sixteenth of their size, because each limits a separate part of memory.
#[test]
fn a_sixteenth_of_a_gigabyte_is_read_or_refused_by_name_in_bounded_memory() {
    let all = Limits::default();
    let limits =
        Limits { max_text_bytes: all.max_text_bytes / 16, max_steps: all.max_steps / 16, ..all };
    is_bounded(&limits, 12_000_000 / 16, 128);
}

/// `--ignored` because it takes long: the test above with the full default limits.
#[test]
#[ignore = "three gigabytes of text: cargo test --release -p vcoop-capture --test large -- --ignored"]
fn a_gigabyte_is_read_or_refused_by_name_in_bounded_memory() {
    is_bounded(&Limits::default(), 12_000_000, 1024);
}
