//! Whole trees of `/proc`, as VMMs appear in it: `fixtures/*.tree`.

mod common;

use std::path::PathBuf;

use common::Tree;
use vcoop_testing::without_files;
use vcoop_vmm::{Accel, Proc, Role, Source, Vm, Vmm};

/// The VMs of a fixture, with everything readable.
fn vms(fixture: &str) -> Vec<Vm> {
    scan(&Tree::new(fixture).proc())
}

/// The VMs of a fixture, with only `/proc` readable.
fn vms_of_proc(fixture: &str) -> Vec<Vm> {
    scan(&Tree::new(fixture).proc_alone())
}

fn scan(proc: &Proc) -> Vec<Vm> {
    let scan = proc.scan().unwrap();
    assert_eq!((scan.denied, scan.truncated), (0, vec![]));
    for vm in &scan.vms {
        let vcpus = vm.vcpus.iter().map(|v| &v.thread);
        let threads: Vec<_> = vcpus.chain(vm.others.iter().map(|o| &o.thread)).collect();
        let mut tids: Vec<_> = threads.iter().map(|t| t.tid).collect();
        tids.sort_unstable();
        tids.dedup();
        assert_eq!(tids.len(), threads.len(), "a thread twice in {}", vm.name);
        assert!(vm.vcpus.is_sorted_by(|a, b| a.index < b.index), "{}", vm.name);
    }
    scan.vms
}

/// Index, KVM's id, thread and source of each vCPU.
fn vcpus(vm: &Vm) -> Vec<(u32, Option<u32>, u32, Source)> {
    vm.vcpus.iter().map(|v| (v.index, v.kvm_id, v.thread.tid, v.source)).collect()
}

fn tids(vm: &Vm, role: Role) -> Vec<u32> {
    vm.others.iter().filter(|o| o.role == role).map(|o| o.thread.tid).collect()
}

/// Name, VMM and accelerator, with their sources.
fn identity(vm: &Vm) -> (&str, Source, &Vmm, Source, Accel, Source) {
    let sources = vm.sources;
    (&vm.name, sources.name, &vm.vmm, sources.vmm, vm.accel, sources.accel)
}

#[test]
fn qemu_with_kvm() {
    let [vm] = &vms("qemu-kvm")[..] else { panic!() };
    assert_eq!(
        identity(vm),
        (
            "web",
            Source::CommandLine,
            &Vmm::Qemu,
            Source::Executable,
            Accel::Kvm,
            Source::Descriptors
        )
    );
    assert_eq!((vm.pid, vm.start_time, vm.vm_fd, vm.unplaced), (16548, 183_692, Some(12), Some(0)));
    // Sockets of three cores: QEMU's vCPU 3 has KVM's id 4, its APIC id.
    let kvm_ids = [0, 1, 2, 4, 5, 6];
    let expected: Vec<_> =
        (0..6u32).map(|i| (i, Some(kvm_ids[i as usize]), 16557 + i, Source::Debugfs)).collect();
    assert_eq!(vcpus(vm), expected);
    let thread = &vm.vcpus[3].thread;
    assert_eq!((&thread.comm[..], thread.start_time), ("CPU 3/KVM", 183_712));
    assert_eq!(tids(vm, Role::Main), [16548]);
    assert_eq!(tids(vm, Role::Io), [16554, 16556]);
    assert_eq!(tids(vm, Role::Other), [16552, 16570]);
    assert_eq!(vm.uuid.as_deref(), Some("200b8d5f-e923-4c36-b968-d4b6d831922e"));
    assert_eq!(vm.qmp, [PathBuf::from("/run/web.qmp")]);

    let [vm] = &vms_of_proc("qemu-kvm")[..] else { panic!() };
    let expected: Vec<_> = (0..6u32).map(|i| (i, None, 16557 + i, Source::ThreadName)).collect();
    assert_eq!((vcpus(vm), vm.unplaced), (expected, Some(0)));
}

#[test]
fn qemu_that_names_neither_its_threads_nor_itself() {
    let [vm] = &vms("qemu-kvm-unnamed")[..] else { panic!() };
    assert_eq!((&vm.name[..], vm.sources.name), ("qemu-16693", Source::Pid));
    let expected = [(0, Some(0), 16697, Source::Debugfs), (1, Some(1), 16698, Source::Debugfs)];
    assert_eq!((vcpus(vm), vm.unplaced), (expected.to_vec(), Some(0)));

    // Without debugfs the threads are unknown, and the result shows that.
    let [vm] = &vms_of_proc("qemu-kvm-unnamed")[..] else { panic!() };
    assert_eq!((vcpus(vm), vm.unplaced), (vec![], Some(2)));
}

#[test]
fn qemu_with_its_translator() {
    let [vm] = &vms("qemu-tcg")[..] else { panic!() };
    assert_eq!((vm.accel, vm.sources.accel), (Accel::Tcg, Source::Descriptors));
    assert_eq!((vm.vcpus.len(), vm.vm_fd, vm.unplaced), (2, None, None));
    assert_eq!(vm.vcpus[1].thread.comm, "CPU 1/TCG");

    let [vm] = &vms("qemu-tcg-single")[..] else { panic!() };
    let [vcpu] = &vm.vcpus[..] else { panic!() };
    assert_eq!((vcpu.index, &vcpu.thread.comm[..]), (0, "ALL CPUs/TCG"));
}

#[test]
fn qemu_under_libvirt() {
    let [vm] = &vms("libvirt")[..] else { panic!() };
    assert_eq!((&vm.name[..], vm.sources.name), ("web", Source::Libvirt));
    let expected = [(0, None, 30039, Source::Libvirt), (1, None, 30040, Source::Libvirt)];
    assert_eq!(vcpus(vm), expected);
    assert_eq!(vm.cgroup.as_deref(), Some("/machine/qemu-1-web.libvirt-qemu/emulator"));
    // Its monitor is a descriptor that it got from libvirt, which holds the other end.
    assert_eq!(vm.qmp, Vec::<PathBuf>::new());
    assert_eq!(tids(vm, Role::Io), [30036, 30038]);

    let [vm] = &vms_of_proc("libvirt")[..] else { panic!() };
    assert_eq!((&vm.name[..], vm.sources.name), ("web", Source::CommandLine));
    assert_eq!(vm.vcpus[0].source, Source::ThreadName);
}

#[test]
fn vmms_with_names_of_their_own_for_threads() {
    for (fixture, name, source, vmm, first, io) in [
        (
            "cloud-hypervisor",
            "cloud-hypervisor-700",
            Source::Pid,
            Vmm::CloudHypervisor,
            703,
            vec![705, 706, 707],
        ),
        ("firecracker", "551e7604-e35c", Source::CommandLine, Vmm::Firecracker, 802, vec![]),
        ("crosvm", "arcvm", Source::CommandLine, Vmm::Crosvm, 910, vec![]),
        ("kvmtool", "tiny", Source::CommandLine, Vmm::Kvmtool, 1005, vec![1002, 1003]),
    ] {
        let [vm] = &vms(fixture)[..] else { panic!("{fixture}") };
        assert_eq!(
            identity(vm),
            (name, source, &vmm, Source::Executable, Accel::Kvm, Source::Descriptors)
        );
        let expected =
            [(0, None, first, Source::ThreadName), (1, None, first + 1, Source::ThreadName)];
        assert_eq!((vcpus(vm), vm.unplaced), (expected.to_vec(), Some(0)), "{fixture}");
        assert_eq!(tids(vm, Role::Io), io, "{fixture}");
        assert_eq!(tids(vm, Role::Main), [vm.pid], "{fixture}");
    }
}

#[test]
fn vms_of_the_lab_share_a_process() {
    for (vms, with_debugfs) in [(vms("lab"), true), (vms_of_proc("lab"), false)] {
        let [a, b] = &vms[..] else { panic!() };
        for (vm, name, fd, tid) in [(a, "a", 6, 19490), (b, "b", 8, 19491)] {
            assert_eq!((&vm.name[..], &vm.vmm), (name, &Vmm::Vcoop));
            assert_eq!(vm.vm_fd, with_debugfs.then_some(fd));
            assert_eq!(vm.unplaced, with_debugfs.then_some(0));
            let [vcpu] = &vm.vcpus[..] else { panic!() };
            assert_eq!((vcpu.index, vcpu.thread.tid), (0, tid));
        }
        assert_eq!((a.others.len(), b.others.len()), (6, 0));
    }
}

#[test]
fn two_vms_of_one_name_stay_two() {
    let vms = vms("twins");
    let found: Vec<_> =
        vms.iter().map(|vm| (&vm.name[..], vm.pid, vm.vcpus[0].thread.tid)).collect();
    assert_eq!(found, [("twin", 110, 111), ("twin", 120, 121)]);
}

#[test]
fn two_vms_of_one_process_and_name_are_told_apart() {
    let tree = Tree::new("firecracker");
    let write = |path: &str, tid: &str| {
        std::fs::create_dir_all(tree.path(path)).unwrap();
        std::fs::write(tree.path(path).join("pid"), tid).unwrap();
    };
    let found = || {
        let vms = scan(&tree.proc());
        vms.iter().map(|vm| (vm.name.clone(), vm.vcpus[0].thread.tid)).collect::<Vec<_>>()
    };
    write("debugfs/kvm/800-10/vcpu0", "802");
    let name = "551e7604-e35c";
    assert_eq!(found(), [(name.to_owned(), 802)]);
    std::os::unix::fs::symlink("anon_inode:kvm-vm", tree.path("proc/800/fd/12")).unwrap();
    write("debugfs/kvm/800-12/vcpu0", "803");
    assert_eq!(found(), [(format!("{name}#10"), 802), (format!("{name}#12"), 803)]);
}

#[test]
fn processes_that_lie_get_no_further_than_their_own_threads() {
    let tree = Tree::new("hostile");
    let vms = scan(&tree.proc());
    let [loud, box_] = &vms[..] else { panic!("{vms:#?}") };

    assert_eq!(loud.name, "\\u{1b}[2Jroot");
    assert_eq!(loud.cgroup.as_deref(), Some("/a\\u{1b}[2J"));
    assert_eq!((vcpus(loud), loud.unplaced), (vec![(1, None, 63, Source::ThreadName)], Some(1)));
    let comms: Vec<_> = loud.others.iter().map(|o| &o.thread.comm[..]).collect();
    assert_eq!(comms, ["a) R 1 1 (b", "CPU 0/KVM", "CPU 0/KVM", "\\u{1b}[2J\\n\\xff"]);
    // It has its own root and working folder.
    let own = |path: &str| tree.path(&format!("proc/60/{path}"));
    assert_eq!(loud.qmp, [own("root/run/q.sock"), own("cwd/q2.sock")]);

    assert_eq!((&box_.name[..], &box_.vmm), ("krunvm-70", &Vmm::Other("krunvm".into())));
    let expected = [(0, Some(0), 71, Source::Debugfs), (1, None, 73, Source::ThreadName)];
    assert_eq!((vcpus(box_), box_.unplaced), (expected.to_vec(), Some(0)));
}

#[test]
fn a_list_of_processes_that_is_not_there_is_an_error() {
    assert!(Proc::at("/nonexistent").scan().is_err());
}

#[test]
fn this_host_can_be_read() {
    Proc::default().scan().unwrap();
}

#[test]
fn no_vm_has_ended_because_file_descriptors_ran_out() {
    for fixture in ["qemu-kvm", "libvirt", "qemu-kvm-unnamed", "twins"] {
        let tree = Tree::new(fixture);
        let whole = tree.proc().scan().unwrap();
        let scans = without_files(
            move || (tree.proc(), tree),
            |(proc, _tree), mut all| {
                let scan = |close| {
                    all.truncate(all.len() - close);
                    proc.scan().ok()
                };
                [0, 1, 1, 1, 1, 1, 1].map(scan)
            },
        );
        let Some(scans) = scans else { return };
        assert!(scans.iter().flatten().all(|scan| *scan == whole), "{fixture}: {scans:?}");
        assert!(scans[0].is_none() && scans[6].is_some(), "{fixture}: {scans:?}");
    }
}
