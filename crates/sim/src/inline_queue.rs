//! A queue that mostly holds one item: interrupts of a pCPU, exits of a vCPU.

use std::collections::VecDeque;

/// First in, first out. The first item is stored inline, and only items behind it elsewhere. A `VecDeque` alone would
/// go through all of its buffer, which on a large host is another cache line at every event. Allocated room is kept.
#[derive(Debug)]
pub(crate) struct InlineQueue<T> {
    /// invariant: `None` if and only if the queue is empty.
    first: Option<T>,
    rest: Option<Box<Overflow<T>>>,
}

#[derive(Debug)]
struct Overflow<T>(VecDeque<T>);

impl<T: Copy + PartialEq> InlineQueue<T> {
    pub(crate) fn new() -> Self {
        Self { first: None, rest: None }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<T> {
        self.first
    }

    #[inline]
    pub(crate) fn push_back(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.push_behind(item);
        }
    }

    #[inline(never)]
    fn push_behind(&mut self, item: T) {
        let rest = self.rest.get_or_insert_with(|| Box::new(Overflow(VecDeque::with_capacity(8))));
        rest.0.push_back(item);
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let first = self.first.take();
        if let Some(rest) = &mut self.rest {
            self.first = rest.0.pop_front();
        }
        first
    }

    /// In their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.first.iter().chain(self.rest.iter().flat_map(|rest| &rest.0)).copied()
    }

    #[inline]
    pub(crate) fn contains(&self, item: &T) -> bool {
        self.first.is_some() && self.iter().any(|it| it == *item)
    }

    pub(crate) fn extend(&mut self, items: impl Iterator<Item = T>) {
        items.for_each(|item| self.push_back(item));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_deque(ops in prop::collection::vec(prop::option::of(0u8..4), 0..60)) {
            let (mut few, mut deque) = (InlineQueue::new(), VecDeque::new());
            for op in ops {
                match op {
                    Some(item) => {
                        few.push_back(item);
                        deque.push_back(item);
                    }
                    None => prop_assert_eq!(few.pop_front(), deque.pop_front()),
                }
                prop_assert_eq!(few.is_empty(), deque.is_empty());
                prop_assert_eq!(few.first(), deque.front().copied());
                prop_assert!(few.iter().eq(deque.iter().copied()));
                prop_assert_eq!(few.contains(&2), deque.contains(&2));
            }
        }
    }
}
