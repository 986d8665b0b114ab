//! CPUs by RT priority, so that a waking or waiting RT entity finds the CPU with the least urgent work without checking
//! every CPU.
//!
//! As in the kernel's `cpupri`, all CPUs without RT entities count as equal, idle or not: an RT entity preempts a
//! fair one on its own, cache-warm CPU rather than wake an idle CPU. A CPU with deadline entities counts as more
//! urgent than all of them.

use alloc::vec;
use alloc::vec::Vec;

use super::PRIOS;
use crate::{CpuId, CpuSet};

/// Priority of a CPU with deadline entities that may run.
pub(crate) const DEADLINE: u8 = PRIOS as u8;

#[derive(Clone, Debug)]
pub(crate) struct CpuPri {
    /// CPUs by the best priority they have (0 = none): for each priority, as many words of a bitmap
    /// as the level has CPUs for. Whole [`CpuSet`]s would be 13 KB for a guest of one CPU, and
    /// hundreds of such guests would not fit a TLB.
    sets: Vec<u64>,
    /// Words of a set.
    words: usize,
    /// How many CPUs each set holds.
    counts: Vec<u32>,
    /// Bit `p`: set `p` is not empty.
    used: u128,
    level: Vec<u8>,
}

impl CpuPri {
    pub(crate) fn new(cpus: u32) -> Self {
        let words = cpus.div_ceil(64) as usize;
        let mut sets = vec![0; words * (PRIOS + 1)];
        sets[..words].copy_from_slice(&CpuSet::first_n(cpus).words()[..words]);
        let mut counts = vec![0; PRIOS + 1];
        counts[0] = cpus;
        Self { sets, words, counts, used: 1, level: vec![0; cpus as usize] }
    }

    #[inline]
    pub(crate) fn level(&self, cpu: CpuId) -> u8 {
        self.level[cpu.index()]
    }

    /// Records the best priority of a CPU. *O*(1).
    #[inline]
    pub(crate) fn set(&mut self, cpu: CpuId, prio: u8) {
        let old = core::mem::replace(&mut self.level[cpu.index()], prio);
        if old == prio {
            return;
        }
        let (old, new) = (usize::from(old), usize::from(prio));
        let (word, bit) = (cpu.index() / 64, 1 << (cpu.0 % 64));
        self.sets[old * self.words + word] &= !bit;
        self.counts[old] -= 1;
        if self.counts[old] == 0 {
            self.used &= !(1 << old);
        }
        self.sets[new * self.words + word] |= bit;
        self.counts[new] += 1;
        self.used |= 1 << new;
    }

    /// Of the CPUs in `allowed` with a priority below `prio`, those with the lowest.
    pub(crate) fn lowest(&self, prio: u8, allowed: &CpuSet) -> Option<CpuSet> {
        let mut left = self.used & ((1 << prio) - 1);
        while left != 0 {
            let p = left.trailing_zeros();
            left &= left - 1;
            let at = p as usize * self.words;
            let found = allowed.and_words(&self.sets[at..at + self.words]);
            if !found.is_empty() {
                return Some(found);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_least_urgent_cpus() {
        let mut p = CpuPri::new(4);
        let all = CpuSet::first_n(4);
        for (cpu, prio) in [(0, 50), (1, 10), (2, 10), (3, 0)] {
            p.set(CpuId(cpu), prio);
        }
        assert_eq!(p.lowest(1, &all), Some(CpuSet::one(CpuId(3))));
        let busy = CpuSet::first_n(3);
        assert_eq!(p.lowest(99, &busy), Some([1u32, 2].into_iter().collect()));
        assert_eq!(p.lowest(10, &busy), None);
        p.set(CpuId(0), DEADLINE);
        assert_eq!(p.lowest(99, &CpuSet::one(CpuId(0))), None);
        p.set(CpuId(0), 50);
        p.set(CpuId(1), 60);
        p.set(CpuId(2), 60);
        assert_eq!(p.lowest(60, &busy), Some(CpuSet::one(CpuId(0))));
        assert_eq!(p.level(CpuId(2)), 60);
    }
}
