//! What every backend does between a governor and the host: once an interval it reads the counters of the vCPUs, and
//! for kinds that follow the host's word it computes what the host can give.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::{Claim, CpuTime, Governor, GovernorConfig, GovernorInput, Grant, Member, grant};
use crate::config::Ns;

/// What a backend provides to drive its governors.
pub trait Host {
    /// CPU time of a vCPU's thread since it began. A wait that is not over is not counted.
    fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime;

    /// CPU time of the host's own threads together since they began, in nanoseconds.
    fn own_ns(&self) -> Ns;

    /// Number of pCPUs.
    fn pcpus(&self) -> u32;

    /// The VMs of the host, each once. They may come and go.
    fn vms(&self) -> impl Iterator<Item = usize>;

    /// A VM as the pool knows it. Its `used` is what its vCPUs have used since they began.
    fn member(&self, vm: usize) -> Member;

    /// Publishes to the guest the time stolen from a vCPU since its thread began.
    fn publish_steal(&self, vm: usize, vcpu: u32, steal_ns: Ns) {
        let _ = (vm, vcpu, steal_ns);
    }
}

/// The governor of one VM, and the counters as of its last interval.
#[derive(Clone, Debug)]
pub struct GovernorDriver {
    vm: usize,
    governor: Governor,
    interval_ns: Ns,
    by_host: bool,
    last_at: Ns,
    last: Vec<CpuTime>,
    since: Vec<Option<CpuTime>>,
    /// CPU time of each VM of the host, for a kind that follows the host's word.
    pool: BTreeMap<usize, CpuTime>,
    own_ns: Ns,
}

impl GovernorDriver {
    /// The governor of VM `vm` at time 0, when VMs 0 to `vms` begin. The VM has `vcpus` vCPUs, `threads` to a
    /// core.
    pub fn new(config: &GovernorConfig, vm: usize, vms: usize, vcpus: u32, threads: u32) -> Self {
        let by_host = config.kind.is_the_hosts();
        Self {
            vm,
            governor: Governor::new(config, vcpus, threads),
            interval_ns: config.interval_ns,
            by_host,
            last_at: 0,
            last: vec![CpuTime::default(); vcpus as usize],
            since: vec![None; vcpus as usize],
            pool: (0..if by_host { vms } else { 0 }).map(|vm| (vm, CpuTime::default())).collect(),
            own_ns: 0,
        }
    }

    /// Begins at a time other than 0: what the VMs did before is not counted.
    pub fn begin(&mut self, now: Ns, host: &impl Host) {
        let governor = self.governor;
        self.look(now, host);
        self.governor = governor;
    }

    /// How many vCPUs the guest is to use.
    pub fn width(&self) -> u32 {
        self.governor.width()
    }

    /// Index of the VM.
    pub fn vm(&self) -> usize {
        self.vm
    }

    /// Length of an interval; also the time of the first look.
    pub fn interval_ns(&self) -> Ns {
        self.interval_ns
    }

    /// Whether the governor follows the host's word, so that its work is done by the host. Otherwise the guest does it.
    pub fn goes_by_host(&self) -> bool {
        self.by_host
    }

    /// Ends an interval. Returns how many vCPUs the guest is to use from now on, if that changes.
    pub fn look(&mut self, now: Ns, host: &impl Host) -> Option<u32> {
        let elapsed_ns = now.saturating_sub(self.last_at);
        self.last_at = now;
        for (vcpu, (last, since)) in (0..).zip(self.last.iter_mut().zip(&mut self.since)) {
            let time = host.cpu_time(self.vm, vcpu);
            host.publish_steal(self.vm, vcpu, time.steal_ns);
            *since = Some(time.since(core::mem::replace(last, time)));
        }
        let grant = self.by_host.then(|| self.grant(elapsed_ns, host));
        self.governor.on(&GovernorInput { elapsed_ns, cpus: &self.since, grain_ns: 0, grant })
    }

    /// What the host can give the VM, from what each VM ran and waited for.
    fn grant(&mut self, elapsed_ns: Ns, host: &impl Host) -> Grant {
        let mut members = Vec::with_capacity(self.pool.len());
        let mut which = None;
        let before = core::mem::take(&mut self.pool);
        for vm in host.vms() {
            if vm == self.vm {
                which = Some(members.len());
            }
            let member = host.member(vm);
            self.pool.insert(vm, member.used);
            // A VM that is new since the last look counts with no use.
            let used = member.used.since(*before.get(&vm).unwrap_or(&member.used));
            members.push(Member { used, ..member });
        }
        let own = host.own_ns();
        let others = own.saturating_sub(core::mem::replace(&mut self.own_ns, own));
        let capacity = (u64::from(host.pcpus()) * elapsed_ns).saturating_sub(others);
        let mut claims = vec![Claim::default(); members.len()];
        which.map_or_else(Grant::default, |which| {
            grant(&members, which, capacity, elapsed_ns, &mut claims)
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::cell::RefCell;

    use super::*;
    use crate::govern::Kind;

    const MS: Ns = 1_000_000;

    /// A host of four pCPUs. Its VMs: what each vCPU has used, and what the VM as a whole is.
    #[derive(Default)]
    struct World {
        vms: Vec<(usize, Vec<CpuTime>, Member)>,
        own_ns: Ns,
        published: RefCell<Vec<(usize, u32, Ns)>>,
    }

    fn time(busy_ms: u64, steal_ms: u64) -> CpuTime {
        CpuTime { busy_ns: busy_ms * MS, steal_ns: steal_ms * MS }
    }

    fn member() -> Member {
        let used = CpuTime::default();
        Member {
            used,
            width: 4,
            vcpus: 4,
            weight: Some(1_024),
            quota_ns: None,
            entitled: 1,
            folds: true,
        }
    }

    impl World {
        fn of(vms: &[usize]) -> Self {
            let vms = vms.iter().map(|vm| (*vm, vec![CpuTime::default(); 4], member()));
            Self { vms: vms.collect(), ..Self::default() }
        }

        /// Each of a VM's four vCPUs has used so much more.
        fn run(&mut self, vm: usize, more: CpuTime) {
            let (_, times, member) = self.vms.iter_mut().find(|(own, ..)| *own == vm).unwrap();
            for time in times.iter_mut().chain([&mut member.used; 1]) {
                *time = [*time, more].into_iter().sum();
            }
            for _ in 1..4 {
                member.used = [member.used, more].into_iter().sum();
            }
        }
    }

    impl Host for World {
        fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime {
            self.vms.iter().find(|(own, ..)| *own == vm).unwrap().1[vcpu as usize]
        }

        fn own_ns(&self) -> Ns {
            self.own_ns
        }

        fn pcpus(&self) -> u32 {
            4
        }

        fn vms(&self) -> impl Iterator<Item = usize> {
            self.vms.iter().map(|(vm, ..)| *vm)
        }

        fn member(&self, vm: usize) -> Member {
            self.vms.iter().find(|(own, ..)| *own == vm).unwrap().2
        }

        fn publish_steal(&self, vm: usize, vcpu: u32, steal_ns: Ns) {
            self.published.borrow_mut().push((vm, vcpu, steal_ns));
        }
    }

    fn driver(kind: Kind, vms: usize) -> GovernorDriver {
        let config = GovernorConfig { interval_ns: 100 * MS, ..GovernorConfig::new(kind) };
        GovernorDriver::new(&config, 1, vms, 4, 1)
    }

    #[test]
    fn it_looks_at_its_own_vm_and_tells_its_guest_what_was_stolen() {
        let mut host = World::of(&[0, 1]);
        let mut driver = driver(Kind::Step, 2);
        assert_eq!((driver.vm(), driver.width(), driver.interval_ns()), (1, 4, 100 * MS));
        assert!(!driver.goes_by_host());
        host.run(0, time(0, 100));
        host.run(1, time(90, 0));
        assert_eq!(driver.look(100 * MS, &host), None, "what the other VM waited is not its own");
        host.run(1, time(60, 40));
        assert_eq!(driver.look(200 * MS, &host), Some(3));
        assert_eq!(driver.width(), 3);
        let published = host.published.into_inner();
        let of_both = [0, 40 * MS].into_iter().flat_map(|ns| (0..4).map(move |vcpu| (1, vcpu, ns)));
        assert!(published.into_iter().eq(of_both));
    }

    #[test]
    fn what_was_before_it_began_is_not_its_own() {
        let mut host = World::of(&[0, 1]);
        host.run(1, time(0, 5_000));
        let mut driver = driver(Kind::Step, 2);
        driver.begin(5_000 * MS, &host);
        assert_eq!(driver.width(), 4);
        host.run(1, time(100, 0));
        assert_eq!(driver.look(5_100 * MS, &host), None);
    }

    /// Two VMs of one weight that want all four pCPUs: two for each, less by half of what the host uses itself.
    #[test]
    fn the_hosts_word_is_of_what_the_host_can_give() {
        for (own_ms, width) in [(0, 2), (200, 1)] {
            let mut host = World::of(&[0, 1]);
            let mut driver = driver(Kind::HostHint, 2);
            assert!(driver.goes_by_host());
            for vm in [0, 1] {
                host.run(vm, time(50, 50));
            }
            host.own_ns = own_ms * MS;
            assert_eq!(driver.look(100 * MS, &host), Some(width), "{own_ms}");
            // CPU time that the host used before is no part of the next interval.
            for vm in [0, 1] {
                host.run(vm, time(50, 50));
            }
            assert_eq!(driver.look(200 * MS, &host).unwrap_or(width), 2);
        }
    }

    #[test]
    fn a_vm_that_has_come_since_has_used_nothing_that_is_known() {
        let mut host = World::of(&[1]);
        let mut driver = driver(Kind::HostHint, 1);
        host.run(1, time(100, 0));
        assert_eq!(driver.look(100 * MS, &host), None, "alone");
        let mut came = World::of(&[7]).vms;
        came[0].2.used = time(9_000, 9_000);
        host.vms.splice(0..0, came);
        host.run(1, time(100, 0));
        assert_eq!(driver.look(200 * MS, &host), None);
        for vm in [1, 7] {
            host.run(vm, time(50, 50));
        }
        assert_eq!(driver.look(300 * MS, &host), Some(2));
        host.vms.remove(0);
        host.run(1, time(100, 0));
        assert_eq!(driver.look(400 * MS, &host), Some(4));
    }
}
