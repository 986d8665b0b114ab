//! State of one CPU while a capture is read.

use vcoop_model::plan::Ns;

use crate::losses::CpuTime;

/// The thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    /// Not known yet; it has been there since `since`.
    FromStart { since: Ns },
    /// This thread; its time is booked up to `since`.
    Known { tid: i32, since: Ns },
    /// Not known: events were lost after `since`.
    Lost { since: Ns },
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    pub(super) current: Current,
    /// An event of this CPU was read.
    pub(super) seen: bool,
    /// Its buffer begins later than the others': before its first event its state is unknown.
    pub(super) late: bool,
    /// Time of its latest event.
    pub(super) last: Ns,
    pub(super) time: CpuTime,
}

impl Default for Current {
    fn default() -> Self {
        Self::FromStart { since: 0 }
    }
}

impl Cpu {
    /// The first event: the current thread has been there since the capture began, because no switch came before;
    /// unless the buffer begins here.
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
