//! Any bytes in the files of a process: its VMs are found or not, never a panic; what is found is
//! bounded, safe to print, and made of threads that the process has.
#![no_main]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vcoop_vmm::{Proc, limits};

const PID: u32 = 10;
const TIDS: [u32; 3] = [PID, 11, 12];

/// A tree of this process's own, in memory where that can be had.
static TREE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let tree = base.join(format!("vcoop-fuzz-{}", std::process::id()));
    for folder in ["debugfs/kvm/10-3/vcpu0", "debugfs/kvm/10-3/vcpu1", "libvirt"] {
        fs::create_dir_all(tree.join(folder)).expect("a folder for the tree");
    }
    for tid in TIDS {
        fs::create_dir_all(tree.join(format!("proc/{PID}/task/{tid}"))).expect("a thread");
    }
    fs::create_dir(tree.join(format!("proc/{PID}/fd"))).expect("a folder of descriptors");
    tree
});

fn write(path: &str, bytes: &[u8]) {
    fs::write(TREE.join(path), bytes).expect("a file");
}

/// A link, if anything can be linked to under that name.
fn link(path: &str, target: &[u8]) {
    let path = TREE.join(path);
    let _ = fs::remove_file(&path);
    let _ = symlink(OsStr::from_bytes(target), path);
}

fn safe(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    // 0xfe is in no UTF-8: it ends a file.
    let mut files = bytes.split(|b| *b == 0xfe);
    let mut file = || files.next().unwrap_or_default();

    let stat = |tid: u32, name: &[u8], end: &[u8]| {
        let numbers = " S 1 1 1 0 -1 4 0 0 0 0 6 4 0 0 20 0 6 0 1065";
        [format!("{tid} (").as_bytes(), name, b")", numbers.as_bytes(), end].concat()
    };
    let end: &[u8] = if choice & 1 == 0 { b" 1598" } else { file() };
    write(&format!("proc/{PID}/stat"), &stat(PID, file(), end));
    for tid in TIDS {
        let name = file();
        write(&format!("proc/{PID}/task/{tid}/stat"), &stat(tid, name, b" 1598"));
    }
    let exe: &[u8] = match choice >> 1 & 3 {
        0 => b"/usr/bin/qemu-system-x86_64",
        1 => b"/usr/bin/firecracker (deleted)",
        2 => b"/usr/bin/stratovirt",
        _ => file(),
    };
    link(&format!("proc/{PID}/exe"), exe);
    write(&format!("proc/{PID}/cmdline"), file());
    write(&format!("proc/{PID}/cgroup"), file());
    let vm: &[u8] = if choice >> 3 & 1 == 0 { b"anon_inode:kvm-vm" } else { b"/dev/kvm" };
    link(&format!("proc/{PID}/fd/3"), vm);
    link(&format!("proc/{PID}/fd/4"), b"anon_inode:kvm-vcpu:0");
    link(&format!("proc/{PID}/fd/5"), &[b"anon_inode:kvm-", file()].concat());
    link(&format!("proc/{PID}/root"), file());
    write("debugfs/kvm/10-3/vcpu0/pid", file());
    write("debugfs/kvm/10-3/vcpu1/pid", file());
    let state = [b"<!-- --><domstatus pid='10'><vcpus><vcpu id='0' pid='11'/>", file()].concat();
    write("libvirt/web.xml", &state);

    let mut proc = Proc::at(TREE.join("proc"));
    if choice >> 4 & 1 == 0 {
        proc = proc.debugfs(TREE.join("debugfs"));
    }
    if choice >> 5 & 1 == 0 {
        proc = proc.libvirt(TREE.join("libvirt"));
    }
    for vm in proc.scan().expect("a list of processes").vms {
        // An escape is eight times as long as what it stands for, at most.
        assert!(vm.pid == PID && vm.name.len() <= 8 * limits::SHOWN);
        safe(&vm.name);
        safe(&vm.vmm.to_string());
        vm.cgroup.iter().chain(&vm.uuid).for_each(|text| safe(text));
        assert!(vm.vcpus.is_sorted_by(|a, b| a.index < b.index));
        let threads = vm.vcpus.iter().map(|v| &v.thread);
        let threads = threads.chain(vm.others.iter().map(|o| &o.thread));
        let mut tids: Vec<u32> = threads.inspect(|t| safe(&t.comm)).map(|t| t.tid).collect();
        tids.sort_unstable();
        assert!(tids.is_sorted_by(|a, b| a < b) && tids.iter().all(|tid| TIDS.contains(tid)));
    }
});
