//! The queue of both fair schedulers: an indexed binary heap that also has, for every node, the smallest virtual
//! runtime in its subtree.
//!
//! CFS orders it by virtual runtime and looks at the top. EEVDF orders it by virtual deadline and
//! asks for the first entity, in that order, whose virtual runtime makes it eligible; the
//! subtree minimum lets the search skip every subtree without one. A run queue holds a handful
//! of entities, so a flat array beats a tree of pointers, and the array keeps its capacity: no
//! allocation in steady state.
//!
//! Equal keys come out in the order they went in.

use alloc::vec::Vec;

/// "Not in a heap", "no entity".
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The value that orders the heap.
    pub(crate) key: i64,
    /// Order of insertion, which decides between equal keys.
    seq: u64,
    /// Virtual runtime of the entity.
    pub(crate) vruntime: i64,
    /// Smallest virtual runtime of this node and all below it.
    min_vruntime: i64,
    /// The entity.
    pub(crate) se: u32,
}

impl Node {
    #[inline]
    fn before(&self, other: &Self) -> bool {
        (self.key, self.seq) < (other.key, other.seq)
    }
}

/// See the module. The positions of entities are in an array that all heaps of a level share, because an entity is in
/// one heap at most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    nodes: Vec<Node>,
    seq: u64,
}

impl Heap {
    #[inline]
    pub(crate) fn first(&self) -> Option<&Node> {
        self.nodes.first()
    }

    /// The second node in order.
    pub(crate) fn second(&self) -> Option<&Node> {
        match (self.nodes.get(1), self.nodes.get(2)) {
            (Some(a), Some(b)) if b.before(a) => Some(b),
            (a, _) => a,
        }
    }

    /// Smallest virtual runtime of all.
    #[inline]
    pub(crate) fn min_vruntime(&self) -> Option<i64> {
        self.nodes.first().map(|n| n.min_vruntime)
    }

    /// All nodes; the first is the most urgent, and the back half has the least urgent ones.
    #[inline]
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// *O*(log n).
    #[inline]
    pub(crate) fn insert(&mut self, pos: &mut [u32], se: u32, key: i64, vruntime: i64) {
        debug_assert_eq!(pos[se as usize], NONE, "entity is already queued");
        let leaf = self.nodes.len();
        self.seq += 1;
        self.nodes.push(Node { key, seq: self.seq, vruntime, min_vruntime: vruntime, se });
        pos[se as usize] = leaf as u32;
        self.sift_up(pos, leaf);
        self.fix_minima(leaf);
    }

    /// *O*(log n).
    #[inline]
    pub(crate) fn remove(&mut self, pos: &mut [u32], se: u32) {
        let at = core::mem::replace(&mut pos[se as usize], NONE) as usize;
        self.nodes.swap_remove(at);
        let len = self.nodes.len();
        if at < len {
            pos[self.nodes[at].se as usize] = at as u32;
            let up = self.sift_up(pos, at);
            let low = if up < at { at } else { self.sift_down(pos, at) };
            self.fix_minima(low);
        }
        // The last leaf has left its old place.
        if len > 0 {
            self.fix_minima((len - 1) / 2);
        }
    }

    /// The first entity in heap order whose virtual runtime satisfies `eligible`, which must hold
    /// for every value below one for which it holds.
    ///
    /// A node is skipped with all below it when the subtree minimum is not eligible or when the
    /// node is later than what was found already. *O*(log n) where eligibility and deadline agree
    /// roughly, as they do in a fair queue; never more than *O*(n).
    #[inline]
    pub(crate) fn earliest(&self, eligible: impl Fn(i64) -> bool) -> Option<u32> {
        let top = self.nodes.first()?;
        if eligible(top.vruntime) {
            return Some(top.se);
        }
        // Each level of the heap leaves at most one sibling waiting.
        let mut stack = [0usize; 34];
        let mut depth = 1;
        let mut best: Option<&Node> = None;
        while depth > 0 {
            depth -= 1;
            let i = stack[depth];
            let n = &self.nodes[i];
            if best.is_some_and(|b| b.before(n)) || !eligible(n.min_vruntime) {
                continue;
            }
            if eligible(n.vruntime) {
                best = Some(n);
                continue;
            }
            let (l, r) = (2 * i + 1, 2 * i + 2);
            if r < self.nodes.len() {
                // The more urgent child goes on top, so that it prunes the other one.
                let left_first = self.nodes[l].before(&self.nodes[r]);
                stack[depth] = if left_first { r } else { l };
                stack[depth + 1] = if left_first { l } else { r };
                depth += 2;
            } else if l < self.nodes.len() {
                stack[depth] = l;
                depth += 1;
            }
        }
        best.map(|n| n.se)
    }

    fn sift_up(&mut self, pos: &mut [u32], mut i: usize) -> usize {
        while i > 0 {
            let parent = (i - 1) / 2;
            if !self.nodes[i].before(&self.nodes[parent]) {
                break;
            }
            self.swap(pos, i, parent);
            i = parent;
        }
        i
    }

    fn sift_down(&mut self, pos: &mut [u32], mut i: usize) -> usize {
        loop {
            let (l, r) = (2 * i + 1, 2 * i + 2);
            let mut child = l;
            if r < self.nodes.len() && self.nodes[r].before(&self.nodes[l]) {
                child = r;
            }
            if child >= self.nodes.len() || !self.nodes[child].before(&self.nodes[i]) {
                return i;
            }
            self.swap(pos, i, child);
            i = child;
        }
    }

    fn swap(&mut self, pos: &mut [u32], a: usize, b: usize) {
        self.nodes.swap(a, b);
        pos[self.nodes[a].se as usize] = a as u32;
        pos[self.nodes[b].se as usize] = b as u32;
    }

    /// Recomputes the subtree minima from `i` to the top.
    fn fix_minima(&mut self, mut i: usize) {
        if i >= self.nodes.len() {
            return;
        }
        loop {
            let mut min = self.nodes[i].vruntime;
            for child in [2 * i + 1, 2 * i + 2] {
                if let Some(c) = self.nodes.get(child) {
                    min = min.min(c.min_vruntime);
                }
            }
            self.nodes[i].min_vruntime = min;
            if i == 0 {
                return;
            }
            i = (i - 1) / 2;
        }
    }

    /// Panics where order, positions or minima are wrong.
    pub(crate) fn check(&self, pos: &[u32]) {
        for (i, n) in self.nodes.iter().enumerate() {
            assert_eq!(pos[n.se as usize] as usize, i, "position of a queued entity");
            let children = [2 * i + 1, 2 * i + 2];
            let kids = || children.iter().filter_map(|&c| self.nodes.get(c));
            assert!(kids().all(|c| n.before(c)), "heap order");
            let min = kids().map(|c| c.min_vruntime).chain([n.vruntime]).min();
            assert_eq!(Some(n.min_vruntime), min, "subtree minimum");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn brute(h: &Heap, limit: i64) -> Option<u32> {
        h.nodes.iter().filter(|n| n.vruntime <= limit).min_by_key(|n| (n.key, n.seq)).map(|n| n.se)
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(
            ops in proptest::collection::vec((0u32..40, 0i64..50, 0i64..50, -5i64..55), 1..300)
        ) {
            let mut pos = vec![NONE; 40];
            let mut h = Heap::default();
            for (se, key, vr, limit) in ops {
                if pos[se as usize] == NONE {
                    h.insert(&mut pos, se, key, vr);
                } else {
                    h.remove(&mut pos, se);
                }
                h.check(&pos);
                prop_assert_eq!(h.earliest(|v| v <= limit), brute(&h, limit));
                let mut sorted = h.nodes.clone();
                sorted.sort_by_key(|n| (n.key, n.seq));
                prop_assert_eq!(h.first().map(|n| n.se), sorted.first().map(|n| n.se));
                prop_assert_eq!(h.second().map(|n| n.se), sorted.get(1).map(|n| n.se));
            }
        }
    }

    #[test]
    fn equal_keys_leave_in_order_of_arrival() {
        let mut pos = vec![NONE; 8];
        let mut h = Heap::default();
        for se in [3, 1, 4, 0, 5] {
            h.insert(&mut pos, se, 7, 0);
        }
        for se in [3, 1, 4, 0, 5] {
            let first = h.first().map(|n| n.se);
            assert_eq!(first, Some(se));
            h.remove(&mut pos, se);
        }
    }
}
