//! What every backend does between a governor and the host: it reads the counters of the vCPUs once
//! an interval, and for kinds that go by the host's word works out what the host can give.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::{Claim, CpuTime, Governor, GovernorConfig, Grant, Kind, Member, Seen, grant};
use crate::config::Ns;

/// A host as the drivers of its governors see it.
pub trait Host {
    /// CPU time of a vCPU's thread since it began. A wait that is not over is in neither count.
    fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime;

    /// CPU time of the host's own threads together since they began, in nanoseconds.
    fn own_ns(&self) -> Ns;

    /// Number of pCPUs.
    fn pcpus(&self) -> u32;

    /// The VMs of the host, each once. They may come and go.
    fn vms(&self) -> impl Iterator<Item = usize>;

    /// A VM as the pool knows it. Its `used` is what its vCPUs have used since they began.
    fn member(&self, vm: usize) -> Member;

    /// What was stolen from a vCPU since its thread began, for its guest to see.
    fn publish_steal(&self, vm: usize, vcpu: u32, steal_ns: Ns) {
        let _ = (vm, vcpu, steal_ns);
    }
}

/// The governor of one VM, and the counters as of its last look.
#[derive(Clone, Debug)]
pub struct GovernorDriver {
    vm: usize,
    governor: Governor,
    interval_ns: Ns,
    by_host: bool,
    last_at: Ns,
    last: Vec<CpuTime>,
    since: Vec<Option<CpuTime>>,
    /// Of each VM of the host, where it goes by the host's word; and of the host's own threads.
    pool: BTreeMap<usize, CpuTime>,
    own_ns: Ns,
}

impl GovernorDriver {
    /// The governor of VM `vm` at time 0, when VMs 0 to `vms` begin. The VM has `vcpus` vCPUs, `threads` to a
    /// core.
    pub fn new(config: &GovernorConfig, vm: usize, vms: usize, vcpus: u32, threads: u32) -> Self {
        let by_host = matches!(config.kind, Kind::Entitlement | Kind::HostHint);
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

    /// Begins at another time than 0: what was done before is not the governor's.
    pub fn begin(&mut self, now: Ns, host: &impl Host) {
        let governor = self.governor;
        self.look(now, host);
        self.governor = governor;
    }

    /// How many vCPUs the guest is to use.
    pub fn width(&self) -> u32 {
        self.governor.width()
    }

    /// The VM.
    pub fn vm(&self) -> usize {
        self.vm
    }

    /// Time between two looks; also the time of the first.
    pub fn interval_ns(&self) -> Ns {
        self.interval_ns
    }

    /// Whether it goes by the host's word: the host does its work then. Any other is the guest's own.
    pub fn goes_by_host(&self) -> bool {
        self.by_host
    }

    /// Looks: how many vCPUs the guest is to use from now on, if that is another number.
    pub fn look(&mut self, now: Ns, host: &impl Host) -> Option<u32> {
        let elapsed_ns = now.saturating_sub(self.last_at);
        self.last_at = now;
        for (vcpu, (last, since)) in (0..).zip(self.last.iter_mut().zip(&mut self.since)) {
            let time = host.cpu_time(self.vm, vcpu);
            host.publish_steal(self.vm, vcpu, time.steal_ns);
            *since = Some(time.since(core::mem::replace(last, time)));
        }
        let grant = self.by_host.then(|| self.grant(elapsed_ns, host));
        self.governor.on(&Seen { elapsed_ns, cpus: &self.since, grain_ns: 0, grant })
    }

    /// What the host can give the VM: it knows what each of them ran and waited for.
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
            // One that has come since has used nothing that is known.
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
