//! The sample ring: one writer in the guest, one reader in the host, and no trust between them.
//!
//! The guest owns the ring and overwrites its oldest samples; the host follows. The host never writes here, never uses
//! a guest value as an index without a bound, and counts the samples that it could not read.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::line::ServedCall;

/// Samples in a ring.
pub const CAPACITY: u64 = 8192;

/// One sample. Times are guest TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When the task was due.
    pub due: u64,
    /// When its first instruction ran.
    pub taken: u64,
    /// When the kernel made it ready.
    pub woken: u64,
    /// When the host last injected a timer or device interrupt, as the guest saw it.
    pub fired: u64,
    /// Periods without a sample since the one before, less than 2^62.
    pub missed: u64,
    /// The vCPU was idle when the interrupt came.
    pub from_idle: bool,
    /// For a round trip: how the call was served.
    pub served: ServedCall,
}

/// The ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Ring {
    /// Samples written so far.
    head: AtomicU64,
    reserved: [u64; 7],
    slots: [[AtomicU64; 8]; CAPACITY as usize],
}

impl Ring {
    /// Words of a ring.
    pub const WORDS: usize = 8 + 8 * CAPACITY as usize;

    /// Empty.
    pub const fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            reserved: [0; 7],
            slots: [const { [const { AtomicU64::new(0) }; 8] }; CAPACITY as usize],
        }
    }

    /// Stores any word of the ring, as a hostile guest may: word 0 is the count, the slots begin at word 8. For tests
    /// of the reader; other callers [`push`](Self::push).
    pub fn scribble(&self, at: usize, word: u64) {
        let place = match at.checked_sub(8) {
            None if at == 0 => Some(&self.head),
            None => None,
            Some(at) => self.slots.get(at / 8).and_then(|slot| slot.get(at % 8)),
        };
        if let Some(place) = place {
            place.store(word, Ordering::Release);
        }
    }

    /// Guest: appends.
    pub fn push(&self, s: Sample) {
        let head = self.head.load(Ordering::Relaxed);
        let slot = &self.slots[(head % CAPACITY) as usize];
        let ServedCall { taken, done, woken, idle } = s.served;
        let count = s.missed << 2 | u64::from(idle) << 1 | u64::from(s.from_idle);
        let words = [s.due, s.taken, s.woken, s.fired, count, taken, done, woken];
        // A reader that sees a word of this sample also sees the count before it, and so that the slot's old sample
        // is being overwritten: pairs with the fence in `Reader::read`.
        fence(Ordering::Release);
        for (place, word) in slot.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        // Pairs with the acquire in `Reader::read`: who sees the count sees the sample.
        self.head.store(head + 1, Ordering::Release);
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}

/// The host's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    tail: u64,
    lost: u64,
}

impl Reader {
    /// A reader at the beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Samples overwritten before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Hands out what has been written since the last call. The work of a call is bounded by the ring's size, whatever
    /// the guest has written.
    pub fn read(&mut self, ring: &Ring, mut each: impl FnMut(Sample)) {
        // A hostile guest may write any count, also a smaller one: then there is nothing to read.
        let head = ring.head.load(Ordering::Acquire);
        let new = head.saturating_sub(self.tail);
        if new > CAPACITY {
            self.lost = self.lost.saturating_add(new - CAPACITY);
            self.tail = head - CAPACITY;
        }
        while self.tail < head {
            let slot = &ring.slots[(self.tail % CAPACITY) as usize];
            let [due, taken, woken, fired, count, begun, done, ready] =
                core::array::from_fn(|i| slot[i].load(Ordering::Relaxed));
            // The slot may have been overwritten meanwhile; pairs with the fence in `push`.
            fence(Ordering::Acquire);
            let now = ring.head.load(Ordering::Relaxed);
            if now.saturating_sub(self.tail) >= CAPACITY {
                self.lost = self.lost.saturating_add(1);
            } else {
                let served = ServedCall { taken: begun, done, woken: ready, idle: count & 2 != 0 };
                let (missed, from_idle) = (count >> 2, count & 1 != 0);
                each(Sample { due, taken, woken, fired, missed, from_idle, served });
            }
            self.tail += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{CAPACITY, Reader, Ring, Sample};
    use crate::line::ServedCall;
    use core::sync::atomic::Ordering;
    use std::boxed::Box;
    use std::vec::Vec;

    fn ring() -> Box<Ring> {
        Box::new(Ring::new())
    }

    fn drain(reader: &mut Reader, ring: &Ring) -> Vec<u64> {
        let mut out = Vec::new();
        reader.read(ring, |s| out.push(s.due));
        out
    }

    #[test]
    fn what_goes_in_comes_out_once() {
        let (ring, mut reader) = (ring(), Reader::new());
        for due in 0..3 {
            ring.push(Sample { due, ..Sample::default() });
        }
        assert_eq!(drain(&mut reader, &ring), [0, 1, 2]);
        assert_eq!(drain(&mut reader, &ring), []);
    }

    #[test]
    fn every_field_comes_out_as_it_went_in() {
        let (ring, mut reader) = (ring(), Reader::new());
        let served = ServedCall { taken: 6, done: 7, woken: 8, idle: true };
        let one =
            Sample { due: 1, taken: 2, woken: 3, fired: 4, missed: 5, served, from_idle: false };
        let two = Sample { from_idle: true, served: ServedCall { idle: false, ..served }, ..one };
        ring.push(one);
        ring.push(two);
        let mut out = Vec::new();
        reader.read(&ring, |s| out.push(s));
        assert_eq!(out, [one, two]);
    }

    #[test]
    fn overwritten_samples_are_counted() {
        let (ring, mut reader) = (ring(), Reader::new());
        for due in 0..CAPACITY + 10 {
            ring.push(Sample { due, ..Sample::default() });
        }
        let got = drain(&mut reader, &ring);
        assert_eq!(got.len() as u64 + reader.lost(), CAPACITY + 10);
        assert_eq!(got.last(), Some(&(CAPACITY + 9)));
    }

    #[test]
    fn a_hostile_count_costs_at_most_one_ring() {
        let (ring, mut reader) = (ring(), Reader::new());
        ring.head.store(u64::MAX, Ordering::Relaxed);
        assert!(drain(&mut reader, &ring).len() as u64 <= CAPACITY);
        ring.head.store(5, Ordering::Relaxed);
        assert_eq!(drain(&mut reader, &ring), [], "a count that goes back gives nothing");
    }

    #[test]
    fn a_scribbled_slot_is_handed_out_as_it_is_and_once() {
        let (ring, mut reader) = (ring(), Reader::new());
        ring.scribble(8 + 8 * 2, u64::MAX);
        ring.scribble(0, 3);
        ring.scribble(Ring::WORDS, 7);
        ring.scribble(1, 7);
        assert_eq!(drain(&mut reader, &ring), [0, 0, u64::MAX]);
        assert_eq!(drain(&mut reader, &ring), []);
    }
}
