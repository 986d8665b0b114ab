//! Messages between the tasks of a level: pipes, sockets, queues of work.
//!
//! A task that takes messages has a box. Who posts one wakes a task that waits for it, or leaves it
//! there, or sleeps while the box is full: then whoever takes the next message puts it in and wakes
//! the poster.

use std::collections::VecDeque;

use crate::attribution::track::NONE;

/// A task's box.
#[derive(Clone, Debug)]
struct Mailbox {
    /// Who posted what lies there.
    queue: VecDeque<u32>,
    /// Who waits for room.
    blocked: VecDeque<u32>,
    /// Who posted the message taken last.
    from: u32,
    /// Its task waits, and the wake-up is measured.
    sampled: bool,
}

/// What becomes of a message that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Its receiver waits for it: it is to be woken, and that is measured or not.
    Wakes {
        /// Measured.
        sampled: bool,
    },
    /// It lies in the box, or there is none.
    Left,
    /// There is no room: who posts it sleeps.
    Blocks,
}

/// What who looks into its box finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A message, or there is no box; this poster is to be woken because there is room now.
    Message(Option<u32>),
    /// Nothing: it sleeps until there is a message.
    Nothing,
}

/// All boxes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mailboxes(Vec<Mailbox>);

impl Mailboxes {
    /// The number of another box.
    pub(crate) fn add(&mut self) -> u32 {
        let (queue, blocked) = (VecDeque::new(), VecDeque::new());
        self.0.push(Mailbox { queue, blocked, from: NONE, sampled: false });
        self.0.len() as u32 - 1
    }

    /// Task `from` posts a message, unless so many as `room` lie there. `waits`: the receiver waits for it.
    pub(crate) fn post(&mut self, mailbox: u32, from: u32, waits: bool, room: u32) -> Posted {
        let Some(mailbox) = self.0.get_mut(mailbox as usize) else { return Posted::Left };
        if waits {
            mailbox.from = from;
            Posted::Wakes { sampled: mailbox.sampled }
        } else if mailbox.queue.len() < room as usize {
            mailbox.queue.push_back(from);
            Posted::Left
        } else {
            mailbox.blocked.push_back(from);
            Posted::Blocks
        }
    }

    /// The owner of a box looks into it; if it is to wait, `sample` says whether its wake-up is measured.
    pub(crate) fn receive(&mut self, mailbox: u32, sample: bool) -> Found {
        let Some(mailbox) = self.0.get_mut(mailbox as usize) else { return Found::Message(None) };
        let Some(from) = mailbox.queue.pop_front() else {
            mailbox.sampled = sample;
            return Found::Nothing;
        };
        mailbox.from = from;
        let poster = mailbox.blocked.pop_front();
        mailbox.queue.extend(poster);
        Found::Message(poster)
    }

    /// Who posted the message that the owner of a box took last.
    pub(crate) fn correspondent(&self, mailbox: u32) -> Option<u32> {
        self.0.get(mailbox as usize).map(|m| m.from).filter(|&from| from != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_for_their_receiver_and_posters_for_room() {
        let mut all = Mailboxes::default();
        let own = all.add();
        assert_eq!(all.correspondent(own), None);
        assert_eq!(all.receive(own, true), Found::Nothing);
        assert_eq!(all.post(own, 7, true, 1), Posted::Wakes { sampled: true });
        assert_eq!(all.correspondent(own), Some(7));
        assert_eq!(all.post(own, 8, false, 1), Posted::Left);
        assert_eq!(all.post(own, 9, false, 1), Posted::Blocks);
        assert_eq!(all.receive(own, false), Found::Message(Some(9)), "there is room for it now");
        assert_eq!(all.correspondent(own), Some(8));
        assert_eq!(all.receive(own, false), Found::Message(None));
        assert_eq!(all.correspondent(own), Some(9));
        assert_eq!(all.receive(own, false), Found::Nothing);
        assert_eq!(all.post(NONE, 1, false, 0), Posted::Left, "who has no box gets nothing");
    }
}
