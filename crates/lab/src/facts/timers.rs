//! Timers of this host's CPUs: the `[cpu]` section of a profile.

use std::fs::File;
use std::os::unix::fs::FileExt;

use vcoop_model::profile::Cpu;

use super::Root;

/// The MSR whose low five bits are the preemption timer's rate (IA32_VMX_MISC, Intel SDM vol. 3, A.6).
const IA32_VMX_MISC: u64 = 0x485;

/// The rate of all common CPUs: one count in 32 cycles.
const COMMON_SHIFT: u32 = 5;

/// The CPU of a profile, and its source, which begins with `measured` only if everything was read. `tsc_khz`: from KVM
/// or a clock. `place`: where and when.
pub(crate) fn cpu(root: &Root, tsc_khz: u32, place: &str) -> (Cpu, String) {
    let signature = signature(root);
    let (preemption_timer_shift, timer) = preemption_timer(root);
    let name = match signature {
        Some(_) => "signature from /proc/cpuinfo",
        None => "signature unknown, 0",
    };
    let assumed = signature.is_none() || timer.is_assumed;
    let word = if assumed { "assumed: in part; on" } else { "measured by vcoop calibrate on" };
    let source =
        format!("{word} {place}: TSC frequency as its kernel has it; {name}; {}", timer.says);
    (Cpu { tsc_khz, signature: signature.unwrap_or(0), preemption_timer_shift }, source)
}

/// Family, model and stepping as CPUID's leaf 1 packs them into EAX.
fn signature(root: &Root) -> Option<u32> {
    let number = |key: &str| root.cpuinfo(key)?.parse::<u32>().ok();
    let (family, model, stepping) = (number("cpu family")?, number("model")?, number("stepping")?);
    // Beyond 15 a family is the sum of two fields; models have their high half apart.
    let (base, extended) = if family < 15 { (family, 0) } else { (15, family - 15) };
    Some(
        (stepping & 0xf)
            | (model & 0xf) << 4
            | base << 8
            | (model >> 4 & 0xf) << 16
            | (extended & 0xff) << 20,
    )
}

/// What is known about the preemption timer.
struct Timer {
    says: &'static str,
    is_assumed: bool,
}

/// Its shift, `None` where KVM has none.
fn preemption_timer(root: &Root) -> (Option<u32>, Timer) {
    let read = |says| Timer { says, is_assumed: false };
    let kvm_intel = root.text("sys/module/kvm_intel/parameters/preemption_timer");
    let flag = root.cpuinfo("vmx flags").map(|f| f.split(' ').any(|f| f == "preemption_timer"));
    match (kvm_intel.as_deref(), flag) {
        (Some("N" | "0"), _) => {
            return (
                None,
                read("kvm_intel does not use a preemption timer (preemption_timer = N)"),
            );
        }
        (_, Some(false)) => return (None, read("VMX without a preemption timer")),
        (None, None) => return (None, read("no VMX here, so no preemption timer")),
        _ => {}
    }
    match msr(root, IA32_VMX_MISC) {
        Some(misc) => {
            (Some((misc & 0x1f) as u32), read("the preemption timer's rate from IA32_VMX_MISC"))
        }
        None => {
            let says = "there is a preemption timer, and its rate is taken to be that of all common CPUs, \
                        as /dev/cpu/0/msr cannot be read";
            (Some(COMMON_SHIFT), Timer { says, is_assumed: true })
        }
    }
}

fn msr(root: &Root, index: u64) -> Option<u64> {
    let mut word = [0; 8];
    File::open(root.path("dev/cpu/0/msr")).ok()?.read_exact_at(&mut word, index).ok()?;
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::{Root, cpu};

    const HASWELL: &str = "cpu family\t: 6\nmodel\t\t: 63\nstepping\t: 2\n";

    fn read(files: &[(&str, &[u8])]) -> (vcoop_model::profile::Cpu, String) {
        let tree = Tree::with(files);
        cpu(&Root::new(tree.root()), 2_300_000, "a machine, today")
    }

    #[test]
    fn a_vmx_host_whose_msrs_can_be_read() {
        let info = format!("{HASWELL}vmx flags\t: vnmi preemption_timer ept\n");
        let mut msrs = vec![0; 0x485];
        msrs.extend(0x3_0000_0027_u64.to_le_bytes());
        let on: (&str, &[u8]) = ("sys/module/kvm_intel/parameters/preemption_timer", b"Y\n");
        let info: (&str, &[u8]) = ("proc/cpuinfo", info.as_bytes());
        let (cpu, source) = read(&[info, on, ("dev/cpu/0/msr", &msrs)]);
        assert_eq!((cpu.tsc_khz, cpu.signature), (2_300_000, 0x306f2));
        assert_eq!(cpu.preemption_timer_shift, Some(7));
        assert!(source.starts_with("measured by vcoop calibrate on a machine"), "{source}");
        let (cpu, source) = read(&[info, on]);
        assert_eq!(cpu.preemption_timer_shift, Some(5));
        assert!(source.starts_with("assumed: "), "{source}");
        let off: (&str, &[u8]) = ("sys/module/kvm_intel/parameters/preemption_timer", b"N\n");
        assert_eq!(read(&[info, off]).0.preemption_timer_shift, None);
    }

    #[test]
    fn a_host_without_vmx_has_no_preemption_timer() {
        let zen = "cpu family\t: 25\nmodel\t\t: 17\nstepping\t: 1\n";
        let (cpu, source) = read(&[("proc/cpuinfo", zen.as_bytes())]);
        assert_eq!((cpu.signature, cpu.preemption_timer_shift), (0x00a1_0f11, None));
        assert!(cpu.avoids_preemption_timer() && source.starts_with("measured "), "{source}");
        let (cpu, source) = read(&[]);
        assert_eq!(cpu.signature, 0);
        assert!(source.starts_with("assumed: "), "{source}");
    }
}
