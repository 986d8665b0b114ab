//! The observed VM.

use vcoop_model::running_vm::plain_name;
use vcoop_sources::trace::Tid;
use vcoop_threads::Stat;
use vcoop_vmm::{Accel, Vm};

/// A vCPU's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Number of the vCPU in its VM.
    pub index: u32,
    /// KVM's number of it, if that is known.
    pub kvm_id: Option<u32>,
    /// Its thread.
    pub tid: Tid,
    /// When the thread started, in clock ticks since the host's boot.
    pub start: u64,
}

/// A VM, by its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedVm {
    /// Its name, as a scenario and a probe take it.
    pub name: String,
    /// Its process; `None`: it has only its vCPUs' threads.
    pub pid: Option<u32>,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// Its other threads, and their names.
    pub others: Vec<(Tid, String)>,
    /// vCPUs whose thread is not known.
    pub unplaced: usize,
    /// It runs under KVM.
    pub kvm: bool,
}

impl ObservedVm {
    /// The subject of a found VM.
    pub fn of(vm: &Vm) -> Self {
        let tid = |tid: u32| tid.cast_signed();
        let vcpu = |v: &vcoop_vmm::VcpuThread| Vcpu {
            index: v.index,
            kvm_id: v.kvm_id,
            tid: tid(v.thread.tid),
            start: v.thread.start_time,
        };
        Self {
            name: plain_name(&vm.name),
            pid: Some(vm.pid),
            vcpus: vm.vcpus.iter().map(vcpu).collect(),
            others: vm.others.iter().map(|t| (tid(t.thread.tid), t.thread.comm.clone())).collect(),
            unplaced: vm.unplaced.unwrap_or(0),
            kvm: vm.accel == Accel::Kvm,
        }
    }

    /// The threads of its vCPUs.
    pub(crate) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.vcpus.iter().map(|vcpu| vcpu.tid)
    }

    /// Name of a vCPU's probe.
    pub fn probe(&self, vcpu: &Vcpu) -> String {
        format!("{}.vcpu{}", self.name, vcpu.index)
    }
}

impl Vcpu {
    /// Whether its thread is still the one that was found.
    pub fn is_there(&self) -> bool {
        Stat::open(self.tid).is_ok_and(|stat| stat.start() == Some(self.start))
    }
}
