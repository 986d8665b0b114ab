//! Barriers of a guest: who waits at which.

use std::collections::BTreeMap;

use crate::queue::Ns;

#[derive(Clone, Debug, Default)]
struct Barrier {
    /// Tasks that wait there.
    waits: Vec<u32>,
    /// How long they spin.
    spin_ns: Ns,
}

/// Barriers, by the first task of their label.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barriers(BTreeMap<u32, Barrier>);

impl Barriers {
    /// A task comes to a barrier of `of` tasks. Returns the waiting tasks if it is the last; else it waits from now on.
    pub(crate) fn meet(&mut self, barrier: u32, t: u32, of: u32, spin_ns: Ns) -> Option<Vec<u32>> {
        let Barrier { waits, spin_ns: spins } = self.0.entry(barrier).or_default();
        *spins = spin_ns;
        if waits.len() as u32 + 1 >= of {
            return Some(std::mem::take(waits));
        }
        waits.push(t);
        None
    }

    pub(crate) fn holds(&self, barrier: u32, t: u32) -> bool {
        self.0.get(&barrier).is_some_and(|barrier| barrier.waits.contains(&t))
    }

    /// How long tasks spin at a barrier before they sleep.
    pub(crate) fn spin_ns(&self, barrier: u32) -> Ns {
        self.0.get(&barrier).map_or(0, |barrier| barrier.spin_ns)
    }
}
