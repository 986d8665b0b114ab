//! Known programs that run VMs: names of their executables, names of their threads, and command-line options with a
//! VM's name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::vm::{Role, Vmm};
use crate::{limits, text};

/// A VMM that is recognised by the name of its executable.
pub(crate) struct KnownVmm {
    pub(crate) vmm: Vmm,
    /// Prefixes of the executable's file name.
    executables: &'static [&'static str],
    /// Text before and after a vCPU's number in its thread's name.
    vcpus: &'static [(&'static str, &'static str)],
    /// Options whose value is the VM's name.
    names: &'static [&'static str],
    /// Prefixes of names of threads that serve devices.
    io: &'static [&'static str],
}

/// Sources: QEMU `accel/kvm/kvm-accel-ops.c`, `accel/tcg/tcg-accel-ops-{mttcg,rr}.c`,
/// `iothread.c`; Cloud Hypervisor `vmm/src/cpu.rs`, `virtio-devices/src/block.rs`,
/// `vmm/src/device_manager.rs`; Firecracker `src/vmm/src/vstate/vcpu.rs`, `docs/jailer.md`; crosvm
/// `src/crosvm/sys/linux/vcpu.rs` and `run --name`; kvmtool `builtin-run.c`, `virtio/*.c`;
/// StratoVirt `cpu/src/lib.rs`. libkrun is a library and has no entry: programs that use it have Firecracker's thread
/// names, and are shown by their own names.
static KNOWN: &[KnownVmm] = &[
    KnownVmm {
        vmm: Vmm::Qemu,
        executables: &["qemu-system-", "qemu-kvm"],
        vcpus: &[("CPU ", "/KVM"), ("CPU ", "/TCG")],
        names: &[],
        io: &["IO "],
    },
    KnownVmm {
        vmm: Vmm::CloudHypervisor,
        executables: &["cloud-hypervisor"],
        vcpus: &[("vcpu", "")],
        names: &[],
        io: &["_disk", "_net", "_fs", "_vsock", "_pmem"],
    },
    KnownVmm {
        vmm: Vmm::Firecracker,
        executables: &["firecracker"],
        vcpus: &[("fc_vcpu ", "")],
        names: &["--id"],
        io: &[],
    },
    KnownVmm {
        vmm: Vmm::Crosvm,
        executables: &["crosvm"],
        vcpus: &[("crosvm_vcpu", "")],
        names: &["--name"],
        io: &[],
    },
    KnownVmm {
        vmm: Vmm::Kvmtool,
        executables: &["lkvm", "kvmtool"],
        vcpus: &[("kvm-vcpu-", "")],
        names: &["--name"],
        io: &["virtio-"],
    },
    KnownVmm {
        vmm: Vmm::StratoVirt,
        executables: &["stratovirt"],
        vcpus: &[("CPU ", "/KVM")],
        names: &["-name"],
        io: &[],
    },
];

/// Name of QEMU's single thread for all vCPUs, under `-accel tcg,thread=single`.
const ROUND_ROBIN: &str = "ALL CPUs/TCG";

/// The VMM whose executable has this file name. NixOS starts programs by a wrapper, and hides them behind a dot:
/// `.qemu-system-x86_64-wrapped`.
pub(crate) fn by_executable(file_name: &str) -> Option<&'static KnownVmm> {
    let file_name = file_name.strip_prefix('.').unwrap_or(file_name);
    KNOWN.iter().find(|k| k.executables.iter().any(|e| file_name.starts_with(e)))
}

/// Number of the vCPU whose thread has this name; for an unknown VMM, by the patterns of all known ones.
pub(crate) fn vcpu_index(known: Option<&KnownVmm>, comm: &str) -> Option<u32> {
    if known.is_none_or(|k| k.vmm == Vmm::Qemu) && comm == ROUND_ROBIN {
        return Some(0);
    }
    let patterns = KNOWN.iter().filter(|k| known.is_none_or(|known| known.vmm == k.vmm));
    patterns.flat_map(|k| k.vcpus).find_map(|(before, after)| {
        let digits = comm.strip_prefix(before)?.strip_suffix(after)?;
        let index = text::number(digits.as_bytes())?;
        ((index as usize) < limits::VCPUS).then_some(index)
    })
}

/// Number of the vCPU and name of the VM, if a thread is named as in vcoop's lab.
pub(crate) fn lab_vcpu(comm: &str) -> Option<(u32, &str)> {
    let (digits, vm) = comm.strip_prefix("vcpu")?.split_once(':')?;
    let index = text::number(digits.as_bytes())?;
    ((index as usize) < limits::VCPUS && !vm.is_empty()).then_some((index, vm))
}

/// Role of a thread that is not a vCPU's.
pub(crate) fn role(known: Option<&KnownVmm>, is_first: bool, comm: &str) -> Role {
    // The kernel's vhost workers are threads of the VMM since Linux 6.4.
    let io = comm.starts_with("vhost-")
        || known.is_some_and(|k| k.io.iter().any(|io| comm.starts_with(io)));
    match (is_first, io) {
        (true, _) => Role::Main,
        (false, true) => Role::Io,
        (false, false) => Role::Other,
    }
}

/// Facts from a VMM's command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    /// Paths of QMP sockets, as the process sees them.
    pub(crate) qmp: Vec<PathBuf>,
    /// No machine is emulated: QEMU was only started to query its capabilities.
    pub(crate) no_machine: bool,
    /// For QEMU: the first accelerator in its list.
    pub(crate) accel: Option<String>,
}

/// Reads a command line: arguments, each terminated by a zero byte.
pub(crate) fn command_line(known: &KnownVmm, bytes: &[u8]) -> CommandLine {
    let mut args = bytes.split(|b| *b == 0).skip(1).peekable();
    let mut told = CommandLine::default();
    if known.vmm != Vmm::Qemu {
        while let Some(arg) = args.next() {
            let value = known.names.iter().find_map(|option| {
                match arg.strip_prefix(option.as_bytes())? {
                    [] => args.peek().copied(),
                    [b'=', value @ ..] => Some(value),
                    _ => None,
                }
            });
            if let Some(value) = value.filter(|v| !v.is_empty()) {
                told.name = Some(text::shown(value, limits::SHOWN));
                break;
            }
        }
        return told;
    }

    // Monitors that speak QMP through a character device, and the character devices.
    let (mut monitors, mut devices) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        let Some(option) = arg.strip_prefix(b"--").or_else(|| arg.strip_prefix(b"-")) else {
            continue;
        };
        let value = args.peek().copied().unwrap_or_default();
        let settings = || Settings::new(value);
        match option {
            b"name" => {
                let name = settings().get("guest", true);
                told.name = name.map(|n| text::shown(&n, limits::SHOWN));
            }
            b"uuid" if value.len() == 36 => told.uuid = Some(text::shown(value, 36)),
            b"qmp" | b"qmp-pretty" => {
                if let Some(rest) = value.strip_prefix(b"unix:")
                    && let Some(path) = Settings::new(rest).get("path", true)
                {
                    told.qmp.push(PathBuf::from(OsStr::from_bytes(&path)));
                }
            }
            b"mon" => {
                let mon = settings();
                if mon.get("mode", false).as_deref() == Some(b"control") {
                    monitors.extend(mon.get("chardev", true));
                }
            }
            b"chardev" if value.starts_with(b"socket,") => {
                let device = settings();
                devices.extend(device.get("id", false).zip(device.get("path", false)));
            }
            b"machine" | b"M" => {
                told.no_machine = settings().get("type", true).as_deref() == Some(b"none");
                if let Some(accel) = settings().get("accel", false) {
                    told.accel.get_or_insert(first_accel(&accel));
                }
            }
            b"accel" => {
                let accel = settings().get("accel", true).unwrap_or_default();
                told.accel.get_or_insert(first_accel(&accel));
            }
            b"enable-kvm" => {
                told.accel.get_or_insert("kvm".to_owned());
            }
            _ => {}
        }
    }
    let of_monitor = devices.into_iter().filter(|(id, _)| monitors.contains(id));
    told.qmp.extend(of_monitor.map(|(_, path)| PathBuf::from(OsStr::from_bytes(&path))));
    told
}

/// The first entry of a list such as `kvm:tcg`.
fn first_accel(list: &[u8]) -> String {
    text::shown(list.split(|b| *b == b':').next().unwrap_or_default(), limits::SHOWN)
}

/// QEMU's `key=value,...`, with `,,` for a comma in a value.
struct Settings(Vec<Vec<u8>>);

impl Settings {
    fn new(text: &[u8]) -> Self {
        let mut parts = vec![Vec::new()];
        let mut bytes = text.iter().copied().peekable();
        while let Some(b) = bytes.next() {
            if b == b',' && bytes.next_if_eq(&b',').is_none() {
                parts.push(Vec::new());
            } else if let Some(part) = parts.last_mut() {
                part.push(b);
            }
        }
        Self(parts)
    }

    /// The last value of a key. `implied`: a first part without a key is this key's value.
    fn get(&self, key: &str, implied: bool) -> Option<Vec<u8>> {
        let value = self.0.iter().rev().find_map(|part| {
            part.strip_prefix(key.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec)
        });
        let first = self.0.first().filter(|part| implied && !part.contains(&b'='));
        value.or_else(|| first.cloned()).filter(|v| !v.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(executable: &str, args: &[&str]) -> CommandLine {
        let line: String = args.iter().map(|arg| format!("{arg}\0")).collect();
        command_line(by_executable(executable).unwrap(), line.as_bytes())
    }

    fn qemu(args: &[&str]) -> CommandLine {
        told("qemu-system-x86_64", &[&["qemu-system-x86_64"], args].concat())
    }

    #[test]
    fn qemu_says_its_name_in_several_ways() {
        let name = |value: &str| qemu(&["-S", "-name", value, "-m", "64"]).name;
        assert_eq!(name("web").as_deref(), Some("web"));
        assert_eq!(name("web,debug-threads=on").as_deref(), Some("web"));
        assert_eq!(name("guest=web,debug-threads=on").as_deref(), Some("web"));
        assert_eq!(name("debug-threads=on,guest=web").as_deref(), Some("web"));
        assert_eq!(name("a,,b,process=x").as_deref(), Some("a,b"));
        assert_eq!(name("debug-threads=on"), None);
        assert_eq!(name(""), None);
        assert_eq!(name("a\x1b[31m").as_deref(), Some("a\\u{1b}[31m"));
        assert_eq!(qemu(&["--name", "web"]).name.as_deref(), Some("web"));
        assert_eq!(qemu(&["-append", "-name=x", "-name"]).name, None);
    }

    #[test]
    fn qemus_qmp_sockets_are_those_in_the_file_system() {
        let path = |path: &str| vec![PathBuf::from(path)];
        assert_eq!(qemu(&["-qmp", "unix:/run/q,,1,server=on,wait=off"]).qmp, path("/run/q,1"));
        assert_eq!(qemu(&["-qmp", "unix:path=q.sock,server"]).qmp, path("q.sock"));
        assert_eq!(qemu(&["-qmp", "tcp:127.0.0.1:4444"]).qmp, Vec::<PathBuf>::new());
        let by_device = |mon: &str, chardev: &str| qemu(&["-mon", mon, "-chardev", chardev]).qmp;
        let control = "chardev=m,id=monitor,mode=control";
        assert_eq!(by_device(control, "socket,id=m,path=/run/m,server=on"), path("/run/m"));
        assert_eq!(by_device("m,mode=control", "socket,path=/run/m,id=m"), path("/run/m"));
        for (mon, chardev) in [
            (control, "socket,id=m,fd=29,server=on"),
            (control, "socket,id=other,path=/run/m"),
            (control, "pty,id=m,path=/run/m"),
            ("chardev=m,mode=readline", "socket,id=m,path=/run/m"),
        ] {
            assert_eq!(by_device(mon, chardev), Vec::<PathBuf>::new(), "{mon} {chardev}");
        }
    }

    #[test]
    fn qemus_accelerator_is_the_first_one_asked_for() {
        let accel = |args: &[&str]| qemu(args).accel;
        assert_eq!(accel(&["-machine", "q35,accel=kvm:tcg"]).as_deref(), Some("kvm"));
        assert_eq!(accel(&["-accel", "tcg,thread=multi"]).as_deref(), Some("tcg"));
        assert_eq!(accel(&["-accel", "kvm", "-accel", "tcg"]).as_deref(), Some("kvm"));
        assert_eq!(accel(&["-enable-kvm"]).as_deref(), Some("kvm"));
        assert_eq!(accel(&["-m", "64"]), None);
        assert!(qemu(&["-machine", "none,accel=kvm:tcg"]).no_machine);
        assert!(!qemu(&["-machine", "q35"]).no_machine);
    }

    #[test]
    fn other_vmms_have_an_option_for_the_name() {
        assert_eq!(told("firecracker", &["firecracker", "--id", "f1"]).name.as_deref(), Some("f1"));
        assert_eq!(told("firecracker", &["firecracker", "--id=f1"]).name.as_deref(), Some("f1"));
        assert_eq!(told("firecracker", &["firecracker", "--identity", "f1"]).name, None);
        assert_eq!(told("firecracker", &["firecracker", "--id"]).name, None);
        let crosvm = ["crosvm", "run", "--name", "arcvm", "vmlinux"];
        assert_eq!(told("crosvm", &crosvm).name.as_deref(), Some("arcvm"));
        assert_eq!(told("lkvm-static", &["lkvm", "--name", "k"]).name.as_deref(), Some("k"));
        assert_eq!(told("cloud-hypervisor", &["cloud-hypervisor"]).name, None);
    }

    #[test]
    fn vcpus_are_known_by_the_names_of_their_threads() {
        let index = |executable: &str, comm| vcpu_index(by_executable(executable), comm);
        assert_eq!(index("qemu-kvm", "CPU 12/KVM"), Some(12));
        assert_eq!(index("qemu-kvm", "ALL CPUs/TCG"), Some(0));
        assert_eq!(index("qemu-kvm", "vcpu1"), None);
        assert_eq!(index(".qemu-system-x86_64-wrapped", "CPU 0/KVM"), Some(0));
        assert_eq!(index(".qemu-system-x86_64-wrapped", "vcpu1"), None);
        assert_eq!(index("cloud-hypervisor-static", "vcpu1"), Some(1));
        assert_eq!(index("firecracker-v1.7.0-x86_64", "fc_vcpu 3"), Some(3));
        assert_eq!(index("crosvm", "crosvm_vcpu0"), Some(0));
        assert_eq!(index("lkvm", "kvm-vcpu-2"), Some(2));
        // libkrun's programs, for example.
        assert_eq!(index("krunvm", "fc_vcpu 3"), Some(3));
        for bad in ["CPU /KVM", "CPU -1/KVM", "CPU 4096/KVM", "CPU 1/KVMx", "CPU 99999999999/K"] {
            assert_eq!(index("qemu-kvm", bad), None, "{bad}");
        }
        assert_eq!(lab_vcpu("vcpu1:guest"), Some((1, "guest")));
        assert_eq!(lab_vcpu("vcpu1"), None);
        assert_eq!(lab_vcpu("vcpu:guest"), None);
    }
}
