//! Messages between the tasks of a level: pipes, sockets, queues of work.
//!
//! A task that takes messages has a box. Who posts one wakes a task that waits for it, or leaves it
//! there, or sleeps while the box is full: then whoever takes the next message puts it in and wakes
//! the poster.

use std::collections::VecDeque;

use crate::attribution::track::NONE;
use crate::machine::Wait;
use crate::world::World;

/// A task's box.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    /// Who posted what lies there.
    queue: VecDeque<u32>,
    /// Who waits for room.
    blocked: VecDeque<u32>,
    /// Who posted the message taken last.
    from: u32,
    /// Its task waits, and the wake-up is measured.
    sampled: bool,
}

impl Mailbox {
    pub(crate) fn new() -> Self {
        Self { queue: VecDeque::new(), blocked: VecDeque::new(), from: NONE, sampled: false }
    }

    /// Takes a message; who is to be woken because there is room now.
    fn take(&mut self) -> Option<Option<u32>> {
        self.from = self.queue.pop_front()?;
        let waited = self.blocked.pop_front();
        self.queue.extend(waited);
        Some(waited)
    }
}

impl World<'_> {
    /// A guest task posts a message to task `to`; true when it sleeps for room.
    pub(crate) fn guest_post(&mut self, v: u32, t: u32, to: u32, room: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let Some(other) = self.vms[vm].tasks.get(to as usize) else { return false };
        let (mail, waits, sampler) = (other.mail, other.wait == Wait::Mail, other.sampler);
        let Some(mailbox) = self.mail.get_mut(mail as usize) else { return false };
        if waits {
            mailbox.from = t;
            if mailbox.sampled {
                let home = self.vms[vm].first + self.vms[vm].level.cpu_of(vcoop_sched::EntId(to)).0;
                self.settle_wait(home);
                self.tracks.arm(
                    sampler,
                    self.vcpus[home as usize].track,
                    self.clock.now(),
                    self.clock.now(),
                );
            }
            self.guest_wake(v, to);
            return false;
        }
        if mailbox.queue.len() < room as usize {
            mailbox.queue.push_back(t);
            return false;
        }
        mailbox.blocked.push_back(t);
        self.vms[vm].tasks[t as usize].wait = Wait::Room;
        self.guest_sleep(v, t, None)
    }

    /// A guest task takes a message; true when it sleeps for one.
    pub(crate) fn guest_receive(&mut self, v: u32, t: u32, sample: bool) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let work = &mut self.vms[vm].tasks[t as usize];
        let Some(mailbox) = self.mail.get_mut(work.mail as usize) else { return false };
        if let Some(waited) = mailbox.take() {
            if let Some(poster) = waited {
                self.guest_wake(v, poster);
            }
            return false;
        }
        mailbox.sampled = sample;
        work.wait = Wait::Mail;
        self.guest_sleep(v, t, None)
    }

    /// Who posted the message that a task took last.
    pub(crate) fn correspondent(&self, mail: u32) -> Option<u32> {
        self.mail.get(mail as usize).map(|m| m.from).filter(|&from| from != NONE)
    }

    /// A host thread posts a message to thread `to`; true when it sleeps for room.
    pub(crate) fn post(&mut self, p: u32, t: u32, to: u32, room: u32) -> bool {
        let Some(other) = self.threads.get_mut(to as usize) else { return false };
        let (mail, sampler, track) = (other.work.mail, other.work.sampler, other.track);
        let Some(mailbox) = self.mail.get_mut(mail as usize) else { return false };
        if other.work.wait == Wait::Mail {
            other.work.wait = Wait::No;
            mailbox.from = t;
            if mailbox.sampled {
                self.tracks.arm(sampler, track, self.clock.now(), self.clock.now());
            }
            self.wake_thread(to, self.waker());
            return false;
        }
        if mailbox.queue.len() < room as usize {
            mailbox.queue.push_back(t);
            return false;
        }
        mailbox.blocked.push_back(t);
        self.threads[t as usize].work.wait = Wait::Room;
        self.block(p, t, 0);
        true
    }

    /// A host thread takes a message; true when it sleeps for one.
    pub(crate) fn receive(&mut self, p: u32, t: u32, sample: bool) -> bool {
        let work = &mut self.threads[t as usize].work;
        let Some(mailbox) = self.mail.get_mut(work.mail as usize) else { return false };
        if let Some(waited) = mailbox.take() {
            if let Some(poster) = waited {
                self.threads[poster as usize].work.wait = Wait::No;
                self.wake_thread(poster, self.waker());
            }
            return false;
        }
        mailbox.sampled = sample;
        work.wait = Wait::Mail;
        self.block(p, t, 0);
        true
    }
}
