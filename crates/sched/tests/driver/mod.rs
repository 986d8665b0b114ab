//! The smallest driver that follows the level's contract: kicks are served at once, ticks come on
//! time, nothing costs anything.

#![allow(unreachable_pub)]

use vcoop_sched::config::{
    Balance, CfsRelease, CfsTunables, DlConfig, EevdfRelease, EevdfTunables, Fair, LevelConfig, Ns,
    Policy, RtGuard, Topology,
};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, LeaveReason, Level, Note};

use vcoop_testing::tasks::Tasks;
#[allow(unused_imports, reason = "each test uses its own part")]
pub use vcoop_testing::tasks::{HOG, MS, US, Work, assert_ratio};

#[derive(Debug)]
pub struct Machine {
    pub level: Level,
    pub now: Ns,
    pub tasks: Tasks,
    /// Next tick of each CPU.
    ticks: Vec<Ns>,
    tick_ns: Ns,
    /// Every switch: when, where, to whom.
    pub log: Vec<(Ns, CpuId, Option<EntId>)>,
    pub throttles: u32,
    /// Whether CPUs are told late of their wake lists: at the end of this.
    late: bool,
    /// CPUs that are to look at their wake lists.
    woken: Vec<CpuId>,
}

pub fn cfs(cpus: u32) -> LevelConfig {
    config(cpus, Fair::Cfs(CfsTunables::for_cpus(cpus)))
}

pub fn eevdf(cpus: u32) -> LevelConfig {
    config(cpus, Fair::Eevdf(EevdfTunables::for_cpus(cpus)))
}

/// Every fair class: CFS and all releases of EEVDF.
pub fn fairs(cpus: u32) -> impl Iterator<Item = LevelConfig> {
    let eevdf = EevdfRelease::ALL.map(|release| Fair::Eevdf(EevdfTunables::of(release, cpus)));
    let all = eevdf.into_iter().map(move |fair| config(cpus, fair));
    let older = Fair::Cfs(CfsTunables::of(CfsRelease::V5_15, cpus));
    [cfs(cpus), config(cpus, older)].into_iter().chain(all)
}

pub fn config(cpus: u32, fair: Fair) -> LevelConfig {
    LevelConfig {
        topology: Topology::flat(cpus),
        tick_ns: MS,
        fair,
        rr_slice_ns: 100 * MS,
        rt_guard: RtGuard::Off,
        dl: DlConfig::default(),
        balance: Balance::default(),
        groups: Vec::new(),
    }
}

pub fn nice(nice: i8) -> Policy {
    Policy::Normal { nice, slice_ns: None }
}

impl Machine {
    pub fn new(cfg: &LevelConfig) -> Self {
        let n = cfg.topology.cpus() as usize;
        Self {
            level: Level::new(cfg).expect("valid"),
            now: 0,
            tasks: Tasks::new(cfg.topology.cpus(), true),
            ticks: vec![0; n],
            tick_ns: cfg.tick_ns,
            log: Vec::new(),
            throttles: 0,
            late: false,
            woken: Vec::new(),
        }
    }

    /// Adds an entity that starts now.
    pub fn start(&mut self, attr: Attr, home: u32, work: Work) -> EntId {
        let e = self.add(attr, home, work);
        self.wake(e, None);
        e
    }

    pub fn spawn(&mut self, policy: Policy, work: Work) -> EntId {
        self.start(Attr::anywhere(policy), 0, work)
    }

    pub fn pinned(&mut self, policy: Policy, cpu: u32, work: Work) -> EntId {
        let attr = Attr { policy, cpus: CpuSet::one(CpuId(cpu)), group: None };
        self.start(attr, cpu, work)
    }

    /// Adds an entity that sleeps until it is woken.
    pub fn add(&mut self, attr: Attr, home: u32, work: Work) -> EntId {
        let e = self.level.add(attr, CpuId(home));
        self.tasks.add(work);
        e
    }

    pub fn wake(&mut self, e: EntId, waker: Option<u32>) {
        self.tasks.wake_at(e, None);
        self.account();
        self.level.wake(self.now, e, waker.map(CpuId));
        self.serve();
    }

    pub fn set_policy(&mut self, e: EntId, p: Policy) {
        self.account();
        self.level.set_policy(self.now, e, p);
        self.serve();
    }

    pub fn set_cookie(&mut self, e: EntId, cookie: u32) {
        self.account();
        self.level.set_cookie(e, cookie);
        self.serve();
    }

    pub fn set_cpus(&mut self, e: EntId, cpus: CpuSet) {
        self.account();
        self.level.set_cpus(self.now, e, cpus);
        self.serve();
    }

    /// Sets the CPUs to keep off.
    /// Lets them run anywhere.
    pub fn unpin(&mut self, all: &[EntId]) {
        all.iter().for_each(|&e| self.set_cpus(e, CpuSet::EMPTY));
    }

    pub fn avoid(&mut self, cpus: CpuSet) {
        self.account();
        self.level.set_avoided(cpus).expect("a CPU is left");
        self.serve();
    }

    /// Takes CPUs offline, and the others online.
    pub fn offline(&mut self, cpus: CpuSet) {
        self.account();
        self.level.set_offline(self.now, cpus).expect("a CPU is left");
        self.serve();
    }

    pub fn schedule(&mut self, cpu: u32, leave: LeaveReason) {
        self.account();
        self.switch(CpuId(cpu), leave);
        self.serve();
    }

    pub fn exec(&mut self, e: EntId) -> Ns {
        self.account();
        let cpu = self.level.cpu_of(e);
        self.level.charge(self.now, cpu);
        self.serve();
        self.level.stats(e).exec_ns
    }

    pub fn current(&self, cpu: u32) -> Option<EntId> {
        self.level.current(CpuId(cpu))
    }

    pub fn run_for(&mut self, ns: Ns) {
        self.run_until(self.now + ns);
    }

    pub fn run_until(&mut self, end: Ns) {
        loop {
            let next = self.next_event();
            if next > end {
                self.now = end;
                self.account();
                return;
            }
            // A jump may have left events behind.
            self.now = next.max(self.now);
            self.account();
            self.events();
        }
    }

    /// Lets time pass in which nothing happens.
    pub fn jump(&mut self, to: Ns) {
        self.now = to;
        self.account();
    }

    fn next_event(&self) -> Ns {
        let mut t = self.tasks.next_event(self.now, |cpu| self.level.current(cpu));
        for cpu in self.tasks.cpus() {
            if self.level.current(cpu).is_some() && self.level.tick_needed(cpu) {
                t = t.min(self.ticks[cpu.index()]);
            }
            t = t.min(self.level.deadline(cpu).unwrap_or(Ns::MAX).max(self.now));
        }
        t
    }

    fn account(&mut self) {
        self.tasks.account(self.now, |cpu| self.level.current(cpu));
    }

    fn events(&mut self) {
        for cpu in self.tasks.cpus() {
            if self.level.deadline(cpu).is_some_and(|d| d <= self.now) {
                self.level.on_deadline(self.now, cpu);
                self.serve();
            }
            if let Some(e) = self.level.current(cpu)
                && self.tasks.falls_asleep(self.now, e)
            {
                self.switch(cpu, LeaveReason::Blocked);
                self.serve();
            }
            if self.level.tick_needed(cpu) && self.ticks[cpu.index()] <= self.now {
                self.ticks[cpu.index()] = self.now + self.tick_ns;
                self.level.tick(self.now, cpu);
                self.serve();
            }
        }
        for i in 0..self.tasks.len() {
            if self.tasks.is_due(self.now, i) {
                self.wake(EntId(i as u32), None);
            }
        }
    }

    fn switch(&mut self, cpu: CpuId, leave: LeaveReason) {
        let before = self.level.current(cpu);
        let next = self.level.schedule(self.now, cpu, leave);
        assert_eq!(next, self.level.current(cpu));
        if before.is_none() && next.is_some() {
            // The tick starts again on its grid.
            self.ticks[cpu.index()] = (self.now / self.tick_ns + 1) * self.tick_ns;
        }
        if before != next {
            self.log.push((self.now, cpu, next));
        }
    }

    /// Interrupts about wake lists take a while from now on, or arrive at once; those under way are there then.
    pub fn delays_wake_lists(&mut self, late: bool) {
        self.late = late;
        self.account();
        self.serve();
    }

    pub fn serve(&mut self) {
        let mut kicked = Vec::new();
        for served in 0.. {
            assert!(served < 1000, "CPUs kick each other without end: {kicked:?}");
            while let Some(note) = self.level.pop_note() {
                match note {
                    Note::Kick { cpu, .. } => kicked.push(cpu),
                    Note::Woken { cpu } => self.woken.push(cpu),
                    Note::Moved { ent, from, to } => {
                        assert_ne!(from, to);
                        let lost = self.level.cpus(ent).without(self.level.offline()).is_empty();
                        let may = lost || self.level.cpus(ent).contains(to);
                        assert!(may, "{ent} moved to {to}");
                    }
                    Note::Throttled { .. } => self.throttles += 1,
                    _ => {}
                }
            }
            self.level.check();
            if !self.late && !self.woken.is_empty() {
                let cpu = self.woken.remove(0);
                // Whatever else is to be done then, the rest of its list has another turn.
                if self.level.take_woken(self.now, cpu).is_some() {
                    self.woken.push(cpu);
                }
                continue;
            }
            if kicked.is_empty() {
                return;
            }
            let cpu = kicked.remove(0);
            self.switch(cpu, LeaveReason::Preempted);
        }
    }
}
