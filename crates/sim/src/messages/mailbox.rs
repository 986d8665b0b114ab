//! Messages between the tasks of a level: pipes, sockets, queues of work.
//!
//! A task that receives messages has a mailbox. A sender wakes the receiver if that waits, or leaves the message, or
//! sleeps while the mailbox is full, and tries again when woken. When that is depends on the kind of mailbox
//! ([`Room`]).

use std::collections::VecDeque;

use vcoop_model::plan::QueueRoom;

use crate::attribution::track::NONE;

/// A task's mailbox.
#[derive(Clone, Debug)]
struct Mailbox {
    room: QueueRoom,
    /// Sender of each message in it.
    queue: VecDeque<u32>,
    /// Messages taken from a pipe's first page.
    taken: u32,
    /// Senders that wait for room.
    blocked: VecDeque<u32>,
    /// Senders that were woken for room in a pipe, and have not written yet.
    woken: Vec<u32>,
    /// Sender of the message taken last.
    from: u32,
    /// Its task waits, and the wake-up is sampled.
    sampled: bool,
}

impl Mailbox {
    fn is_full(&self) -> bool {
        let n = self.queue.len() as u32;
        match self.room {
            QueueRoom::List => false,
            QueueRoom::Socket(room) => n >= room,
            QueueRoom::Pipe(room) => n + self.taken >= room,
        }
    }

    /// Takes a message. Returns its sender, and senders to wake because there is room now.
    fn take(&mut self) -> Option<(u32, Vec<u32>)> {
        let was_full = self.is_full();
        let from = self.queue.pop_front()?;
        let n = self.queue.len() as u32;
        let woken = match self.room {
            QueueRoom::Socket(room) if n * 4 <= room => self.blocked.drain(..).collect(),
            QueueRoom::List | QueueRoom::Socket(_) => Vec::new(),
            QueueRoom::Pipe(room) => {
                self.taken += 1;
                if n == 0 || self.taken == QueueRoom::page(room) {
                    self.taken = 0;
                }
                self.next_writer(was_full && !self.is_full())
            }
        };
        Some((from, woken))
    }

    /// The next waiting writer of a pipe, if there is reason to wake it.
    fn next_writer(&mut self, wakes: bool) -> Vec<u32> {
        let next = if wakes { self.blocked.pop_front() } else { None };
        self.woken.extend(next);
        next.into_iter().collect()
    }

    /// A sender that waited for room in a pipe has written: returns the next one to wake, if there is room for it.
    fn written(&mut self, by: u32) -> Vec<u32> {
        let at = self.woken.iter().position(|&woken| woken == by);
        let waited = at.map(|at| self.woken.swap_remove(at)).is_some();
        let wakes = waited && !self.is_full();
        self.next_writer(wakes)
    }
}

/// Result of sending a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// The receiver waits and is to be woken; so are these senders that wait for room.
    Wakes {
        /// The wake-up is sampled.
        sampled: bool,
        /// Senders that wait for room.
        others: Vec<u32>,
    },
    /// The message is in the mailbox, or there is no mailbox; these senders are to be woken because there is room.
    Left(Vec<u32>),
    /// There is no room: the sender sleeps, and tries again.
    Blocks,
}

/// Result of receiving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveResult {
    /// A message, or there is no mailbox; these senders are to be woken because there is room now.
    Message(Vec<u32>),
    /// Nothing: the task sleeps until there is a message.
    Nothing,
}

/// All mailboxes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mailboxes(Vec<Mailbox>);

impl Mailboxes {
    /// Adds a mailbox; returns its number.
    pub(crate) fn add(&mut self) -> u32 {
        self.0.push(Mailbox {
            room: QueueRoom::List,
            queue: VecDeque::new(),
            taken: 0,
            blocked: VecDeque::new(),
            woken: Vec::new(),
            from: NONE,
            sampled: false,
        });
        self.0.len() as u32 - 1
    }

    /// Task `from` sends a message, if there is room. `waits`: the receiver waits for it.
    pub(crate) fn post(
        &mut self,
        mailbox: u32,
        from: u32,
        waits: bool,
        room: QueueRoom,
    ) -> SendResult {
        let Some(mailbox) = self.0.get_mut(mailbox as usize) else {
            return SendResult::Left(Vec::new());
        };
        mailbox.room = room;
        if waits {
            mailbox.from = from;
            SendResult::Wakes { sampled: mailbox.sampled, others: mailbox.written(from) }
        } else if mailbox.is_full() {
            mailbox.blocked.push_back(from);
            SendResult::Blocks
        } else {
            mailbox.queue.push_back(from);
            SendResult::Left(mailbox.written(from))
        }
    }

    /// The owner of a mailbox receives. `sample`: if it has to wait, its wake-up is sampled.
    pub(crate) fn receive(&mut self, mailbox: u32, sample: bool) -> ReceiveResult {
        let Some(mailbox) = self.0.get_mut(mailbox as usize) else {
            return ReceiveResult::Message(Vec::new());
        };
        let Some((from, woken)) = mailbox.take() else {
            mailbox.sampled = sample;
            return ReceiveResult::Nothing;
        };
        mailbox.from = from;
        ReceiveResult::Message(woken)
    }

    /// Sender of the message that the owner of a mailbox took last.
    pub(crate) fn correspondent(&self, mailbox: u32) -> Option<u32> {
        self.0.get(mailbox as usize).map(|m| m.from).filter(|&from| from != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left() -> SendResult {
        SendResult::Left(Vec::new())
    }

    #[test]
    fn messages_wait_for_their_receiver() {
        let mut all = Mailboxes::default();
        let own = all.add();
        assert_eq!(all.correspondent(own), None);
        assert_eq!(all.receive(own, true), ReceiveResult::Nothing);
        let wakes = SendResult::Wakes { sampled: true, others: Vec::new() };
        assert_eq!(all.post(own, 7, true, QueueRoom::List), wakes);
        assert_eq!(all.correspondent(own), Some(7));
        assert_eq!(all.post(own, 8, false, QueueRoom::List), left());
        assert_eq!(all.receive(own, false), ReceiveResult::Message(Vec::new()));
        assert_eq!(all.correspondent(own), Some(8));
        assert_eq!(all.receive(own, false), ReceiveResult::Nothing);
        assert_eq!(
            all.post(NONE, 1, false, QueueRoom::Pipe(1)),
            left(),
            "who has no box gets nothing"
        );
    }

    #[test]
    fn a_socket_wakes_all_who_wait_when_three_quarters_are_free() {
        let mut all = Mailboxes::default();
        let (own, room) = (all.add(), QueueRoom::Socket(8));
        (0..8).for_each(|_| assert_eq!(all.post(own, 1, false, room), left()));
        for writer in [2, 3] {
            assert_eq!(all.post(own, writer, false, room), SendResult::Blocks);
        }
        let woken: Vec<ReceiveResult> = (0..8).map(|_| all.receive(own, false)).collect();
        let all_at = woken.iter().position(|found| *found == ReceiveResult::Message(vec![2, 3]));
        assert_eq!(all_at, Some(5), "two of eight are left");
        assert_eq!(all.receive(own, false), ReceiveResult::Nothing, "they write themselves");
    }

    #[test]
    fn a_pipe_wakes_one_who_waits_for_a_page_and_that_one_the_next() {
        let mut all = Mailboxes::default();
        let (own, room) = (all.add(), QueueRoom::Pipe(32));
        (0..32).for_each(|_| assert_eq!(all.post(own, 1, false, room), left()));
        for writer in [2, 3] {
            assert_eq!(all.post(own, writer, false, room), SendResult::Blocks);
        }
        assert_eq!(all.receive(own, false), ReceiveResult::Message(Vec::new()), "half a page");
        assert_eq!(all.post(own, 4, false, room), SendResult::Blocks);
        assert_eq!(all.receive(own, false), ReceiveResult::Message(vec![2]));
        assert_eq!(all.receive(own, false), ReceiveResult::Message(Vec::new()), "it was not full");
        assert_eq!(all.post(own, 5, false, room), left(), "who has not waited wakes nobody");
        assert_eq!(all.post(own, 2, false, room), left(), "now it is full again");
        assert_eq!(all.receive(own, false), ReceiveResult::Message(vec![3]));
        assert_eq!(
            all.post(own, 3, false, room),
            SendResult::Left(vec![4]),
            "there is room for one"
        );
    }
}
