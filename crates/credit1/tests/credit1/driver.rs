//! The smallest driver of a credit scheduler: kicks are served at once, timers fire on time, nothing has a cost.

#![allow(dead_code)]

use vcoop_credit1::{Credit1, Decision};
use vcoop_credit1::{Credit1Config, Domain};
use vcoop_sched::config::{Ns, Policy, Topology};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, LeaveReason, Note, Waker};

use vcoop_testing::tasks::Tasks;
pub(crate) use vcoop_testing::tasks::{HOG, MS, US, Work, assert_ratio};

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) credit: Credit1,
    pub(crate) now: Ns,
    pub(crate) tasks: Tasks,
    /// Every switch: time, CPU, next entity.
    pub(crate) log: Vec<(Ns, CpuId, Option<EntId>)>,
    pub(crate) decisions: Vec<(Ns, &'static str, EntId, CpuId)>,
    /// Times a CPU scheduled.
    pub(crate) schedules: u64,
    pub(crate) checking: bool,
}

/// One guest domain after dom0, on a flat machine.
pub(crate) fn config(cpus: u32, guests: usize) -> Credit1Config {
    let mut domains = vec![Domain::DOM0];
    domains.resize(guests + 1, Domain::default());
    Credit1Config::new(Topology::flat(cpus), domains)
}

impl Machine {
    pub(crate) fn new(cfg: &Credit1Config) -> Self {
        let mut credit = Credit1::new(cfg).expect("valid");
        credit.set_trace(true);
        let mut this = Self {
            credit,
            now: 0,
            tasks: Tasks::new(cfg.topology.cpus(), false),
            log: Vec::new(),
            decisions: Vec::new(),
            schedules: 0,
            checking: true,
        };
        this.serve();
        this
    }

    /// A vCPU that sleeps until it is woken.
    pub(crate) fn add(&mut self, domain: u16, cpus: &[u32], work: Work) -> EntId {
        let cpus: CpuSet = cpus.iter().copied().collect();
        let home = cpus.first().unwrap_or(CpuId(0));
        let attr = Attr { policy: Policy::NORMAL, cpus, group: Some(domain) };
        let e = self.credit.add(attr, home);
        self.tasks.add(work);
        e
    }

    pub(crate) fn start(&mut self, domain: u16, cpus: &[u32], work: Work) -> EntId {
        let e = self.add(domain, cpus, work);
        self.wake(e);
        e
    }

    pub(crate) fn wake(&mut self, e: EntId) {
        self.wake_by(e, Waker::default());
    }

    pub(crate) fn wake_by(&mut self, e: EntId, by: Waker) {
        self.account();
        self.tasks.wake_at(e, None);
        self.credit.wake(self.now, e, by);
        self.serve();
    }

    /// Makes a sleeper sleep until `until`.
    pub(crate) fn put_off(&mut self, e: EntId, until: Ns) {
        self.tasks.wake_at(e, Some(until));
    }

    pub(crate) fn schedule(&mut self, cpu: u32, leave: LeaveReason) {
        self.account();
        self.switch(CpuId(cpu), leave);
        self.serve();
    }

    pub(crate) fn exec(&mut self, e: EntId) -> Ns {
        self.account();
        self.credit.charge(self.now, self.credit.cpu_of(e));
        self.credit.stats(e).exec_ns
    }

    pub(crate) fn current(&self, cpu: u32) -> Option<EntId> {
        self.credit.current(CpuId(cpu))
    }

    pub(crate) fn queue(&self, cpu: u32) -> Vec<EntId> {
        self.credit.waiting(CpuId(cpu)).collect()
    }

    pub(crate) fn count(&self, what: Decision) -> usize {
        self.decisions.iter().filter(|d| d.1 == what.name()).count()
    }

    /// When `e` was switched in first at or after `from`.
    pub(crate) fn ran_at(&self, e: EntId, from: Ns) -> Option<Ns> {
        self.log.iter().find(|l| l.0 >= from && l.2 == Some(e)).map(|l| l.0)
    }

    pub(crate) fn run_for(&mut self, ns: Ns) {
        let end = self.now + ns;
        loop {
            let next = self.next_event();
            if next > end {
                self.now = end;
                return self.account();
            }
            self.now = next;
            self.account();
            self.events();
        }
    }

    fn next_event(&self) -> Ns {
        let due = |cpu| self.credit.deadline(cpu).map(|at| at.max(self.now));
        let tasks = self.tasks.next_event(self.now, |cpu| self.credit.current(cpu));
        self.tasks.cpus().filter_map(due).fold(tasks, Ns::min)
    }

    fn account(&mut self) {
        self.tasks.account(self.now, |cpu| self.credit.current(cpu));
    }

    fn events(&mut self) {
        for cpu in self.tasks.cpus() {
            if let Some(e) = self.credit.current(cpu)
                && self.tasks.falls_asleep(self.now, e)
            {
                self.switch(cpu, LeaveReason::Blocked);
                self.serve();
            }
            if self.credit.deadline(cpu).is_some_and(|d| d <= self.now) {
                self.credit.on_deadline(self.now, cpu);
                self.serve();
            }
        }
        for i in 0..self.tasks.len() {
            if self.tasks.is_due(self.now, i) {
                self.wake_by(EntId(i as u32), Waker { io: true, ..Waker::default() });
            }
        }
    }

    fn switch(&mut self, cpu: CpuId, leave: LeaveReason) {
        self.schedules += 1;
        let before = self.credit.current(cpu);
        let next = self.credit.schedule(self.now, cpu, leave);
        assert_eq!(next, self.credit.current(cpu));
        if before != next {
            self.log.push((self.now, cpu, next));
        }
    }

    pub(crate) fn serve(&mut self) {
        let mut kicked = Vec::new();
        loop {
            while let Some(note) = self.credit.pop_note() {
                match note {
                    Note::Kick { cpu, .. } => kicked.push(cpu),
                    Note::Moved { ent, from, to } => {
                        assert_ne!(from, to);
                        assert!(self.credit.cpus(ent).contains(to), "{ent} moved to {to}");
                    }
                    Note::Decision { what, ent, cpu } => {
                        self.decisions.push((self.now, what, ent, cpu));
                    }
                    _ => {}
                }
            }
            if self.checking {
                self.credit.check();
            }
            if kicked.is_empty() {
                return;
            }
            let cpu = kicked.remove(0);
            self.switch(cpu, LeaveReason::Preempted);
        }
    }
}
