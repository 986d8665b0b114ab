//! Spare time: what is left when every virtual processor that can run has had its share, by the weights of partitions.
//!
//! Stride scheduling (Waldspurger and Weihl, 1995), over partitions: each has a pass, its used spare time divided by
//! its weight, and the lowest pass goes first. A core is given until the window ends, so passes are compared as if it
//! were used until then. A partition that begins to want spare time is at most a window of the whole pool behind the
//! lowest pass among those that want some: every window begins with no partition wanting any, and one that is behind
//! stays so, but time without wanting any earns nothing.

use vcoop_sched::config::Ns;

use super::Pool;

/// Pass of one nanosecond at weight 1.
const SCALE: u128 = 1 << 16;

impl Pool {
    /// The pass of a partition if it had `cores` cores until the window ends.
    fn pass_with(&self, part: usize, cores: u32, now: Ns) -> u128 {
        let p = &self.parts[part];
        let ahead = u128::from(cores) * u128::from(self.window_end.saturating_sub(now));
        p.pass + ahead * SCALE / u128::from(p.weight.max(1))
    }

    /// The partition whose turn it is, if one waits for spare time.
    pub(super) fn spare_next(&self, now: Ns) -> Option<(u128, usize)> {
        if self.spare_waits == 0 {
            return None;
        }
        let waits = |i: &usize| !self.parts[*i].waiting.is_empty();
        let parts = (0..self.parts.len()).filter(waits);
        parts.map(|i| (self.pass_with(i, self.parts[i].spare_on + 1, now), i)).min()
    }

    /// Whether a core that a partition has on spare time should go to another partition.
    pub(super) fn spare_yields(&self, part: usize, now: Ns) -> bool {
        let own = self.pass_with(part, self.parts[part].spare_on, now);
        self.spare_next(now).is_some_and(|(pass, next)| next != part && pass < own)
    }

    /// A partition used spare time.
    pub(super) fn spend(&mut self, part: usize, ns: Ns) {
        let p = &mut self.parts[part];
        p.pass += u128::from(ns) * SCALE / u128::from(p.weight.max(1));
    }

    fn wants_spare(&self, part: usize) -> bool {
        let p = &self.parts[part];
        p.spare_on > 0 || !p.waiting.is_empty()
    }

    /// Raises the floor: no later partition starts below the lowest pass of those that want spare time now.
    fn raise_floor(&mut self) {
        let wants = (0..self.parts.len()).filter(|&i| self.wants_spare(i));
        if let Some(least) = wants.map(|i| self.parts[i].pass).min() {
            self.floor = self.floor.max(least);
        }
    }

    fn spare_begins(&mut self, part: usize) {
        if !self.wants_spare(part) {
            self.raise_floor();
            let window = self.cores.len() as u128 * u128::from(self.cfg.window_ns);
            let p = &mut self.parts[part];
            let behind = window * SCALE / u128::from(p.weight.max(1));
            p.pass = p.pass.max(self.floor.saturating_sub(behind));
        }
    }

    /// A virtual processor waits for spare time.
    pub(super) fn spare_wait(&mut self, v: u32) {
        let part = usize::from(self.vps[v as usize].partition);
        self.spare_begins(part);
        self.parts[part].waiting.push_back(v);
        self.spare_waits += 1;
    }

    /// A virtual processor stops waiting for spare time.
    pub(super) fn spare_unwait(&mut self, v: u32) {
        let part = usize::from(self.vps[v as usize].partition);
        self.raise_floor();
        let waiting = &mut self.parts[part].waiting;
        // invariant: Place::Spare means that it is in its partition's line, once.
        if let Some(at) = waiting.iter().position(|&o| o == v) {
            waiting.remove(at);
            self.spare_waits -= 1;
        }
    }

    /// One more core of the partition runs on spare time.
    pub(super) fn spare_start(&mut self, part: usize) {
        self.spare_begins(part);
        self.parts[part].spare_on += 1;
    }

    /// One core of the partition no longer runs on spare time.
    pub(super) fn spare_stop(&mut self, part: usize) {
        self.raise_floor();
        self.parts[part].spare_on -= 1;
    }
}
