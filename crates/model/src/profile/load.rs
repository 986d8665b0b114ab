//! Profile files.
//!
//! A profile is refused unless it gives every cost with its source: a missing number would make a mechanism free
//! without notice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use schemars::{Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use vcoop_sched::config::Topology;

use super::{CState, Cpu, Noise, NoiseBy, Profile};
use crate::builtin::is_path;
use crate::diagnostic::{Collector, Diagnostic, Diagnostics, Sources, nearest};
use crate::dist::Ns;
use crate::file;
use crate::kind::Kind;
use crate::quantiles::Quantiles;
use crate::toml_read::node::parse_document;
use crate::toml_read::table::{read_table, table};
use crate::toml_read::units::{Time, show};
use crate::toml_read::value::{Int, Name};
use crate::toml_read::{Node, Placed, Text, Value};
use crate::topology::{TopologyTable, topology};

/// Profiles that ship with the program: name and text.
const BUILTIN: [(&str, &str); 7] = [
    ("celeron-n4500", include_str!("../../../../profiles/celeron-n4500.toml")),
    ("epyc-pvm", include_str!("../../../../profiles/epyc-pvm.toml")),
    ("epyc-server", include_str!("../../../../profiles/epyc-server.toml")),
    ("haswell-ep", include_str!("../../../../profiles/haswell-ep.toml")),
    ("power-pool", include_str!("../../../../profiles/power-pool.toml")),
    ("xeon-server", include_str!("../../../../profiles/xeon-server.toml")),
    ("zero", include_str!("../../../../profiles/zero.toml")),
];

/// Largest cost accepted: 100 ms. Anything above is a wrong unit.
const MAX_COST: i64 = 100_000_000;

/// Longest time of a distribution: 4 s. A machine that is itself a guest may stand still for long.
const MAX_SPREAD: i64 = 4_000_000_000;

impl Profile {
    /// The machine, and the sources of its numbers, in a line.
    pub fn origin(&self) -> String {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for source in self.sources.values() {
            let kind = source.split([':', ' ']).next().unwrap_or_default();
            *kinds.entry(kind).or_default() += 1;
        }
        let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        format!("{}; {}", self.title, kinds.join(", "))
    }

    /// Names of the profiles that ship with the program.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The text of a profile that ships with the program.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
    }

    /// Loads a profile by built-in name, or from a file if the name is a path (it has a `/` or ends in `.toml`).
    ///
    /// # Errors
    ///
    /// There is no such profile or file, or what is wrong in it, with line and column.
    pub fn load(name_or_path: &str) -> Result<Self, Diagnostics> {
        if let Some(text) = Self::builtin_text(name_or_path) {
            return Self::parse(name_or_path, text);
        }
        if !is_path(name_or_path) {
            let names = Self::builtin_names();
            let help = nearest(name_or_path, "built-in profiles", names) + "; or a path to a file";
            let message = format!("there is no profile `{name_or_path}`");
            return Err(Diagnostic::whole("profile", message, Some(help)).into());
        }
        Self::of_file(
            name_or_path,
            file::text(Path::new(name_or_path), file::MOST_NAMED).map_err(|e| file::sentence(&e)),
        )
    }

    /// A profile from the text of a file, or why there is none.
    pub(crate) fn of_file(path: &str, text: Result<String, String>) -> Result<Self, Diagnostics> {
        let text = text.map_err(|error| {
            let message = format!("cannot read the profile: {error}");
            let help = "`vcoop calibrate -o FILE` writes one; `vcoop list profiles` has those that are built in";
            Diagnostics::from(Diagnostic::whole(path, message, Some(help.to_owned())))
        })?;
        Self::parse(path, &text)
    }

    /// A profile from its text; `file` is what diagnostics call it.
    ///
    /// # Errors
    ///
    /// What is wrong in it: unknown or missing keys, costs without a source, idle states out of
    /// order.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let mut sources = Sources::default();
        let source = sources.add(file, text);
        let root = parse_document(&sources, source, text)?;
        Kind::Profile.expect(file, root.keys())?;
        let errors = Collector::new(&sources);
        let keys: Option<ProfileKeys> = read_table(&root, &errors);
        let profile = keys.and_then(|keys| keys.resolve(&errors));
        errors.finish(profile)
    }

    /// The profile as a file, which [`Profile::parse`] reads back to the same value.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        let text = |s: &str| toml::Value::String(s.to_owned()).to_string();
        let source = |key: &str| text(self.sources.get(key).map_or("", String::as_str));
        let Topology { threads_per_core, cores_per_llc, llcs } = self.topology;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "name = {}\ntitle = {}", text(&self.name), text(&self.title));
        let _ = writeln!(out, "about = {}", text(&self.about));
        let _ = write!(out, "topology = {{ threads_per_core = {threads_per_core}, ");
        let _ = writeln!(out, "cores_per_llc = {cores_per_llc}, llcs = {llcs} }}");
        if let Some(Cpu { tsc_khz, signature, preemption_timer_shift }) = self.cpu {
            let _ = writeln!(out, "\n[cpu]\ntsc_khz = {tsc_khz}\nsignature = \"{signature:X}\"");
            if let Some(shift) = preemption_timer_shift {
                let _ = writeln!(out, "preemption_timer_shift = {shift}");
            }
            let _ = writeln!(out, "source = {}", source("cpu"));
        }
        out.push_str("\n[costs]\n");
        let spread = |key: &str| self.costs.spread.get(key).map(|q| spread_text(*q));
        for (key, ns) in self.costs.entries() {
            let spread = spread(key).map_or_else(String::new, |text| format!("spread = {text}, "));
            let _ = writeln!(out, "{key} = {{ ns = {ns}, {spread}source = {} }}", source(key));
        }
        for state in &self.costs.cstates {
            let key = format!("cstate.{}", state.name);
            let _ = writeln!(out, "\n[[cstate]]\nname = {}", text(&state.name));
            let _ = writeln!(out, "exit = \"{}\"", show(state.exit_ns));
            if let Some(text) = spread(&key) {
                let _ = writeln!(out, "spread = {text}");
            }
            let _ = writeln!(out, "residency = \"{}\"", show(state.residency_ns));
            if state.monitor {
                out.push_str("monitor = true\n");
            }
            let _ = writeln!(out, "source = {}", source(&key));
        }
        for noise in &self.noise {
            let by = noise.by.name();
            let _ = writeln!(out, "\n[[noise]]\nname = {}\nby = \"{by}\"", text(&noise.name));
            let _ = writeln!(out, "period = \"{}\"", show(noise.period_ns));
            let _ = writeln!(out, "takes = {}", spread_text(noise.takes));
            if noise.mean_ns != noise.takes.mean() {
                let _ = writeln!(out, "mean = \"{}\"", show(noise.mean_ns));
            }
            let _ = writeln!(out, "source = {}", source(&format!("noise.{}", noise.name)));
        }
        out
    }
}

/// Source of a number.
#[derive(Clone, Debug)]
struct SourceText(String);

impl Text for SourceText {
    const WHAT: &'static str =
        "\"published: ...\", \"derived: ...\", \"assumed: ...\" or \"measured ...\"";
    const PATTERN: &'static str = "^(published: |derived: |assumed: |measured ).+";

    fn parse(text: &str) -> Result<Self, String> {
        let kinds = ["published: ", "derived: ", "assumed: ", "measured "];
        match kinds.iter().any(|k| text.strip_prefix(k).is_some_and(|rest| !rest.trim().is_empty()))
        {
            true => Ok(Self(text.to_owned())),
            false => Err("this does not say where the number is from".to_owned()),
        }
    }
}

table! {
    /// How a cost is spread: quantiles of what it takes, in nanoseconds.
    struct SpreadKeys {
        /// The least.
        min: Placed<Int<0, MAX_SPREAD>>,
        /// One of ten is at most this.
        p10: Placed<Int<0, MAX_SPREAD>>,
        /// Half are.
        p50: Placed<Int<0, MAX_SPREAD>>,
        /// 90 % are.
        p90: Placed<Int<0, MAX_SPREAD>>,
        /// 99 % are.
        p99: Placed<Int<0, MAX_SPREAD>>,
        /// 99.9 % are.
        p999: Placed<Int<0, MAX_SPREAD>>,
        /// 99.99 % are.
        p9999: Placed<Int<0, MAX_SPREAD>>,
        /// The largest.
        max: Placed<Int<0, MAX_SPREAD>>,
    }
}

/// A distribution as files write it.
fn spread_text(quantiles: Quantiles) -> String {
    let [min, p10, p50, p90, p99, p999, p9999, max] = quantiles.values();
    format!(
        "{{ min = {min}, p10 = {p10}, p50 = {p50}, p90 = {p90}, p99 = {p99}, p999 = {p999}, \
         p9999 = {p9999}, max = {max} }}"
    )
}

impl Value for Quantiles {
    fn what() -> String {
        "{ min = NUMBER, p10 = ..., p50 = ..., p90 = ..., p99 = ..., p999 = ..., p9999 = ..., max = ... }"
            .to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        if node.as_table().is_none() {
            let message = format!("expected quantiles, found {}", node.what());
            errors.error_help(node.span, message, format!("write {}", Self::what()));
            return None;
        }
        let keys: SpreadKeys = read_table(node, errors)?;
        let SpreadKeys { min, p10, p50, p90, p99, p999, p9999, max } = keys;
        let ns = [min, p10, p50, p90, p99, p999, p9999, max].map(|ns| ns.value.get32());
        Quantiles::try_from(ns)
            .map_err(|why| errors.error_help(node.span, why, "order them from min to max"))
            .ok()
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<SpreadKeys>()
    }
}

table! {
    /// One cost and where it is from.
    struct CostKeys {
        /// Nanoseconds of the CPU that pays.
        ns: Placed<Int<0, MAX_COST>>,
        /// How it is spread, where it varies: the simulator then draws it anew each time, and takes `ns` only where a
        /// scenario says `costs = "constant"`.
        spread: Option<Placed<Quantiles>>,
        /// Where the number is from.
        source: Placed<SourceText>,
    }
}

/// `{ ns = ..., source = ... }`.
#[derive(Clone, Debug)]
struct Cost {
    ns: Ns,
    spread: Option<Quantiles>,
    source: String,
}

impl Value for Cost {
    fn what() -> String {
        "{ ns = NUMBER, source = \"published: ...\" }".to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
        if node.as_table().is_none() {
            let message = format!("expected a cost, found {}", node.what());
            errors.error_help(node.span, message, format!("write {}", Self::what()));
            return None;
        }
        let keys: CostKeys = read_table(node, errors)?;
        let spread = keys.spread.map(|spread| spread.value);
        Some(Self { ns: keys.ns.value.get(), spread, source: keys.source.value.0 })
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<CostKeys>()
    }
}

table! {
    /// An idle state of the machine.
    struct CStateKeys {
        /// Name (`C1`, `C6`, ...).
        name: Placed<Name>,
        /// Time to leave it.
        exit: Placed<Time>,
        /// How that is spread, where it varies.
        spread: Option<Placed<Quantiles>>,
        /// Predicted idle time from which the governor chooses it.
        residency: Placed<Time>,
        /// The CPU watches its flags in it (MWAIT): where that is so of all states, a wake-up of an idle CPU is a
        /// write, and no IPI. Default: false.
        monitor: Option<Placed<bool>>,
        /// Where the numbers are from.
        source: Placed<SourceText>,
    }
}

/// What a file has about costs besides the constants, by key.
#[derive(Debug, Default)]
struct CostNotes {
    sources: BTreeMap<String, String>,
    spread: BTreeMap<String, Quantiles>,
}

impl CostNotes {
    fn add(&mut self, key: &str, source: String, spread: Option<Quantiles>) -> bool {
        self.spread.extend(spread.map(|spread| (key.to_owned(), spread)));
        self.sources.insert(key.to_owned(), source).is_none()
    }
}

/// Declares `[costs]` with one key for each cost field, and the way between the two.
macro_rules! costs {
    ($( $(#[doc = $doc:literal])+ $name:ident: $key:ident => $field:ident $(= $default:literal)? ),+ $(,)?) => {
        table! {
            /// What each mechanism costs.
            struct CostsKeys = "a table [costs]" { $( $(#[doc = $doc])+ $key: Placed<Cost> $(= $default)?, )+ }
        }

        /// Costs of one machine, in nanoseconds of the CPU that pays for them: a constant for each, and of those that
        /// vary the distribution.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Costs {
            $( $(#[doc = $doc])+ pub $field: Ns, )+
            /// Idle states, shallowest first. The first is entered at once.
            pub cstates: Vec<CState>,
            /// Distributions of costs, by key in profiles (`exit`, `cstate.C6`): the simulator draws each cost anew.
            /// The constant is used where nothing is drawn.
            #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
            pub spread: BTreeMap<String, Quantiles>,
        }

        impl CostsKeys {
            /// The constants; the rest goes to `about`.
            fn resolve(self, about: &mut CostNotes) -> Costs {
                $(
                    let $key = self.$key.value;
                    about.add(stringify!($key), $key.source, $key.spread);
                )+
                Costs { $( $field: $key.ns, )+ cstates: Vec::new(), spread: BTreeMap::new() }
            }
        }

        /// A cost by name, in the order of profile files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum CostKey { $( $(#[doc = $doc])+ $name, )+ }

        impl CostKey {
            /// All, in that order.
            pub const ALL: &'static [Self] = &[$( Self::$name ),+];

            /// Its key in profile files.
            pub fn key(self) -> &'static str {
                match self { $( Self::$name => stringify!($key), )+ }
            }
        }

        impl Costs {
            /// Every cost by its key in profile files, in their order, without idle states.
            pub fn entries(&self) -> Vec<(&'static str, Ns)> {
                vec![$( (stringify!($key), self.$field) ),+]
            }

            /// The same costs with the value of `ns` for each key; idle states stay, and nothing varies.
            #[must_use]
            pub fn with(&self, ns: impl Fn(&str) -> Ns) -> Self {
                let cstates = self.cstates.clone();
                Self { $( $field: ns(stringify!($key)), )+ cstates, spread: BTreeMap::new() }
            }
        }
    };
}

costs! {
    /// Host tick handler.
    Tick: tick => tick_ns,
    /// Host timer interrupt (hrtimer): entry, handler, exit.
    TimerIrq: timer_irq => timer_irq_ns,
    /// Program a host timer.
    TimerProgram: timer_program => timer_program_ns,
    /// Send an IPI (paid by the sender).
    IpiSend: ipi_send => ipi_send_ns,
    /// Time an IPI travels.
    IpiFlight: ipi_flight => ipi_flight_ns,
    /// Time until a CPU that waits for a cache line sees what another CPU of the same last-level cache wrote to it.
    /// Profiles from before 1 December 2026 have none.
    CacheLine: cache_line => cache_line_ns = "{ ns = 51, source = \"assumed: this profile has none; as xeon-server\" }",
    /// How much longer an IPI travels to a CPU with another last-level cache, and how much longer a cache line that was
    /// written there takes. Profiles from before 27 November 2026 have none.
    LlcCrossing: llc_crossing => llc_crossing_ns = "{ ns = 0, source = \"assumed: this profile has none\" }",
    /// Take an IPI (paid by the receiver).
    IpiReceive: ipi_receive => ipi_receive_ns,
    /// Device interrupt on the host, with the irqfd path to the injection.
    DeviceIrq: device_irq => device_irq_ns,
    /// Wake a thread: placement and enqueue (paid by the waker).
    Wakeup: wakeup => wakeup_ns,
    /// Pick and switch to another thread.
    ContextSwitch: context_switch => context_switch_ns,
    /// What a host thread pays of its own CPU time to go to sleep and come back, besides `timer_program` and
    /// `context_switch`: system calls, reading the clock, leaving the run queue. Profiles that `calibrate` wrote before
    /// November 2026 have none.
    Sleep: sleep => sleep_ns = "{ ns = 1500, source = \"assumed: this profile has none; as xeon-server\" }",
    /// What a host thread pays more for such a cycle where its CPU has nothing else to run meanwhile. Profiles without it
    /// have it in `sleep`.
    SleepIdle: sleep_idle => sleep_idle_ns = "{ ns = 0, source = \"assumed: this profile has it in sleep\" }",
    /// What a thread or a guest's task pays to go to sleep where it is in its kernel already and finds nothing: a
    /// message or room for one that is not there, a lock. The system call is in the time that the scenario gives for
    /// the message. Profiles from before 27 November 2026 have none.
    Block: block => block_ns = "{ ns = 300, source = \"assumed: this profile has none; as xeon-server\" }",
    /// Progress lost to cold caches when a thread resumes on another CPU than its last.
    MigrationRefill: migration_refill => migration_refill_ns,
    /// Progress lost to cold caches when a thread resumes on its CPU after another ran there for 10 us or more; less if
    /// that ran for a shorter time.
    SwitchRefill: switch_refill => switch_refill_ns,
    /// Change a thread's policy (dequeue, enqueue, resched).
    Setattr: setattr => setattr_ns,
    /// Leave guest mode and come to KVM's handler, any reason.
    Exit: exit => exit_ns,
    /// From KVM's loop back into guest mode.
    Entry: entry => entry_ns,
    /// Put an interrupt into the guest at entry.
    Inject: inject => inject_ns,
    /// Handle a TSC-deadline write: cancel and start the timer behind it.
    HandleTimerMsr: handle_timer_msr => handle_timer_msr_ns,
    /// Handle an ICR write (one IPI), besides the kick itself.
    HandleIcr: handle_icr => handle_icr_ns,
    /// Handle an EOI write (without posted interrupts).
    HandleEoi: handle_eoi => handle_eoi_ns,
    /// Handle a hypercall or a synchronous notification MSR.
    HandleHypercall: handle_hypercall => handle_hypercall_ns,
    /// Handle HLT up to the point where the thread sleeps.
    HandleHlt: handle_hlt => handle_hlt_ns,
    /// Handle the exit by which a guest becomes able to take an interrupt (without posted ones).
    HandleWindow: handle_window => handle_window_ns,
    /// Handle the expiry of the VMX preemption timer.
    HandleHvTimer: handle_hv_timer => handle_hv_timer_ns,
    /// Handle a TSC-deadline write that only sets the VMX preemption timer.
    SetHvTimer: set_hv_timer => set_hv_timer_ns,
    /// Load the VMX preemption timer at a VM entry.
    ArmHvTimer: arm_hv_timer => arm_hv_timer_ns,
    /// A write that KVM handles on its fast path: exit, handling and entry together.
    Fastpath: fastpath => fastpath_ns,
    /// How late a polling loop notices what it waits for.
    PollNotice: poll_notice => poll_notice_ns,
    /// Load a vCPU on the pCPU it was just switched to.
    VcpuLoad: vcpu_load => vcpu_load_ns,
    /// Come to a thread of the host where a vCPU was the last to run: KVM saves the vCPU's state (`kvm_arch_vcpu_put`),
    /// and restores the host's own MSRs before user mode (`kvm_on_user_return`). Profiles from before 26 November 2026
    /// have none.
    VcpuPut: vcpu_put => vcpu_put_ns = "{ ns = 0, source = \"assumed: this profile has none; in vcpu_load\" }",
    /// Guest interrupt handler for a timer or IPI (entry, handler, exit).
    GuestIrq: guest_irq => guest_irq_ns,
    /// Guest tick work on top of the interrupt.
    GuestTick: guest_tick => guest_tick_ns,
    /// Guest wakes a task.
    GuestWakeup: guest_wakeup => guest_wakeup_ns,
    /// Guest context switch.
    GuestSwitch: guest_switch => guest_switch_ns,
    /// What a task of a Linux guest pays of its own CPU time to go to sleep and come back, besides the exit for its
    /// timer and `guest_switch`. Profiles from before 24 November 2026 have none.
    GuestSleep: guest_sleep => guest_sleep_ns = "{ ns = 1500, source = \"assumed: this profile has none; as xeon-server\" }",
    /// The same of a task of the lab's guest: a simulation beside the lab takes this one.
    LabSleep: lab_sleep => lab_sleep_ns = "{ ns = 300, source = \"assumed: this profile has none; as xeon-server\" }",
    /// How long a waiter for a paravirtual spinlock spins before its vCPU halts: 32768 turns of a loop around PAUSE
    /// (`SPIN_THRESHOLD`), each of some 10 cycles on Intel's CPUs before Skylake and 140 since. A time, and no cost.
    /// Profiles from before 28 November 2026 have none.
    PvSpin: pv_spin => pv_spin_ns = "{ ns = 1529000, source = \"assumed: this profile has none; as xeon-server\" }",
    /// Distance of voluntary preemption points in kernel sections; a distance, so never 0.
    VoluntaryPoint: voluntary_point => voluntary_point_ns,
}

table! {
    /// Something that takes each CPU for a while, again and again, at random times.
    struct NoiseKeys {
        /// Name.
        name: Placed<Name>,
        /// What it is made of.
        by: Placed<NoiseBy>,
        /// Mean time from one to the next, on each CPU.
        period: Placed<Time>,
        /// How long it takes the CPU.
        takes: Placed<Quantiles>,
        /// The mean of that. Default: that of straight lines between the quantiles, which is too large where most of
        /// the times are short.
        mean: Option<Placed<Time>>,
        /// Where the numbers are from.
        source: Placed<SourceText>,
    }
}

/// Least mean time between two.
const LEAST_PERIOD_NS: Ns = 1_000;

fn noise(all: Vec<NoiseKeys>, about: &mut CostNotes, errors: &Collector) -> Vec<Noise> {
    let one = |keys: NoiseKeys| {
        let name = keys.name.value.0;
        if !about.add(&format!("noise.{name}"), keys.source.value.0, None) {
            errors.error(keys.name.span, format!("there are two noises {name}"));
        }
        let (period_ns, takes) = (keys.period.value.0, keys.takes.value);
        let mean_ns = keys.mean.map_or(takes.mean(), |mean| {
            if !takes.allow_mean(mean.value.0) {
                let message = "no distribution with these quantiles has this mean";
                errors.error(mean.span, message);
            }
            mean.value.0
        });
        if mean_ns >= period_ns.max(LEAST_PERIOD_NS) {
            let message = "this noise takes all of the CPU";
            errors.error_help(keys.period.span, message, "its mean has to be less than `period`");
        }
        let period_ns = period_ns.max(LEAST_PERIOD_NS);
        Noise { name, by: keys.by.value, period_ns, takes, mean_ns }
    };
    all.into_iter().map(one).collect()
}

table! {
    /// A machine profile: its CPUs, and what each mechanism costs on it.
    struct ProfileKeys {
        /// Name.
        name: Placed<Name>,
        /// One line for lists.
        title: Placed<String>,
        /// What machine this is and how its numbers came about.
        about: Placed<String> = "''",
        /// CPUs: threads a core, cores that share a last-level cache, such groups.
        topology: Placed<TopologyTable>,
        /// What the timers of its CPUs are. Without it some mechanisms cannot be simulated.
        cpu: Option<Placed<CpuKeys>>,
        /// Costs.
        // It must be there: a profile without it would blame every key at line 1.
        costs: Placed<CostsKeys>,
        /// Idle states, shallowest first.
        cstate: Vec<CStateKeys>,
        /// Interrupts and threads of the system that take its CPUs at random times.
        noise: Vec<NoiseKeys>,
    }
}

table! {
    /// What the timers of a machine's CPUs are.
    struct CpuKeys = "a table [cpu]" {
        /// Frequency of the time-stamp counter, in kHz.
        tsc_khz: Placed<Int<100_000, 10_000_000>>,
        /// Family, model and stepping: EAX of CPUID leaf 1, in hexadecimal ("306F2").
        signature: Placed<Signature>,
        /// The VMX preemption timer counts once in 2 to this power cycles of the TSC. Default: there is
        /// no such timer.
        preemption_timer_shift: Option<Placed<Int<0, 31>>>,
        /// Where the numbers are from.
        source: Placed<SourceText>,
    }
}

/// A CPUID signature.
#[derive(Clone, Copy, Debug)]
struct Signature(u32);

impl Text for Signature {
    const WHAT: &'static str = "hexadecimal digits, like \"306F2\"";
    const PATTERN: &'static str = "^[0-9A-Fa-f]{1,8}$";

    fn parse(text: &str) -> Result<Self, String> {
        let legal = (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = u32::from_str_radix(text, 16).ok().filter(|_| legal);
        value.map(Self).ok_or_else(|| format!("`{text}` is no signature"))
    }
}

impl ProfileKeys {
    fn resolve(self, errors: &Collector) -> Option<Profile> {
        let topology = topology(&self.topology, None, errors)?;
        let mut about = CostNotes::default();
        let voluntary = &self.costs.value.voluntary_point;
        if voluntary.value.ns == 0 {
            errors.error(voluntary.span, "voluntary_point is a distance: it cannot be 0");
        }
        if self.cstate.is_empty() {
            let help = "add [[cstate]] with name, exit, residency and source";
            errors.error_help(self.name.span, "a profile needs at least one idle state", help);
        }
        let mut cstates: Vec<CState> = Vec::new();
        for state in self.cstate {
            let name = state.name.value.0;
            let this = CState {
                name: name.clone(),
                exit_ns: state.exit.value.0,
                residency_ns: state.residency.value.0,
                monitor: state.monitor.is_some_and(|monitor| monitor.value),
            };
            if let Some(last) = cstates.last()
                && (this.exit_ns < last.exit_ns || this.residency_ns < last.residency_ns)
            {
                let message = format!("idle state {name} is shallower than {}", last.name);
                errors.error_help(state.name.span, message, "order them shallowest first");
            }
            let spread = state.spread.map(|spread| spread.value);
            if !about.add(&format!("cstate.{name}"), state.source.value.0, spread) {
                errors.error(state.name.span, format!("there are two idle states {name}"));
            }
            cstates.push(this);
        }
        let costs = self.costs.value.resolve(&mut about);
        let noise = noise(self.noise, &mut about, errors);
        let CostNotes { mut sources, spread } = about;
        Some(Profile {
            name: self.name.value.0,
            title: self.title.value,
            about: self.about.value,
            topology,
            cpu: self.cpu.map(|Placed { value: cpu, .. }| {
                sources.insert("cpu".to_owned(), cpu.source.value.0);
                let preemption_timer_shift =
                    cpu.preemption_timer_shift.map(|shift| shift.value.get32());
                let (tsc_khz, signature) = (cpu.tsc_khz.value.get32(), cpu.signature.value.0);
                Cpu { tsc_khz, signature, preemption_timer_shift }
            }),
            costs: Costs { cstates, spread, ..costs },
            noise,
            sources,
        })
    }
}
