//! The VMs of a host: the document of `vcoop vms`, and its tables.

use serde::Serialize;
use vcoop_experiment::format::{self, maybe};

use crate::style::{Style, cut, finish};

/// The VMs that run on a host, and what could not be seen of them.
///
/// A field is `None` (`null` in JSON) where its value is not known.
#[derive(Clone, Debug, Serialize)]
pub struct Vms {
    /// `vcoop.vms/1`.
    pub schema: &'static str,
    /// Version of vcoop.
    pub version: &'static str,
    /// The VMs, by process id.
    pub vms: Vec<Vm>,
    /// What is not known, why, and what helps.
    pub notes: Vec<Note>,
}

/// A VM. Its texts are safe to print.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Vm {
    /// Its name; not always unique.
    pub name: String,
    /// Program that runs it: `QEMU`, or the name of an executable.
    pub vmm: String,
    /// `KVM` or `TCG`.
    pub accel: String,
    /// Process of the VMM.
    pub pid: u32,
    /// When that process started, in clock ticks since boot. It tells a reused process id.
    pub start_ticks: u64,
    /// The vCPUs whose thread is known, by index.
    pub vcpus: Vec<Vcpu>,
    /// vCPUs whose thread is not known; `None` if their number is not known either.
    pub unplaced_vcpus: Option<usize>,
    /// Policy of vcoop that is in force on the VM.
    pub policy: Option<String>,
    /// What tells that policy of sleeps, wake-ups and interrupts: `perf`, `fentry of KVM`, `tracepoint of KVM`,
    /// `scx_vcoop`.
    pub heard_by: Vec<String>,
    /// Whether that policy boosts no vCPU now, because hardly any thread of the host waits for a CPU.
    pub rests: bool,
    /// Where the VM's name, VMM and accelerator are known from.
    pub sources: Vec<Source>,
    /// vcoop's driver in the guest, where it has registered.
    pub guest_driver: Option<GuestDriver>,
}

/// vcoop's driver in a guest, by its own word.
#[derive(Clone, Debug, Serialize)]
pub struct GuestDriver {
    /// Version of the page that it speaks.
    pub abi: u16,
    /// vCPUs that it speaks for.
    pub vcpus: usize,
    /// Room for vCPUs in the memory that it shares.
    pub slots: u64,
}

/// Where a fact about a VM is known from.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// `name`, `vmm` or `accel`.
    pub fact: &'static str,
    /// `executable`, `command line`, `file descriptors`, `debugfs`, `libvirt`, `thread name`, `QMP`, or
    /// `process id` for a name that is made up of it.
    pub source: String,
}

/// A vCPU and its thread.
#[derive(Clone, Debug, Serialize)]
pub struct Vcpu {
    /// The VMM's number for it.
    pub index: u32,
    /// Its thread.
    pub tid: u32,
    /// When the thread started, in clock ticks since boot. It tells a reused thread id.
    pub start_ticks: u64,
    /// What says that this is the vCPU's thread: one of the texts of [`Source::source`].
    pub source: String,
    /// What the host says of the thread.
    #[serde(flatten)]
    pub thread: Thread,
    /// Whether vcoop boosts it now, by what the process that applies policies answers; `None` without an answer.
    pub boosted: Option<bool>,
}

/// What the host says of a vCPU's thread.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Thread {
    /// Scheduling policy and its parameters: `SCHED_OTHER nice 0`, `SCHED_FIFO 50`.
    pub policy: Option<String>,
    /// Who made the thread real-time: `vcoop` if vcoop has boosted it, `unknown` if another program did, `None` if it
    /// is not.
    pub realtime_by: Option<&'static str>,
    /// CPUs that it may use, as a list of the kernel's kind: `0-3,7`.
    pub affinity: Option<String>,
    /// CPU time that it has used, in nanoseconds.
    pub ran_ns: Option<u64>,
    /// Time for which it could have run and did not, since it started, in nanoseconds: the run delay of
    /// `schedstat`, which KVM tells the guest as steal.
    pub steal_ns: Option<u64>,
    /// The part of it that the thread waited after waking up, in nanoseconds. No counter of the kernel
    /// tells, so nothing knows it yet.
    pub wait_ns: Option<u64>,
}

/// Something that is not known.
#[derive(Clone, Debug, Serialize)]
pub struct Note {
    /// Process of the VM that it is about; `None`: about the host.
    pub pid: Option<u32>,
    /// What is not known, and why.
    pub evidence: String,
    /// What helps, if anything does.
    pub remedy: Option<String>,
}

/// Columns of a VM's name in its heading.
const NAME: usize = 36;
/// Columns of the CPUs.
const CPUS: usize = 12;
/// Columns of the scheduling policy.
const POLICY: usize = 24;

impl Vms {
    /// The document for a terminal: a table for each VM, 80 columns wide, then the notes.
    pub fn render(&self, style: Style) -> String {
        let mut text = String::new();
        if self.vms.is_empty() {
            text += "No virtual machine was found on this host.\n";
        }
        for (i, vm) in self.vms.iter().enumerate() {
            if i > 0 {
                text.push('\n');
            }
            text += &vm.render(style);
            text.extend(
                self.notes.iter().filter(|n| n.pid == Some(vm.pid)).map(|n| n.render(style)),
            );
        }
        let about_host: String =
            self.notes.iter().filter(|n| n.pid.is_none()).map(|n| n.render(style)).collect();
        if !about_host.is_empty() {
            text.push('\n');
            text += &about_host;
        }
        text
    }
}

impl Vm {
    fn render(&self, style: Style) -> String {
        let Self { name, vmm, accel, pid, vcpus, .. } = self;
        let heading = style.heading(&cut(name, NAME));
        let mut text = format!("{heading}: {}, {accel}, process {pid}\n", cut(vmm, NAME / 2));
        if let Some(policy) = &self.policy {
            let heard = self.heard_by.join(" and ");
            let heard = if heard.is_empty() { heard } else { format!(", heard by {heard}") };
            let rests = if self.rests {
                ", at rest: hardly any thread of the host waits for a CPU"
            } else {
                ""
            };
            text += &style.wrap(&format!("  policy {policy}{heard}{rests}"), 4);
        }
        if vcpus.is_empty() {
            return text;
        }
        let mut table = style.table(["vCPU", "thread", "CPUs", "policy", "ran", "steal"]);
        let time = |ns: u64| format::time(ns as f64 / 1e3);
        for Vcpu { index, tid, thread, .. } in vcpus {
            table.add_row([
                index.to_string(),
                tid.to_string(),
                maybe(thread.affinity.as_ref(), |cpus| cut(cpus, CPUS)),
                maybe(thread.policy.as_ref(), |policy| cut(policy, POLICY)),
                maybe(thread.ran_ns, time),
                maybe(thread.steal_ns, time),
            ]);
        }
        text += &finish(table, 4);
        text
    }
}

impl Note {
    fn render(&self, style: Style) -> String {
        let mut text = style.wrap(&format!("  note: {}", self.evidence), 8);
        if let Some(remedy) = &self.remedy {
            text += &style.wrap(&format!("  remedy: {remedy}"), 10);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(vcpus: Vec<Vcpu>, notes: Vec<Note>) -> Vms {
        let vm = Vm {
            name: "long ".repeat(50),
            vmm: "an-executable-with-a-name-of-some-length".to_owned(),
            accel: "KVM".to_owned(),
            pid: 4_194_304,
            start_ticks: 1,
            vcpus,
            unplaced_vcpus: Some(0),
            ..Vm::default()
        };
        Vms { schema: "vcoop.vms/1", version: "0", vms: vec![vm], notes }
    }

    fn vcpu(index: u32, thread: Thread) -> Vcpu {
        let source = "debugfs".to_owned();
        Vcpu { index, tid: 4_194_303, start_ticks: 2, source, thread, boosted: None }
    }

    #[test]
    fn the_widest_table_fits_80_columns_and_says_what_is_not_known() {
        let wide = Thread {
            policy: Some("SCHED_DEADLINE 1000000 ns in 20000000 ns of 20000000 ns".to_owned()),
            affinity: Some("0-3,7,12-15,256-511".to_owned()),
            ran_ns: Some(u64::from(u32::MAX) * 1_000_000),
            // More than a year.
            steal_ns: Some(34_567_890_000_000_000),
            ..Thread::default()
        };
        let note = Note { pid: Some(4_194_304), evidence: "why".to_owned(), remedy: None };
        let text = document(vec![vcpu(4095, wide), vcpu(1, Thread::default())], vec![note])
            .render(Style::default());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let unknown: Vec<_> = text.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(unknown, ["1", "4194303", "n/a", "n/a", "n/a", "n/a"]);
        assert!(text.ends_with("  note: why\n"), "{text}");
    }
}
