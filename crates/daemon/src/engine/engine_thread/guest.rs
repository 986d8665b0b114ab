//! Guests that cooperate: their doorbells, their words, and their deadlines.

use rustix::event::epoll::{self, EventData, EventFlags};
use vcoop_abi::Intent;
use vcoop_policy::Injection;
use vcoop_policy::config::Ns;
use vcoop_policy::driver;
use vcoop_threads::clock::monotonic;

use super::EngineThread;
use crate::engine::link::{Deadline, Link, NS_PER_LOOK};
use crate::engine::{BELL, found_window, spawn_at_normal_priority};
use crate::port::DueAction;

/// Time between two samples of the words of a guest that cannot ring: while one of its vCPUs is boosted or was asked
/// for its clock, and otherwise. With many vCPUs it is longer.
const LOOK_NS: Ns = 100_000;
const LOOK_IDLE_NS: Ns = 4_000_000;

impl EngineThread {
    /// Sets whether a guest's doorbell is watched.
    pub(super) fn hear_bell(&mut self, number: u64, heard: bool) {
        let Some(link) = self.vms.get(&number).and_then(|vm| vm.link.as_ref()) else { return };
        let Some(bell) = &link.bell else { return };
        // Edges: what it has rung need not be read to be heard again.
        let flags = EventFlags::IN | EventFlags::ET;
        let _ = if heard {
            epoll::add(&self.poll, bell, EventData::new_u64(BELL + number), flags)
        } else {
            epoll::delete(&self.poll, bell)
        };
    }

    /// A guest has rung.
    pub(super) fn rung(&mut self, number: u64) {
        let now = monotonic();
        let Some(link) = self.vms.get_mut(&number).and_then(|vm| vm.link.as_mut()) else { return };
        let news = link.news();
        let looks = link.cost_of_ring(news.len());
        if let Err(deaf) = link.charge(now, looks) {
            self.hear_bell(number, false);
            self.look_at(number, now + deaf);
            return;
        }
        if link.is_outdated() {
            self.heed_all(number, now);
        } else {
            news.iter().for_each(|place| self.heed(number, *place, now));
        }
    }

    /// Samples the words of a guest that cannot ring, or may not for now.
    pub(super) fn look(&mut self, number: u64) {
        let now = monotonic();
        let Some(link) = self.vms.get_mut(&number).and_then(|vm| vm.link.as_mut()) else { return };
        let looks = link.cost_of_all();
        if link.bell.is_some() {
            // These looks count, too: after its next ring the pause is longer.
            let _ = link.charge(now, looks);
        }
        self.heed_all(number, now);
        let Some(vm) = self.vms.get(&number) else { return };
        let Some(link) = &vm.link else { return };
        let boosted = vm
            .vcpus
            .iter()
            .flatten()
            .any(|v| v.driver.policy().is_boosted() && !v.driver.is_halted());
        let (rings, has_clock) = (link.bell.is_some(), link.has_clock());
        let hurries = link.is_registered() && (boosted || !has_clock);
        if rings && has_clock {
            // It may be heard already: then this does nothing.
            self.hear_bell(number, true);
            return;
        }
        let next = if rings || !hurries { LOOK_IDLE_NS } else { LOOK_NS };
        self.look_at(number, now + next.max(looks as Ns * NS_PER_LOOK));
    }

    /// Schedules a sample of a guest's words at this time, unless one is scheduled earlier.
    fn look_at(&mut self, number: u64, at: Ns) {
        if !self.dues.iter().any(|(_, due)| *due == DueAction::Look(number)) {
            self.dues.insert((at, DueAction::Look(number)));
        }
    }

    fn heed_all(&mut self, number: u64, now: Ns) {
        let link = self.vms.get(&number).and_then(|vm| vm.link.as_ref());
        if link.is_some_and(Link::is_outdated) {
            self.meet(number);
        }
        let places = self.vms.get(&number).map_or(0, |vm| vm.vcpus.len());
        (0..places).for_each(|place| self.heed(number, place, now));
    }

    /// Acts on a vCPU's words.
    fn heed(&mut self, number: u64, place: usize, now: Ns) {
        let Some(link) = self.vms.get_mut(&number).and_then(|vm| vm.link.as_mut()) else { return };
        let Some(page) = link.pages(place) else { return };
        let idle = page.guest.read().intent.decode::<Intent>().idle;
        link.read_clock(place, now);
        let sent = link.was_sent_tasks(place);
        let rings = link.bell.is_some();
        let Some(vcpu) = self.vcpu(number, place) else { return };
        // Its run was too short for an event; or it has rung because it is about to halt. If it does not
        // halt, an event follows, and it is charged from here.
        if idle != vcpu.driver.is_halted() && (!idle || rings) {
            self.halt(number, place, now, idle);
            self.attend(number, place);
        }
        if sent {
            self.run(number, place, |port| driver::inject(port, Injection::Ipi, true));
        } else {
            self.run(number, place, |port| driver::notify(port, true));
        }
        self.await_deadline(number, place);
    }

    /// The time has come to boost a vCPU for its deadline. The guest may have another deadline by now. A guest that
    /// keeps putting it off is sampled as rarely as one that keeps ringing.
    pub(super) fn meet_deadline(&mut self, number: u64, place: usize) {
        if let Some(vcpu) = self.vcpu_mut(number, place) {
            vcpu.awaits = None;
        }
        self.await_deadline(number, place);
        let now = monotonic();
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let (Some(link), Some(Ok(vcpu))) = (&mut vm.link, vm.vcpus.get_mut(place)) else { return };
        let Some(at) = vcpu.awaits else { return };
        let Err(deaf) = link.charge(now, 1) else { return };
        let later = at.max(now + deaf);
        self.dues.remove(&(at, DueAction::Deadline(number, place)));
        self.dues.insert((later, DueAction::Deadline(number, place)));
        vcpu.awaits = Some(later);
    }

    /// Schedules the boost of a vCPU shortly before its guest's deadline.
    pub(super) fn await_deadline(&mut self, number: u64, place: usize) {
        let now = monotonic();
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let Some(link) = &mut vm.link else { return };
        let Some(Ok(vcpu)) = vm.vcpus.get_mut(place) else { return };
        let policy = vcpu.driver.policy();
        // One that sleeps boosted has what it needs.
        let ready = vcpu.driver.is_halted() && policy.is_boosted();
        let due = match link.deadline(place, now, policy.budget_left(now)) {
            _ if ready => Deadline::None,
            due => due,
        };
        let next = if let Deadline::Later(at) = due { Some(at) } else { None };
        if vcpu.awaits != next {
            if let Some(before) = std::mem::replace(&mut vcpu.awaits, next) {
                self.dues.remove(&(before, DueAction::Deadline(number, place)));
            }
            if let Some(at) = next {
                self.dues.insert((at, DueAction::Deadline(number, place)));
            }
        }
        if due == Deadline::Now {
            vcpu.deadlines += u64::from(link.serve(place));
            self.run(number, place, |port| driver::inject(port, Injection::Timer, false));
        }
    }

    /// A guest with the window in its own memory may have another one by now. A thread searches for it, because that
    /// takes a while.
    pub(super) fn seek_window(&mut self, number: u64) {
        let now = monotonic();
        while let Ok((of, found)) = self.found.1.try_recv() {
            if let Some(link) = self.vms.get_mut(&of).and_then(|vm| vm.link.as_mut()) {
                link.searched(found, now);
            }
        }
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let Some(link) = &mut vm.link else { return };
        if link.is_sought(now) {
            let (pid, tell) = (vm.id.pid, self.found.0.clone());
            // A window is sought again only where the one before was in guest memory, so that was allowed.
            let search = move || {
                let found = found_window(pid, true).ok().flatten();
                _ = tell.send((number, found));
            };
            if spawn_at_normal_priority("window", search).is_err() {
                link.searched(None, now);
            }
        }
    }

    /// Finds out whether a guest's driver has come or gone, and which pages belong to which vCPU.
    pub(super) fn meet(&mut self, number: u64) {
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let Some(link) = &mut vm.link else { return };
        if link.changed(&vm.threads) {
            // The governor publishes a width only when it changes, and this window may be another one.
            if let Some(governor) = &vm.governor {
                link.prefer(Some(governor.width()));
            }
            for place in 0..vm.threads.len() {
                // The agreement with the driver before is over.
                self.run(number, place, |port| driver::register(port, false));
                if self.vms.get(&number).is_some_and(|vm| vm.hears(place)) {
                    self.run(number, place, |port| driver::register(port, true));
                }
                self.attend(number, place);
                self.listen_there(number, place);
            }
        }
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let listens = vm.listens();
        if let Some(link) = &mut vm.link {
            // `scx_vcoop` has been told of it above.
            link.give_back();
            link.ask_clock();
            if listens && !link.has_clock() {
                self.look_at(number, monotonic());
            }
        }
    }
}
