//! A log of what a vCPU's policy did and when, for observers.
//!
//! It is written with the vCPU's lock held, so it must be fast: a few stores into a ring that is allocated at the
//! start, and nothing if there is no reader. The collector reads it without a lock; notes that were overwritten before
//! are counted as lost.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use vcoop_model::plan::Ns;
use vcoop_model::recording::PolicyEvent;
use vcoop_policy::{Action, PolicyStats};

/// Notes that are kept; a policy that does more in the time between two collections (20 ms) loses
/// some.
const NOTES: usize = 1024;

/// Bits of a note besides the budget.
const BITS: u32 = 8;

/// A note's two words: when, and budget and bits.
type Words = [AtomicU64; 2];

/// A ring of notes with one writer at a time.
#[derive(Debug)]
pub(crate) struct PolicyLog {
    /// Notes written so far.
    written: AtomicU64,
    /// Empty: it is not read.
    notes: Box<[Words]>,
}

/// One call of a policy that did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// When, on the run's clock.
    pub(crate) at: Ns,
    /// Boosted time that was left.
    pub(crate) budget: Ns,
    bits: u8,
}

/// Actions of a call that a trace shows, in the order in which it shows them.
const SHOWN: [&str; 4] = ["denied", "throttled", "restore", "boost"];

impl Note {
    /// The note of a call, if it did anything. `before` and `after`: the policy's counters.
    pub(crate) fn of(
        at: Ns,
        budget: Ns,
        actions: impl IntoIterator<Item = Action>,
        (before, after): (PolicyStats, PolicyStats),
    ) -> Option<Self> {
        let mut bits = 0;
        for action in actions {
            bits |= match action {
                Action::Denied(_) => 1,
                Action::Status(vcoop_abi::Status::Throttled) => 2,
                Action::Restore => 4,
                Action::Boost(_) => 8,
                _ => 0,
            };
        }
        let counted = [
            (PolicyEvent::Boost, after.boosts > before.boosts),
            (PolicyEvent::Throttle, after.throttles > before.throttles),
            (PolicyEvent::Denied, after.denied > before.denied),
        ];
        for (event, more) in counted {
            bits |= u8::from(more) << (4 + event as u8);
        }
        (bits != 0).then_some(Self { at, budget, bits })
    }

    /// What it did, by the names of traces.
    pub(crate) fn shown(self) -> impl Iterator<Item = &'static str> {
        SHOWN.into_iter().enumerate().filter(move |(i, _)| self.bits & 1 << i != 0).map(|(_, s)| s)
    }

    /// What it did, as results count it.
    pub(crate) fn counted(self) -> impl Iterator<Item = PolicyEvent> {
        PolicyEvent::ALL.into_iter().filter(move |e| self.bits & 1 << (4 + *e as u8) != 0)
    }
}

impl PolicyLog {
    /// A log without a reader.
    pub(crate) fn off() -> Self {
        Self { written: AtomicU64::new(0), notes: Box::default() }
    }

    /// A log with a reader.
    pub(crate) fn on() -> Self {
        Self { notes: (0..NOTES).map(|_| Words::default()).collect(), ..Self::off() }
    }

    /// Whether there is a reader.
    pub(crate) fn is_on(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Writes a note. The vCPU's lock is held: no other thread writes.
    pub(crate) fn write(&self, note: Note) {
        let index = self.written.load(Ordering::Relaxed);
        let Some(words) = self.notes.get(index as usize % NOTES) else { return };
        // A reader that sees a word of this note also sees that the notes before it were written: pairs with
        // the fence in `read`.
        fence(Ordering::Release);
        words[0].store(note.at, Ordering::Relaxed);
        words[1].store(note.budget << BITS | u64::from(note.bits), Ordering::Relaxed);
        self.written.store(index + 1, Ordering::Release);
    }

    /// Reads the notes from number `from` on, in order, and moves `from` behind them. Returns how many were overwritten
    /// before.
    pub(crate) fn read(&self, from: &mut u64, mut each: impl FnMut(Note)) -> u64 {
        let end = self.written.load(Ordering::Acquire);
        let (begin, mut lost) = (*from, 0);
        for index in begin..end {
            let words = &self.notes[index as usize % NOTES];
            let (at, rest) = (words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            // The next note to be written may be half in its place already.
            if self.written.load(Ordering::Relaxed) >= index + NOTES as u64 {
                lost += 1;
            } else {
                each(Note { at, budget: rest >> BITS, bits: rest as u8 });
            }
        }
        *from = end;
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{NOTES, Note, PolicyLog};
    use vcoop_abi::Status;
    use vcoop_model::recording::PolicyEvent;
    use vcoop_policy::config::Means;
    use vcoop_policy::{Action, PolicyStats};

    fn note(at: u64) -> Note {
        // The same number twice shows whether a note is torn.
        Note { at, budget: at, bits: at as u8 }
    }

    #[test]
    fn a_call_is_told_as_traces_and_as_results_want_it() {
        let before = PolicyStats::default();
        let after = PolicyStats { boosts: 1, ..before };
        let boost = [Action::Boost(Means::Fifo(1)), Action::Status(Status::Boosted)];
        let note = Note::of(7, 9, boost, (before, after)).unwrap();
        assert_eq!((note.at, note.budget), (7, 9));
        assert_eq!(note.shown().collect::<Vec<_>>(), ["boost"]);
        assert_eq!(note.counted().collect::<Vec<_>>(), [PolicyEvent::Boost]);
        let after = PolicyStats { throttles: 1, ..before };
        let throttle = [Action::Status(Status::Throttled), Action::Restore];
        let note = Note::of(7, 0, throttle, (before, after)).unwrap();
        assert_eq!(note.shown().collect::<Vec<_>>(), ["throttled", "restore"]);
        assert_eq!(note.counted().collect::<Vec<_>>(), [PolicyEvent::Throttle]);
        assert_eq!(Note::of(7, 9, [Action::Recheck], (before, before)), None);
    }

    #[test]
    fn notes_are_read_once_and_old_ones_are_lost() {
        let (diary, mut from, mut seen) = (PolicyLog::on(), 0, Vec::new());
        (0..5).for_each(|at| diary.write(note(at)));
        assert_eq!(diary.read(&mut from, |n| seen.push(n.at)), 0);
        assert_eq!(diary.read(&mut from, |n| seen.push(n.at)), 0);
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        (5..5 + 2 * NOTES as u64).for_each(|at| diary.write(note(at)));
        let lost = diary.read(&mut from, |n| seen.push(n.at));
        assert_eq!((lost, seen.len() - 5), (NOTES as u64 + 1, NOTES - 1));
        let off = PolicyLog::off();
        off.write(note(1));
        assert!(!off.is_on());
        assert_eq!(off.read(&mut 0, |_| panic!("nobody wrote")), 0);
    }

    #[test]
    fn no_note_is_a_mixture() {
        let (diary, over) = (PolicyLog::on(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut from, mut last) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    diary.read(&mut from, |n| {
                        assert_eq!((n.budget, n.bits), (n.at, n.at as u8));
                        assert!(n.at >= last);
                        last = n.at;
                    });
                }
            });
            (0..300_000).for_each(|at| diary.write(note(at)));
            over.store(true, Ordering::Relaxed);
        });
    }
}
