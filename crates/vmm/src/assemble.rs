//! Makes VMs from what was read of a process. Accesses no files.

use std::collections::{BTreeMap, BTreeSet};

use crate::known::{self, CommandLine, KnownVmm};
use crate::libvirt::Domain;
use crate::vm::{Accel, OtherThread, Source, Sources, Thread, VcpuThread, Vm, Vmm};

/// Data read from a process that may run VMs.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) threads: BTreeMap<u32, Thread>,
    /// KVM's file descriptors; `None` if they are not readable.
    pub(crate) kvm: Option<Descriptors>,
    /// File name of the executable.
    pub(crate) executable: String,
    /// Source of that name.
    pub(crate) executable_source: Source,
    pub(crate) told: CommandLine,
    pub(crate) cgroup: Option<String>,
}

/// A process's file descriptors of KVM.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// Descriptors of VMs.
    pub(crate) vms: Vec<u32>,
    /// KVM's ids of the vCPUs that have a descriptor, of all those VMs.
    pub(crate) vcpus: Vec<u32>,
}

/// A VM's folder in debugfs.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Descriptor of the VM in its process.
    pub(crate) vm_fd: u32,
    /// KVM's id of each vCPU, and the thread that ran it last, if any.
    pub(crate) vcpus: Vec<(u32, Option<u32>)>,
}

/// Facts about one VM of a process.
#[derive(Default)]
struct Group {
    vm_fd: Option<u32>,
    /// From debugfs.
    vcpus: Option<Vec<(u32, Option<u32>)>>,
    /// Name from vcoop's lab.
    lab: Option<String>,
    /// Number of vCPUs.
    count: Option<usize>,
}

/// The VMs of a process; empty if it has none.
pub(crate) fn vms(process: &Process, folders: Vec<Folder>, domain: Option<&Domain>) -> Vec<Vm> {
    let known = known::by_executable(&process.executable);
    let Some((accel, accel_source)) = accel(process, known) else { return Vec::new() };
    // A state file that libvirt left behind may name a process id that has been reused.
    let domain = domain
        .filter(|d| !d.vcpus.is_empty())
        .filter(|d| d.vcpus.iter().all(|(_, tid)| process.threads.contains_key(tid)));
    let groups = groups(process, known, accel, folders);
    let alone = groups.len() == 1;

    let mut left = process.threads.clone();
    let mut vms = Vec::new();
    for group in groups {
        let vcpus = place(process, known, &group, domain.filter(|_| alone), alone);
        left.retain(|tid, _| vcpus.iter().all(|v| v.thread.tid != *tid));
        let (vmm, vmm_source) = match (known, &group.lab) {
            (Some(known), _) => (known.vmm.clone(), process.executable_source),
            (None, Some(_)) => (Vmm::Vcoop, Source::ThreadName),
            (None, None) => (Vmm::Other(process.executable.clone()), process.executable_source),
        };
        let (name, name_source) = if let Some(lab) = group.lab {
            (lab, Source::ThreadName)
        } else if let Some(domain) = domain {
            (domain.name.clone(), Source::Libvirt)
        } else if let Some(name) = &process.told.name {
            (name.clone(), Source::CommandLine)
        } else {
            let vmm = vmm.to_string().to_lowercase().replace(' ', "-");
            (format!("{vmm}-{}", process.pid), Source::Pid)
        };
        vms.push(Vm {
            name,
            vmm,
            accel,
            pid: process.pid,
            start_time: process.start_time,
            vm_fd: group.vm_fd,
            is_alone: alone,
            unplaced: group.count.map(|count| count.saturating_sub(vcpus.len())),
            vcpus,
            others: Vec::new(),
            cgroup: process.cgroup.clone(),
            uuid: process.told.uuid.clone(),
            qmp: process.told.qmp.clone(),
            sources: Sources { name: name_source, vmm: vmm_source, accel: accel_source },
        });
    }
    let names: Vec<String> = vms.iter().map(|vm| vm.name.clone()).collect();
    for vm in &mut vms {
        let is_one_of_many = names.iter().filter(|name| **name == vm.name).count() > 1;
        if let Some(fd) = vm.vm_fd.filter(|_| is_one_of_many) {
            vm.name += &format!("#{fd}");
        }
    }
    if let Some(first) = vms.first_mut() {
        let other = |thread: Thread| OtherThread {
            role: known::role(known, thread.tid == process.pid, &thread.comm),
            thread,
        };
        first.others = left.into_values().map(other).collect();
    }
    vms
}

/// What executes the guests of a process, if it has any.
fn accel(process: &Process, known: Option<&KnownVmm>) -> Option<(Accel, Source)> {
    let named = |end: &str| {
        let mut comms = process.threads.values().map(|t| &t.comm);
        comms.any(|comm| known::vcpu_index(known, comm).is_some() && comm.ends_with(end))
    };
    let is_qemu = known.is_some_and(|k| k.vmm == Vmm::Qemu);
    match &process.kvm {
        Some(kvm) if !kvm.vms.is_empty() => {
            // A VM without a vCPU is being set up, or the descriptor was inherited.
            (!kvm.vcpus.is_empty()).then_some((Accel::Kvm, Source::Descriptors))
        }
        Some(_) => {
            let asked = matches!(process.told.accel.as_deref(), None | Some("tcg"));
            let is_tcg = named("/TCG") || asked && !process.told.no_machine;
            (is_qemu && is_tcg).then_some((Accel::Tcg, Source::Descriptors))
        }
        None if known.is_none() => None,
        None if is_qemu && named("/TCG") => Some((Accel::Tcg, Source::ThreadName)),
        None => named("").then_some((Accel::Kvm, Source::ThreadName)),
    }
}

/// Separates the VMs of a process.
fn groups(
    process: &Process,
    known: Option<&KnownVmm>,
    accel: Accel,
    folders: Vec<Folder>,
) -> Vec<Group> {
    let lab_name = |thread: &Thread| {
        let (_, name) = known::lab_vcpu(&thread.comm).filter(|_| known.is_none())?;
        Some(name.to_owned())
    };
    if !folders.is_empty() {
        let group = |folder: Folder| {
            let mut tids = folder.vcpus.iter().filter_map(|(_, tid)| *tid);
            Group {
                vm_fd: Some(folder.vm_fd),
                lab: tids.find_map(|tid| lab_name(process.threads.get(&tid)?)),
                count: Some(folder.vcpus.len()),
                vcpus: Some(folder.vcpus),
            }
        };
        return folders.into_iter().filter(|f| !f.vcpus.is_empty()).map(group).collect();
    }
    let kvm = process.kvm.as_ref().filter(|_| accel == Accel::Kvm);
    let vm_fd = kvm.and_then(|kvm| <[u32; 1]>::try_from(&kvm.vms[..]).ok()).map(|[fd]| fd);
    // For a single VM, a repeated id is a duplicated descriptor.
    let count = kvm.map(|kvm| match vm_fd {
        Some(_) => kvm.vcpus.iter().collect::<BTreeSet<_>>().len(),
        None => kvm.vcpus.len(),
    });
    let labs: BTreeSet<String> = process.threads.values().filter_map(lab_name).collect();
    match labs.len() {
        0 => vec![Group { vm_fd, count, ..Group::default() }],
        1 => vec![Group { vm_fd, count, lab: labs.into_iter().next(), vcpus: None }],
        _ => labs.into_iter().map(|n| Group { lab: Some(n), ..Group::default() }).collect(),
    }
}

/// The threads of a VM's vCPUs, by index. `alone`: no other VM of the process can own them.
fn place(
    process: &Process,
    known: Option<&KnownVmm>,
    group: &Group,
    domain: Option<&Domain>,
    alone: bool,
) -> Vec<VcpuThread> {
    struct Placed {
        kvm_id: Option<u32>,
        index: Option<u32>,
        source: Source,
    }
    let mut placed: BTreeMap<u32, Placed> = BTreeMap::new();
    let mut numbers: BTreeSet<u32> = BTreeSet::new();
    for (id, tid) in group.vcpus.iter().flatten() {
        if let Some(tid) = tid.filter(|tid| process.threads.contains_key(tid)) {
            let new = Placed { kvm_id: Some(*id), index: None, source: Source::Debugfs };
            placed.entry(tid).or_insert(new);
        }
    }

    // Names can lie. A name that two threads have is ignored, and with debugfs only vCPUs that have not run yet can be
    // placed by name.
    let mut room = match &group.vcpus {
        Some(vcpus) if alone || group.lab.is_some() => vcpus.len().saturating_sub(placed.len()),
        Some(_) => 0,
        None => usize::MAX,
    };
    let mut by_name: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for thread in process.threads.values() {
        let index = match &group.lab {
            Some(lab) => known::lab_vcpu(&thread.comm).filter(|(_, vm)| vm == lab).map(|v| v.0),
            None => known::vcpu_index(known, &thread.comm),
        };
        if let Some(index) = index {
            by_name.entry(index).or_default().push(thread.tid);
        }
    }
    let by_name = by_name.into_iter().filter_map(|(index, tids)| match tids[..] {
        [tid] => Some((index, tid, Source::ThreadName)),
        _ => None,
    });
    let of_libvirt = domain.into_iter().flat_map(|d| &d.vcpus);
    let of_libvirt = of_libvirt.map(|(index, tid)| (*index, *tid, Source::Libvirt));
    let candidates: Vec<_> = of_libvirt.chain(by_name).collect();

    // First threads with a known number, then threads with only KVM's id, and only then others: a name never takes a
    // place that debugfs assigned.
    for (index, tid, _) in &candidates {
        if let Some(placed) = placed.get_mut(tid)
            && placed.index.is_none()
            && numbers.insert(*index)
        {
            placed.index = Some(*index);
        }
    }
    for placed in placed.values_mut() {
        placed.index = placed.index.or(placed.kvm_id.filter(|id| numbers.insert(*id)));
    }
    for (index, tid, source) in candidates {
        if room > 0 && !placed.contains_key(&tid) && numbers.insert(index) {
            room -= 1;
            placed.insert(tid, Placed { kvm_id: None, index: Some(index), source });
        }
    }

    let vcpu = |(tid, placed): (u32, Placed)| {
        let thread = process.threads.get(&tid)?.clone();
        let Placed { kvm_id, index, source } = placed;
        Some(VcpuThread { index: index?, kvm_id, thread, source })
    };
    let mut vcpus: Vec<VcpuThread> = placed.into_iter().filter_map(vcpu).collect();
    vcpus.sort_by_key(|v| v.index);
    vcpus
}
