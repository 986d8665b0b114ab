//! The smallest driver of a pool: kicks are served at once, timers fire on time, nothing has a cost.
//!

#![allow(dead_code)]

use vcoop_powervm::Pool;
use vcoop_powervm::{Partition, PoolConfig};
use vcoop_sched::config::{Ns, Policy, Topology};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, LeaveReason, Note};

use vcoop_testing::tasks::Tasks;
pub(crate) use vcoop_testing::tasks::{HOG, MS, US, Work};

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) pool: Pool,
    pub(crate) now: Ns,
    pub(crate) tasks: Tasks,
    /// Every switch: time, CPU, next entity.
    pub(crate) log: Vec<(Ns, CpuId, Option<EntId>)>,
    pub(crate) parked: Vec<(Ns, EntId, bool)>,
    threads: u32,
}

/// Cores of one thread, and partitions of (vCPUs, entitled, weight).
pub(crate) fn config(cores: u32, partitions: &[(u32, u32, u32)]) -> PoolConfig {
    smt(Topology::flat(cores), partitions)
}

pub(crate) fn smt(topology: Topology, partitions: &[(u32, u32, u32)]) -> PoolConfig {
    let of = |&(vcpus, entitled, weight): &(u32, u32, u32)| Partition { vcpus, entitled, weight };
    PoolConfig::new(topology, partitions.iter().map(of).collect())
}

impl Machine {
    pub(crate) fn new(cfg: &PoolConfig) -> Self {
        let mut this = Self {
            pool: Pool::new(cfg).expect("valid"),
            now: 0,
            tasks: Tasks::new(cfg.topology.cpus(), false),
            log: Vec::new(),
            parked: Vec::new(),
            threads: cfg.topology.threads_per_core,
        };
        this.serve();
        this
    }

    /// A vCPU that sleeps until it is woken.
    pub(crate) fn add(&mut self, partition: u16, work: Work) -> EntId {
        let home = CpuId(self.tasks.len() as u32 % self.pool.config().topology.cpus());
        let attr = Attr { policy: Policy::NORMAL, cpus: CpuSet::EMPTY, group: Some(partition) };
        let e = self.pool.add(attr, home);
        self.tasks.add(work);
        e
    }

    pub(crate) fn start(&mut self, partition: u16, work: Work) -> EntId {
        let e = self.add(partition, work);
        self.wake(e);
        e
    }

    pub(crate) fn hogs(&mut self, partition: u16, n: u32) -> Vec<EntId> {
        (0..n).map(|_| self.start(partition, HOG)).collect()
    }

    pub(crate) fn wake(&mut self, e: EntId) {
        self.account();
        self.tasks.wake_at(e, None);
        self.pool.wake(self.now, e);
        self.serve();
    }

    pub(crate) fn schedule(&mut self, cpu: u32, leave: LeaveReason) {
        self.account();
        self.switch(CpuId(cpu), leave);
        self.serve();
    }

    pub(crate) fn confer(&mut self, e: EntId, to: Option<EntId>) {
        self.account();
        self.pool.confer(self.now, e, to);
        self.serve();
    }

    pub(crate) fn exec(&mut self, e: EntId) -> Ns {
        self.account();
        self.pool.charge(self.now, self.pool.cpu_of(e));
        self.pool.stats(e).exec_ns
    }

    pub(crate) fn current(&self, cpu: u32) -> Option<EntId> {
        self.pool.current(CpuId(cpu))
    }

    /// The times at which `e` was switched in.
    pub(crate) fn starts(&self, e: EntId) -> Vec<Ns> {
        self.log.iter().filter(|l| l.2 == Some(e)).map(|l| l.0).collect()
    }

    /// How long `e` waited each time it had lost its CPU.
    pub(crate) fn waits(&self, e: EntId) -> Vec<Ns> {
        let mut waits = Vec::new();
        let (mut on, mut left_at) = (None, None);
        for &(t, cpu, who) in &self.log {
            if who == Some(e) {
                on = Some(cpu);
                waits.extend(left_at.take().map(|left: Ns| t - left));
            } else if on == Some(cpu) {
                (on, left_at) = (None, Some(t));
            }
        }
        waits
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
        let due = |cpu| self.pool.deadline(cpu).map(|at| at.max(self.now));
        let tasks = self.tasks.next_event(self.now, |cpu| self.pool.current(cpu));
        self.tasks.cpus().filter_map(due).fold(tasks, Ns::min)
    }

    fn account(&mut self) {
        self.tasks.account(self.now, |cpu| self.pool.current(cpu));
    }

    fn events(&mut self) {
        for cpu in self.tasks.cpus() {
            if let Some(e) = self.pool.current(cpu)
                && self.tasks.falls_asleep(self.now, e)
            {
                self.switch(cpu, LeaveReason::Blocked);
                self.serve();
            }
            if self.pool.deadline(cpu).is_some_and(|d| d <= self.now) {
                self.pool.on_deadline(self.now, cpu);
                self.serve();
            }
        }
        for i in 0..self.tasks.len() {
            if self.tasks.is_due(self.now, i) {
                self.wake(EntId(i as u32));
            }
        }
    }

    fn switch(&mut self, cpu: CpuId, leave: LeaveReason) {
        let before = self.pool.current(cpu);
        let next = self.pool.schedule(self.now, cpu, leave);
        assert_eq!(next, self.pool.current(cpu));
        self.one_vp_a_core(cpu.0 / self.threads);
        if before != next {
            self.log.push((self.now, cpu, next));
        }
    }

    /// A core runs threads of one virtual processor, at every moment.
    fn one_vp_a_core(&self, core: u32) {
        let cpus = core * self.threads..(core + 1) * self.threads;
        let mut vps: Vec<u32> =
            cpus.filter_map(|c| self.current(c)).map(|e| self.pool.vp_of(e)).collect();
        vps.dedup();
        assert!(vps.len() <= 1, "core{core} runs threads of {vps:?}");
    }

    pub(crate) fn serve(&mut self) {
        let mut kicked = Vec::new();
        loop {
            while let Some(note) = self.pool.pop_note() {
                match note {
                    Note::Kick { cpu, .. } => kicked.push(cpu),
                    Note::Moved { from, to, .. } => assert_ne!(from, to),
                    Note::Parked { ent } => self.parked.push((self.now, ent, true)),
                    Note::Unparked { ent } => self.parked.push((self.now, ent, false)),
                    _ => {}
                }
            }
            self.pool.check();
            if kicked.is_empty() {
                return;
            }
            let cpu = kicked.remove(0);
            self.switch(cpu, LeaveReason::Preempted);
        }
    }
}
