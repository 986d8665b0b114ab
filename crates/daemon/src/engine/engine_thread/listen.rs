//! Events of the vCPUs' threads, and which of them are awaited.

use std::collections::BTreeMap;

use vcoop_sources::{Source, ThreadEvent, ThreadEventKind};
use vcoop_threads::clock::monotonic;

use super::EngineThread;

impl EngineThread {
    /// Reads from the source the thread events of a token. Returns whether there were any.
    pub(super) fn listen(&mut self, token: i32) -> bool {
        let Some(source) = &mut self.source else { return false };
        let mut heard = BTreeMap::new();
        if token != Source::SEVERAL {
            // Looked at without an event as well.
            heard.insert(token, Vec::new());
        }
        let more =
            source.take(token, &mut |tid, happened| heard.entry(tid).or_default().push(happened));
        if more {
            self.unread = Some(token);
        }
        heard.iter().for_each(|(tid, happened)| self.listen_to(*tid, happened));
        heard.values().any(|happened| !happened.is_empty())
    }

    /// Handles events of a thread.
    fn listen_to(&mut self, tid: i32, happened: &[ThreadEvent]) {
        let Some(&(number, place)) = self.threads.get(&tid) else { return };
        let now = monotonic();
        let (mut events, mut lost) = (Vec::new(), false);
        for &ThreadEvent { at, kind } in happened {
            match kind {
                ThreadEventKind::Sleeps => {
                    let late = now.saturating_sub(at);
                    self.heard.events += 1;
                    self.heard.sum_ns += late;
                    self.heard.max_ns = self.heard.max_ns.max(late);
                    events.push((now, true));
                }
                // Its run began before the event came, and is charged from there.
                ThreadEventKind::Runs => events.push((at, false)),
                ThreadEventKind::Interrupt { kind, coalesced } => {
                    self.interrupted(number, place, at, kind, coalesced);
                }
                ThreadEventKind::Lost => lost = true,
            }
        }
        // An interrupt does not change whether it sleeps.
        let only_interrupts = !happened.is_empty() && events.is_empty() && !lost;
        if only_interrupts || self.vms.get(&number).is_none_or(|vm| vm.rests) {
            return;
        }
        // A thread that has slept and run since is not told of each: only how it is now matters, and
        // that it has slept, which begins a new run.
        let slept = events.iter().rposition(|(_, asleep)| *asleep);
        let from = slept.unwrap_or(0);
        for &(at, asleep) in events[from..].iter().take(2) {
            if asleep || self.vcpu(number, place).is_some_and(|v| v.driver.is_halted()) {
                self.halt(number, place, at, asleep);
            }
        }
        if lost && let Some(asleep) = self.unknown_halt(number, place) {
            self.halt(number, place, monotonic(), asleep);
        }
        self.attend(number, place);
    }

    /// Chooses the next event to wait for of a vCPU's thread. Sleeps are watched only if the guest does not report that
    /// it goes idle: a VMM's thread also sleeps on its locks, and each sleep that is reported costs.
    pub(super) fn attend(&mut self, number: u64, place: usize) {
        let Some(vm) = self.vms.get(&number) else { return };
        let (Some(Ok(vcpu)), Some(source)) = (vm.vcpus.get(place), &mut self.source) else {
            return;
        };
        if vm.rests {
            return source.await_nothing(vcpu.tid());
        }
        let (tid, halted) = (vcpu.tid(), vcpu.driver.is_halted());
        let link = vm.link.as_ref().filter(|_| vm.listens());
        let tells = link.is_some_and(|link| link.ask_idle(place, !halted));
        if halted {
            source.await_run(tid);
        } else if tells {
            source.await_nothing(tid);
        } else if source.await_sleep(tid) {
            source.await_run(tid);
            self.halt(number, place, monotonic(), true);
        }
    }

    /// Whether a vCPU sleeps, if that differs from what its policy knows.
    pub(super) fn unknown_halt(&self, number: u64, place: usize) -> Option<bool> {
        let vcpu = self.vcpu(number, place)?;
        let asleep = vcpu.captured.is_asleep();
        (asleep != vcpu.driver.is_halted()).then_some(asleep)
    }
}
