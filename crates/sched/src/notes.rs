//! Notes of a level to its driver, oldest first.

use alloc::vec::Vec;

use crate::Note;

/// A queue that is drained after every call: it starts at the beginning whenever it is empty. A ring buffer would go
/// through all of its memory instead, which with hundreds of guest levels exceeds a cache.
#[derive(Clone, Debug)]
pub struct Notes {
    list: Vec<Note>,
    /// How many of the list are taken.
    taken: usize,
}

impl Default for Notes {
    /// No notes, and room for a few.
    fn default() -> Self {
        Self { list: Vec::with_capacity(16), taken: 0 }
    }
}

impl Notes {
    /// Adds a note behind the others.
    #[inline]
    pub fn push_back(&mut self, note: Note) {
        self.list.push(note);
    }

    /// Takes the oldest.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Note> {
        let note = self.list.get(self.taken).copied();
        self.taken += 1;
        if self.taken >= self.list.len() {
            self.list.clear();
            self.taken = 0;
        }
        note
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuId;

    fn note(cpu: u32) -> Note {
        Note::Throttled { cpu: CpuId(cpu) }
    }

    #[test]
    fn oldest_first_and_new_ones_meanwhile() {
        let mut n = Notes::default();
        assert_eq!(n.pop_front(), None);
        n.push_back(note(1));
        n.push_back(note(2));
        assert_eq!(n.pop_front(), Some(note(1)));
        n.push_back(note(3));
        assert_eq!(n.pop_front(), Some(note(2)));
        assert_eq!(n.pop_front(), Some(note(3)));
        assert_eq!(n.pop_front(), None);
        assert_eq!(n.pop_front(), None);
    }

    #[test]
    fn a_drained_queue_keeps_to_its_first_entries() {
        let mut n = Notes::default();
        let room = n.list.capacity();
        for i in 0..1000 {
            n.push_back(note(i));
            assert_eq!((n.pop_front(), n.list.len()), (Some(note(i)), 0));
        }
        assert_eq!(n.list.capacity(), room);
    }
}
