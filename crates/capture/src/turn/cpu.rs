//! One CPU while a capture is being read.

use vcoop_model::plan::Ns;

use crate::losses::CpuTime;

/// Who is on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    /// Not known yet, but whoever it is has been there since then.
    FromStart { since: Ns },
    /// This thread; its time is booked up to `since`.
    Known { tid: i32, since: Ns },
    /// Not known: events were lost after `since`.
    Lost { since: Ns },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    pub(super) current: Current,
    /// An event of this CPU was read.
    pub(super) seen: bool,
    /// Its buffer holds less than the others': its first event is no start of anything.
    pub(super) late: bool,
    /// Time of its latest event.
    pub(super) last: Ns,
    pub(super) time: CpuTime,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            current: Current::FromStart { since: 0 },
            seen: false,
            late: false,
            last: 0,
            time: CpuTime::default(),
        }
    }
}

impl Cpu {
    /// At the first event: its current thread has been there since the capture began, as no
    /// switch came before; unless its buffer just begins here.
    pub(super) fn begin(&mut self, start: Ns, now: Ns) {
        self.seen = true;
        if self.late {
            self.time.unattributed_ns += now - start;
            self.current = Current::FromStart { since: now };
        } else {
            self.current = Current::FromStart { since: start };
        }
    }
}
