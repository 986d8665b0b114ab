//! Sets of CPUs as fixed bitmaps.

use core::fmt;

use crate::CpuId;

/// Most CPUs a level can have.
pub const MAX_CPUS: u32 = 1024;

const WORDS: usize = MAX_CPUS as usize / 64;

/// A set of up to [`MAX_CPUS`] CPUs: a bitmap, so that an intersection takes a few instructions for every 64 CPUs, and
/// no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// CPUs `0..n`.
    ///
    /// # Panics
    /// If `n` exceeds [`MAX_CPUS`].
    pub fn first_n(n: u32) -> Self {
        Self::range(0, n)
    }

    /// CPUs `from..to`.
    ///
    /// # Panics
    /// If `to` exceeds [`MAX_CPUS`].
    pub fn range(from: u32, to: u32) -> Self {
        assert!(to <= MAX_CPUS, "CPU sets hold CPUs below {MAX_CPUS}");
        let mut s = Self::EMPTY;
        for (i, w) in s.words.iter_mut().enumerate() {
            let base = i as u32 * 64;
            let lo = from.clamp(base, base + 64) - base;
            let hi = to.clamp(base, base + 64) - base;
            *w = below(hi) & !below(lo);
        }
        s
    }

    /// One CPU.
    ///
    /// # Panics
    /// If the CPU is not below [`MAX_CPUS`].
    pub fn one(cpu: CpuId) -> Self {
        let mut s = Self::EMPTY;
        s.insert(cpu);
        s
    }

    /// Adds a CPU.
    ///
    /// # Panics
    /// If the CPU is not below [`MAX_CPUS`].
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        self.words[cpu.index() / 64] |= 1 << (cpu.0 % 64);
    }

    /// Removes a CPU; one beyond [`MAX_CPUS`] is never in the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(w) = self.words.get_mut(cpu.index() / 64) {
            *w &= !(1 << (cpu.0 % 64));
        }
    }

    /// Whether the CPU is in the set.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.index() / 64).is_some_and(|w| w >> (cpu.0 % 64) & 1 != 0)
    }

    /// CPUs in both sets.
    #[inline]
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut s = *self;
        for (w, o) in s.words.iter_mut().zip(other.words) {
            *w &= o;
        }
        s
    }

    /// The bitmap, lowest CPUs first.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// CPUs in both sets; the other set is given by the first words of its bitmap.
    #[inline]
    pub(crate) fn and_words(&self, other: &[u64]) -> Self {
        let mut s = Self::EMPTY;
        for ((w, a), b) in s.words.iter_mut().zip(&self.words).zip(other) {
            *w = a & b;
        }
        s
    }

    /// CPUs in this set and not in the other.
    #[inline]
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut s = *self;
        for (w, o) in s.words.iter_mut().zip(other.words) {
            *w &= !o;
        }
        s
    }

    /// The lowest CPU.
    #[inline]
    pub fn first(&self) -> Option<CpuId> {
        self.next_at(0)
    }

    /// The lowest CPU that is `from` or higher.
    #[inline]
    pub fn next_at(&self, from: u32) -> Option<CpuId> {
        let mut i = from as usize / 64;
        let mut w = self.words.get(i)? & !below(from % 64);
        loop {
            if w != 0 {
                return Some(CpuId(i as u32 * 64 + w.trailing_zeros()));
            }
            i += 1;
            w = *self.words.get(i)?;
        }
    }

    /// Whether there is no CPU.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, w| all | w) == 0
    }

    /// Number of CPUs.
    #[inline]
    pub fn len(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// The CPUs in rising order.
    #[inline]
    pub fn iter(&self) -> Iter {
        Iter { set: *self, word: 0 }
    }

    /// How many CPUs of `lo..hi` are in the set.
    pub(crate) fn len_in(&self, lo: u32, hi: u32) -> u32 {
        self.and(&Self::range(lo, hi)).len()
    }

    /// The lowest CPU of `lo..hi` that is in this set and, if given, in the other.
    #[inline]
    pub fn find(&self, and: Option<&Self>, lo: u32, hi: u32) -> Option<CpuId> {
        if lo >= hi {
            return None;
        }
        let (first, last) = (lo as usize / 64, (hi as usize - 1) / 64);
        for i in first..=last {
            let mut w = self.words[i];
            if let Some(o) = and {
                w &= o.words[i];
            }
            if i == first {
                w &= !below(lo % 64);
            }
            if i == last {
                w &= below(hi - i as u32 * 64);
            }
            if w != 0 {
                return Some(CpuId(i as u32 * 64 + w.trailing_zeros()));
            }
        }
        None
    }

    /// As [`find`](Self::find), from `from` on and around.
    #[inline]
    pub fn find_from(&self, and: Option<&Self>, from: u32, lo: u32, hi: u32) -> Option<CpuId> {
        let from = from.clamp(lo, hi);
        self.find(and, from, hi).or_else(|| self.find(and, lo, from))
    }
}

/// The bits below bit `n` (`n` up to 64).
#[inline]
fn below(n: u32) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for CpuSet {
    /// Prints as a CPU list does: `{0-3,8}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        let mut from = 0;
        let mut sep = "";
        while let Some(CpuId(lo)) = self.next_at(from) {
            let mut hi = lo;
            while self.contains(CpuId(hi + 1)) {
                hi += 1;
            }
            if hi > lo {
                write!(f, "{sep}{lo}-{hi}")?;
            } else {
                write!(f, "{sep}{lo}")?;
            }
            sep = ",";
            from = hi + 1;
        }
        f.write_str("}")
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(iter: I) -> Self {
        let mut s = Self::EMPTY;
        for c in iter {
            s.insert(c);
        }
        s
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        iter.into_iter().map(CpuId).collect()
    }
}

impl IntoIterator for &CpuSet {
    type Item = CpuId;
    type IntoIter = Iter;
    fn into_iter(self) -> Iter {
        self.iter()
    }
}

/// Iterator over a [`CpuSet`], lowest first.
#[derive(Clone, Debug)]
pub struct Iter {
    set: CpuSet,
    word: usize,
}

impl Iterator for Iter {
    type Item = CpuId;

    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        while self.word < WORDS {
            let w = &mut self.set.words[self.word];
            if *w != 0 {
                let bit = w.trailing_zeros();
                *w &= *w - 1;
                return Some(CpuId(self.word as u32 * 64 + bit));
            }
            self.word += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    #[test]
    fn ranges_cross_word_borders() {
        let s = CpuSet::range(60, 130);
        assert_eq!(s.len(), 70);
        assert_eq!(s.first(), Some(CpuId(60)));
        assert!(s.contains(CpuId(129)) && !s.contains(CpuId(130)) && !s.contains(CpuId(59)));
        assert_eq!(s.iter().map(|c| c.0).collect::<Vec<_>>(), (60..130).collect::<Vec<_>>());
        assert_eq!(CpuSet::first_n(MAX_CPUS).len(), MAX_CPUS);
    }

    #[test]
    fn set_algebra() {
        let a: CpuSet = [1u32, 64, 200].into_iter().collect();
        let b: CpuSet = [64u32, 200, 1023].into_iter().collect();
        assert_eq!(a.and(&b), [64u32, 200].into_iter().collect());
        assert_eq!(a.without(&b), CpuSet::one(CpuId(1)));
        assert_eq!(b.next_at(201), Some(CpuId(1023)));
        assert_eq!(a.next_at(201), None);
        assert_eq!(a.find(None, 2, 200), Some(CpuId(64)));
        assert_eq!(a.find(Some(&b), 0, 64), None);
        assert_eq!(a.find(Some(&b), 65, 201), Some(CpuId(200)));
        assert_eq!(a.find_from(None, 100, 0, 128), Some(CpuId(1)));
        assert_eq!(a.find_from(None, 200, 0, 201), Some(CpuId(200)));
        assert!(!a.contains(CpuId(5000)));
        assert_eq!(format!("{:?}", CpuSet::range(0, 4)), "{0-3}");
        assert_eq!(format!("{a:?}"), "{1,64,200}");
    }
}
