//! The event queue: one pending event per timer-owning entity, in a timing wheel.
//!
//! An entity owns a *slot*; a slot holds at most one event. Setting, moving and cancelling an
//! event links or unlinks its slot in the list of a bucket: *O*(1), no allocation, no hash, no
//! tombstone. Buckets are `2^shift` ns wide. Taking the next event finds the first bucket that
//! is not empty through a bitmap, sorts it (it mostly holds one event) and hands its events out
//! one by one. Two coarser stages hold what lies further ahead; an event descends at most twice.
//!
//! Events come out by time, and at equal times in the order in which they were set: the bucket
//! width changes the speed, never the order. That order is what makes a run reproducible.
//!
//! Why not a heap: a heap pays `O(log n)` data-dependent branches for each event, and a position
//! index on top, because schedulers move and cancel pending events all the time.

/// Integer nanoseconds.
pub type Ns = u64;

const NEAR_BITS: u32 = 12;
const NEAR: usize = 1 << NEAR_BITS;
const EPOCHS: usize = 1024;
/// Buckets: `0..NEAR` are ticks of the current epoch, then one for each of the epochs ahead,
/// then one for everything beyond.
const FAR: usize = NEAR + EPOCHS;

const NIL: u32 = u32::MAX;
/// Value of `Slot::bucket` for a slot without an event.
const EMPTY: u32 = u32::MAX;
/// Value of `Slot::bucket` for an event in `current`.
const CURRENT: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Slot {
    time: Ns,
    sequence: u64,
    next: u32,
    prev: u32,
    bucket: u32,
}

/// Pending events, one a slot. See the [module](self) for the design.
#[derive(Clone, Debug)]
pub struct EventQueue {
    slots: Box<[Slot]>,
    heads: Box<[u32]>,
    near_bits: [u64; NEAR / 64],
    /// Bit `i` is set when `near_bits[i]` is not zero.
    near_words: u64,
    epoch_bits: [u64; EPOCHS / 64],
    /// invariant: sorted by (time, sequence), latest first; holds every event of ticks up to
    /// and including `tick`.
    current: Vec<u32>,
    tick: u64,
    shift: u32,
    sequence: u64,
    /// No event in the far bucket belongs to an earlier epoch than this.
    far_epoch: u64,
}

impl EventQueue {
    /// A queue of `slots` slots, all empty, with buckets of 4 us: right for models with some
    /// 10^4 to 10^6 events a simulated second.
    pub fn new(slots: usize) -> Self {
        Self::with_shift(slots, 12)
    }

    /// A queue with buckets of `2^shift` ns. Fastest when a bucket holds about one event.
    pub fn with_shift(slots: usize, shift: u32) -> Self {
        let empty = Slot { time: 0, sequence: 0, next: NIL, prev: NIL, bucket: EMPTY };
        Self {
            slots: vec![empty; slots].into_boxed_slice(),
            heads: vec![NIL; FAR + 1].into_boxed_slice(),
            near_bits: [0; NEAR / 64],
            near_words: 0,
            epoch_bits: [0; EPOCHS / 64],
            current: Vec::with_capacity(slots),
            tick: 0,
            shift,
            sequence: 0,
            far_epoch: u64::MAX,
        }
    }

    /// Sets the slot's event to `time`, replacing the one it has. *O*(1). A time before that of
    /// the last event taken comes out next.
    #[inline]
    pub fn set(&mut self, slot: u32, time: Ns) {
        if self.slots[slot as usize].bucket != EMPTY {
            self.remove(slot);
        }
        self.sequence += 1;
        let s = &mut self.slots[slot as usize];
        s.time = time;
        s.sequence = self.sequence;
        self.place(slot, time);
    }

    /// Empties the slot. *O*(1).
    #[inline]
    pub fn cancel(&mut self, slot: u32) {
        if self.slots[slot as usize].bucket != EMPTY {
            self.remove(slot);
            self.slots[slot as usize].bucket = EMPTY;
        }
    }

    /// When the slot's event is due.
    #[inline]
    pub fn time(&self, slot: u32) -> Option<Ns> {
        let s = &self.slots[slot as usize];
        (s.bucket != EMPTY).then_some(s.time)
    }

    /// Takes the earliest event: its time and slot. Amortised *O*(1).
    #[inline]
    pub fn pop(&mut self) -> Option<(Ns, u32)> {
        match self.current.pop() {
            Some(slot) => Some(self.take(slot)),
            None => self.pop_bucket(),
        }
    }

    /// Removes the slot's event.
    #[inline]
    fn take(&mut self, slot: u32) -> (Ns, u32) {
        let s = &mut self.slots[slot as usize];
        s.bucket = EMPTY;
        (s.time, slot)
    }

    #[inline]
    fn place(&mut self, slot: u32, time: Ns) {
        let tick = time >> self.shift;
        if tick <= self.tick {
            return self.place_current(slot);
        }
        let (epoch, now) = (tick >> NEAR_BITS, self.tick >> NEAR_BITS);
        let bucket = if epoch == now {
            let b = (tick as usize) & (NEAR - 1);
            self.near_bits[b / 64] |= 1 << (b % 64);
            self.near_words |= 1 << (b / 64);
            b
        } else if epoch - now < EPOCHS as u64 {
            let e = (epoch as usize) & (EPOCHS - 1);
            self.epoch_bits[e / 64] |= 1 << (e % 64);
            NEAR + e
        } else {
            self.far_epoch = self.far_epoch.min(epoch);
            FAR
        };
        let head = std::mem::replace(&mut self.heads[bucket], slot);
        if head != NIL {
            self.slots[head as usize].prev = slot;
        }
        let s = &mut self.slots[slot as usize];
        s.next = head;
        s.prev = NIL;
        s.bucket = bucket as u32;
    }

    #[inline]
    fn place_current(&mut self, slot: u32) {
        self.slots[slot as usize].bucket = CURRENT;
        let key = self.key(slot);
        match self.current.last() {
            Some(&next) if self.key(next) < key => self.place_behind(slot, key),
            // Mostly nothing else is due so soon.
            _ => self.current.push(slot),
        }
    }

    /// Ticks of many CPUs at one time make the list long: binary search.
    #[inline(never)]
    fn place_behind(&mut self, slot: u32, key: (Ns, u64)) {
        let at = self.current.partition_point(|&s| self.key(s) > key);
        self.current.insert(at, slot);
    }

    #[inline]
    fn key(&self, slot: u32) -> (Ns, u64) {
        let s = &self.slots[slot as usize];
        (s.time, s.sequence)
    }

    /// Unlinks a slot that has an event; its `bucket` is left stale.
    #[inline]
    fn remove(&mut self, slot: u32) {
        let Slot { next, prev, bucket, .. } = self.slots[slot as usize];
        if bucket == CURRENT {
            return self.remove_current(slot);
        }
        if next != NIL {
            self.slots[next as usize].prev = prev;
        }
        if prev != NIL {
            self.slots[prev as usize].next = next;
            return;
        }
        self.heads[bucket as usize] = next;
        if next == NIL {
            self.clear_bit(bucket as usize);
        }
    }

    /// Separate, like [`place_behind`](Self::place_behind): their loops would take registers from callers that need
    /// neither.
    #[inline(never)]
    fn remove_current(&mut self, slot: u32) {
        self.current.retain(|&s| s != slot);
    }

    #[inline]
    fn clear_bit(&mut self, bucket: usize) {
        if bucket < NEAR {
            self.near_bits[bucket / 64] &= !(1 << (bucket % 64));
            if self.near_bits[bucket / 64] == 0 {
                self.near_words &= !(1 << (bucket / 64));
            }
        } else if bucket < FAR {
            let e = bucket - NEAR;
            self.epoch_bits[e / 64] &= !(1 << (e % 64));
        } else {
            self.far_epoch = u64::MAX;
        }
    }

    /// Takes the earliest event of the next bucket that is not empty; the others are current from now on.
    #[inline]
    fn pop_bucket(&mut self) -> Option<(Ns, u32)> {
        while self.near_words == 0 {
            if !self.next_epoch() {
                return None;
            }
            if let Some(slot) = self.current.pop() {
                return Some(self.take(slot)); // an event of the new epoch's first tick
            }
        }
        let word = self.near_words.trailing_zeros() as usize;
        let b = word * 64 + self.near_bits[word].trailing_zeros() as usize;
        self.tick = (self.tick >> NEAR_BITS << NEAR_BITS) + b as u64;
        let first = std::mem::replace(&mut self.heads[b], NIL);
        self.clear_bit(b);
        if self.slots[first as usize].next == NIL {
            // Mostly it is alone.
            return Some(self.take(first));
        }
        let mut slot = first;
        while slot != NIL {
            self.current.push(slot);
            let s = &mut self.slots[slot as usize];
            s.bucket = CURRENT;
            slot = s.next;
        }
        let slots = &self.slots;
        self.current.sort_unstable_by_key(|&s| {
            let s = &slots[s as usize];
            std::cmp::Reverse((s.time, s.sequence))
        });
        let slot = self.current.pop()?;
        Some(self.take(slot))
    }

    /// Enters the next epoch that holds an event and spreads its events over the near buckets.
    fn next_epoch(&mut self) -> bool {
        let now = self.tick >> NEAR_BITS;
        let ahead = self.next_epoch_bit(now);
        let epoch = match (ahead, self.far_epoch) {
            (None, u64::MAX) => return false,
            (ahead, far) => ahead.unwrap_or(u64::MAX).min(far),
        };
        self.tick = epoch << NEAR_BITS;
        let e = (epoch as usize) & (EPOCHS - 1);
        self.epoch_bits[e / 64] &= !(1 << (e % 64));
        self.spread(NEAR + e);
        if self.far_epoch < epoch + EPOCHS as u64 {
            self.far_epoch = u64::MAX;
            self.spread(FAR);
        }
        true
    }

    fn spread(&mut self, bucket: usize) {
        let mut slot = std::mem::replace(&mut self.heads[bucket], NIL);
        while slot != NIL {
            let Slot { next, time, .. } = self.slots[slot as usize];
            self.place(slot, time);
            slot = next;
        }
    }

    fn next_epoch_bit(&self, now: u64) -> Option<u64> {
        let start = (now as usize + 1) & (EPOCHS - 1);
        let words = self.epoch_bits.len();
        for i in 0..=words {
            let w = (start / 64 + i) % words;
            let mut bits = self.epoch_bits[w];
            if i == 0 {
                bits &= !0 << (start % 64);
            } else if i == words {
                bits &= !(!0 << (start % 64));
            }
            if bits != 0 {
                let e = w * 64 + bits.trailing_zeros() as usize;
                let distance = (e + EPOCHS - start) & (EPOCHS - 1);
                return Some(now + 1 + distance as u64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_times_come_out_in_the_order_they_were_set() {
        let mut q = EventQueue::new(5);
        for slot in [3, 0, 4, 1] {
            q.set(slot, 7);
        }
        q.set(0, 7); // set again: goes behind the others
        let order: Vec<_> = std::iter::from_fn(|| q.pop()).collect();
        assert_eq!(order, [(7, 3), (7, 4), (7, 1), (7, 0)]);
    }

    #[test]
    fn the_slot_just_popped_can_be_set_again_or_left() {
        let mut q = EventQueue::new(2);
        q.set(0, 1);
        q.set(1, 2);
        assert_eq!(q.pop(), Some((1, 0)));
        assert_eq!(q.time(0), None);
        q.set(0, 3);
        assert_eq!(q.pop(), Some((2, 1)));
        assert_eq!(q.pop(), Some((3, 0)));
        assert_eq!(q.pop(), None);
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_map(ops in prop::collection::vec((0u32..37, 0u64..50, 0u8..4), 1..400), shift in 0u32..6, stretch in 0u32..9) {
            // Times advance, as in a simulation; the stretch reaches into every stage.
            let mut q = EventQueue::with_shift(37, shift);
            let mut now = 0;
            let mut map: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut at: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            let mut seq = 0;
            for (slot, delta, op) in ops {
                let time = now + (delta << (stretch * 3));
                match op {
                    0 | 1 => {
                        q.set(slot, time);
                        seq += 1;
                        if let Some(k) = at.insert(slot, (time, seq)) { map.remove(&k); }
                        map.insert((time, seq), slot);
                    }
                    2 => {
                        q.cancel(slot);
                        if let Some(k) = at.remove(&slot) { map.remove(&k); }
                    }
                    _ => {
                        let want = map.pop_first().map(|((t, _), s)| (t, s));
                        if let Some((t, s)) = want { at.remove(&s); now = t; }
                        prop_assert_eq!(q.pop(), want);
                    }
                }
                prop_assert_eq!(q.time(slot), at.get(&slot).map(|k| k.0));
            }
        }
    }
}
