//! From measures to the simulator's costs.
//!
//! Written as `result = formula`; every difference stops at 0. A cost's constant is the formula of the medians. Each
//! quantile of its distribution is the formula of that quantile of the measures, and at least the quantile before it.
//! So the means of costs that are charged together add up to the measured mean. `call` is `syscall`. Sums that cannot
//! be separated from outside are split as in the base profile, and their source says so.
//!
//! | cost | formula | why |
//! | --- | --- | --- |
//! | `tick`, `timer_irq`, `ipi_receive` | the gaps themselves | all that the interrupted thread loses |
//! | `timer_program` | `timer-program - call` | |
//! | `ipi_send + ipi_flight` | `ipi-travel - call/2` | the call is half over when the interrupt leaves |
//! | `device_irq` | `timer_irq + msi-call-running - call - ipi_send` | an interrupt of the host, and what irqfd does then: the call's work without its kick |
//! | `wakeup` | `wake-here - futex-wake-nobody` | |
//! | `context_switch` | `switch-pair/2 - call` | |
//! | `sleep` | `sleep-cycle-cpu-busy - context_switch - timer_program` | what a thread pays for a cycle of sleeping and waking beside another thread, less what is charged apart |
//! | `sleep_idle` | `sleep-cycle-cpu - sleep-cycle-cpu-busy` | what it pays more where its CPU idles meanwhile |
//! | `pv_spin` | `pause-loop` | the loop itself; its median |
//! | `cache_line` | `cache-line` | the median |
//! | `llc_crossing` | `cache-line-far - cache_line` | the medians; an IPI's way is taken to be as much longer |
//! | `setattr` | `setattr-own - call` | |
//! | `exit + entry` | the smaller of `exit-interrupt - ipi_receive` and `exit-cpuid - guest-gate` (`guest-gate` where ring 0 is emulated) | the cheapest way out and back; what an exit takes more is its handling. An interrupt has none in the simulator: where it takes more than a trap, the simulator charges too little |
//! | `handle_*` | the exit of its kind less `exit + entry`; less `guest-gate` too, unless ring 0 is emulated | there the way to ring 0 is itself an exit |
//! | `inject` | `msi-running` less its call, flight, `ipi_receive`, `exit`, `entry` | what is left of a delivery |
//! | `guest_irq` | `self-interrupt - exit-icr - inject`, at most `guest-wake-switch` | the way back to what was interrupted can be longer than to a task that slept |
//! | `guest_wakeup + guest_switch` | `guest-wake-switch - guest_irq` | handler to task; on one CPU from `self-wake` |
//! | `lab_sleep` | `guest-sleep-switch - guest_switch` | from a woken task's first instruction until another one runs |
//! | `guest_sleep` | `sleep + sleep_idle` | a Linux guest runs the same code of the same kernel; there is none to measure in |
//! | `vcpu_load` | `msi-halted - wake-polling - entry - inject` | what waking a vCPU takes more than waking a thread |
//! | `vcpu_put` | `sleep-late-guest - sleep-late-busy - exit` | what switching from a running vCPU takes more than from a thread |
//! | `handle_hlt` | `halt-cycle-cpu` less all else the cycle is charged | so that a simulated halt costs the CPU what a real one does |
//! | first idle state | `wake-idle` less all else it is charged | |
//!
//! A software-virtualised KVM emulates ring 0: there the guest's gates and what they lead to are in
//! the same numbers, and `guest-gate` is what both share.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use vcoop_model::plan::Ns;
use vcoop_model::profile::{CState, Costs, Cpu, Profile};
use vcoop_model::quantiles::{LEVELS, Quantiles};

use super::{Measure, MeasuredNoise, settle::Distribution};
use crate::facts::{HostFacts, IdleState};

/// Where a cost that cannot be measured comes from.
pub const BASE_PROFILE: &str = "xeon-server";

/// Largest cost that a profile file accepts.
const MAX_NS: Ns = 100_000_000;

/// How a cost is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// One measure, less its own overhead.
    Measured,
    /// What is left of a measure after subtracting others.
    Derived,
    /// Not measurable here: the base profile's.
    Assumed,
}

/// A cost of the simulator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Its key in profile files.
    pub key: String,
    /// Its constant, in nanoseconds.
    pub ns: Ns,
    /// Its distribution, if measured, in nanoseconds.
    #[serde(rename = "quantiles_ns", skip_serializing_if = "Option::is_none")]
    pub spread: Option<Quantiles>,
    /// How it is known.
    pub origin: Origin,
    /// Its source, as in the profile file.
    pub source: String,
}

/// The input of the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleInput<'a> {
    pub(crate) measures: &'a [Measure],
    pub(crate) facts: &'a HostFacts,
    /// Ring 0 of guests is emulated.
    pub(crate) software: bool,
    /// `CPU, Linux RELEASE, DATE`.
    pub(crate) place: &'a str,
    pub(crate) base: &'a Profile,
    /// The CPU's timers, and their source.
    pub(crate) cpu: &'a (Cpu, String),
    /// Activities that took CPUs unasked.
    pub(crate) noise: &'a [MeasuredNoise],
    /// Constants only.
    pub(crate) constant: bool,
}

/// What the way out of the first idle state goes by, until its name is known.
const IDLE_EXIT: &str = "cstate";

/// Which of the quantiles is the median.
const MEDIAN: usize = 2;

/// One value on its way to a cost.
#[derive(Clone, Debug)]
struct Value {
    ns: Ns,
    origin: Origin,
    formula: Cow<'static, str>,
    /// The measure whose distribution stands for it.
    of: &'static str,
}

/// What is known, at one quantile of all measures.
#[derive(Clone, Copy, Debug)]
struct AtQuantile<'a> {
    known: &'a RuleInput<'a>,
    level: usize,
    /// What became of the medians, at another quantile.
    medians: Option<&'a Values>,
}

impl RuleInput<'_> {
    fn seen(&self, name: &str) -> Option<Distribution> {
        self.measures.iter().find(|m| m.name == name).map(|m| m.distribution)
    }

    fn base(&self, key: &str) -> Ns {
        self.base.costs.entries().into_iter().find(|(k, _)| *k == key).map_or(0, |(_, ns)| ns)
    }

    /// The values of all costs, and how each is spread.
    fn values(&self) -> (Values, BTreeMap<&'static str, Quantiles>) {
        let medians = AtQuantile { known: self, level: MEDIAN, medians: None }.values();
        let at = |level| AtQuantile { known: self, level, medians: Some(&medians) }.values();
        let levels: [Values; LEVELS] = std::array::from_fn(at);
        let mut spread = BTreeMap::new();
        for (key, value) in medians.0.iter().filter(|_| !self.constant) {
            let ns = levels.each_ref().map(|values| values.get(key).unwrap_or(0).min(MAX_NS));
            // The median stays equal to the constant.
            let below = ns[..MEDIAN].iter().map(|ns| (*ns).min(value.ns));
            let ns: Vec<Ns> = below.chain(ns[MEDIAN..].iter().copied()).collect();
            let quantiles = Quantiles::ascending(ns.try_into().unwrap_or_default());
            if quantiles.values() != [value.ns; LEVELS] {
                spread.insert(*key, quantiles);
            }
        }
        (medians, spread)
    }
}

impl AtQuantile<'_> {
    /// What was measured, at this quantile.
    fn m(&self, name: &str) -> Option<Ns> {
        self.known.seen(name).map(|d| d.quantiles()[self.level])
    }

    fn base(&self, key: &str) -> Ns {
        self.known.base(key)
    }

    /// What these costs come to: as worked out, else as in the base profile.
    fn sum(&self, v: &Values, keys: &[&str]) -> Ns {
        keys.iter().map(|key| v.get(key).unwrap_or_else(|| self.base(key))).sum()
    }

    /// Splits a sum: in the median as the base profile does; what it is longer at times is the first's.
    fn split(&self, sum: Ns, first: &str, second: &str) -> (Ns, Ns) {
        let (a, b) = (self.base(first), self.base(second));
        let typical = self.medians.and_then(|medians| medians.get(second));
        let second = typical.unwrap_or(sum - sum * a / (a + b).max(1)).min(sum);
        (sum - second, second)
    }

    /// Every cost that can be worked out here, in an order in which each finds what it builds on.
    fn values(&self) -> Values {
        let mut v = Values(Vec::new());
        let call = self.m("syscall").unwrap_or(0);
        let own = |name: &'static str, less: Ns| self.m(name).map(|ns| ns.saturating_sub(less));
        v.measured("tick", own("tick", 0), "tick", "tick");
        v.measured("timer_irq", own("timer-interrupt", 0), "timer-interrupt", "timer-interrupt");
        let program = own("timer-program", call);
        v.measured("timer_program", program, "timer-program - syscall", "timer-program");
        // Constants: in longer measurements something else took a CPU.
        let median = |name| self.known.seen(name).map(|d| d.median_ns);
        v.measured("pv_spin", median("pause-loop"), "pause-loop", "pause-loop");
        v.measured("cache_line", median("cache-line"), "cache-line", "cache-line");
        if let Some(far) = median("cache-line-far") {
            let crossing = far.saturating_sub(self.sum(&v, &["cache_line"]));
            let formula = "cache-line-far - cache_line";
            v.derived("llc_crossing", crossing, formula, "cache-line-far");
        }
        v.measured("ipi_receive", own("ipi-receive", 0), "ipi-receive", "ipi-receive");
        let wake = own("wake-here", self.m("futex-wake-nobody").unwrap_or(call));
        v.measured("wakeup", wake, "wake-here - futex-wake-nobody", "wake-here");
        let switch = self.m("switch-pair").map(|ns| (ns / 2).saturating_sub(call));
        v.measured("context_switch", switch, "switch-pair / 2 - syscall", "switch-pair");
        if let (Some(cycle), Some(switch)) = (self.m("sleep-cycle-cpu"), switch) {
            let apart = switch + program.unwrap_or_else(|| self.base("timer_program"));
            let alone = cycle.saturating_sub(apart);
            if let Some(busy) = self.m("sleep-cycle-cpu-busy") {
                let formula = "sleep-cycle-cpu-busy - context_switch - timer_program";
                v.derived("sleep", busy.saturating_sub(apart), formula, "sleep-cycle-cpu-busy");
                let formula = "sleep-cycle-cpu - sleep-cycle-cpu-busy";
                v.derived("sleep_idle", cycle.saturating_sub(busy), formula, "sleep-cycle-cpu");
            } else {
                let formula = "sleep-cycle-cpu - context_switch - timer_program";
                v.derived("sleep", alone, formula, "sleep-cycle-cpu");
            }
            let formula = "sleep + sleep_idle: a Linux guest runs the same code, and none of it \
                           exits; not measured in one";
            v.derived("guest_sleep", alone, formula, "sleep-cycle-cpu");
        }
        v.measured("setattr", own("setattr-own", call), "setattr-own - syscall", "setattr-own");
        if let Some(travel) = own("ipi-travel", call / 2) {
            let (send, flight) = self.split(travel, "ipi_send", "ipi_flight");
            let formula = "ipi-travel - syscall / 2, split into send and flight as in xeon-server";
            v.derived("ipi_send", send, formula, "ipi-travel");
            v.derived("ipi_flight", flight, formula, "ipi-travel");
        }
        if let (Some(msi), Some(irq)) = (own("msi-call-running", call), self.m("timer-interrupt")) {
            let ns = irq + msi.saturating_sub(v.get("ipi_send").unwrap_or(0));
            let formula = "timer_irq + msi-call-running - syscall - ipi_send";
            v.derived("device_irq", ns, formula, "msi-call-running");
        }
        self.exits(&mut v);
        self.deliveries(&mut v);
        self.halts(&mut v);
        v
    }

    /// Out of the guest and back.
    fn exits(&self, v: &mut Values) {
        let Some(gate) = self.m("guest-gate") else { return };
        let trap = if self.known.software {
            Some((gate, "guest-gate"))
        } else {
            self.m("exit-cpuid").map(|ns| (ns.saturating_sub(gate), "exit-cpuid"))
        };
        let received = v.get("ipi_receive").unwrap_or(0);
        let gap =
            self.m("exit-interrupt").map(|ns| (ns.saturating_sub(received), "exit-interrupt"));
        // Which way is the cheapest, the medians say.
        let typical = self.medians.and_then(|medians| medians.find("exit")).map(|exit| exit.of);
        let ways = [trap, gap].into_iter().flatten();
        let Some((bare, of)) = ways.filter(|way| typical.is_none_or(|of| of == way.1)).min() else {
            return;
        };
        let formula = match of {
            "exit-interrupt" => "exit-interrupt - ipi_receive, split as in xeon-server",
            "guest-gate" => "guest-gate (ring 0 is emulated), split as in xeon-server",
            _ => "exit-cpuid - guest-gate, split as in xeon-server",
        };
        let (exit, entry) = self.split(bare, "exit", "entry");
        v.derived("exit", exit, formula, of);
        v.derived("entry", entry, formula, of);
        if let (Some(vcpu), Some(thread)) = (self.m("sleep-late-guest"), self.m("sleep-late-busy"))
        {
            let formula = "sleep-late-guest - sleep-late-busy - exit: what switching from a running \
                           vCPU takes more than from a thread";
            let ns = vcpu.saturating_sub(thread + exit);
            v.derived("vcpu_put", ns, formula, "sleep-late-guest");
        }
        // Where ring 0 is emulated, the way there is part of what an exit costs.
        let software = self.known.software;
        let round = if software { bare } else { gate + bare };
        let kinds: [(&'static str, &'static str, &'static str); 4] = [
            ("handle_timer_msr", "exit-timer-msr", "exit-timer-msr"),
            ("handle_icr", "exit-icr", "exit-icr"),
            ("handle_eoi", "exit-eoi", "exit-eoi, with no interrupt in service,"),
            (
                "handle_hypercall",
                "exit-user-msr",
                "exit-user-msr (vcoop's notification, which user space handles)",
            ),
        ];
        for (key, name, what) in kinds {
            let ns = self.m(name).map(|ns| ns.saturating_sub(round));
            let less = if software { "exit and entry" } else { "guest-gate, exit and entry" };
            v.measured(key, ns, format!("{what} less {less}"), name);
        }
    }

    /// Into a running guest, and what the guest does then.
    fn deliveries(&self, v: &mut Values) {
        let (Some(own), Some(icr)) = (self.m("self-interrupt"), self.m("exit-icr")) else { return };
        let handled = own.saturating_sub(icr);
        if let (Some(running), Some(called)) = (self.m("msi-running"), self.m("msi-call-running")) {
            let way = called.saturating_sub(self.m("syscall").unwrap_or(0) / 2)
                + self.sum(v, &["ipi_flight", "ipi_receive", "exit", "entry"]);
            let ns = running.saturating_sub(way).min(handled);
            let formula = "msi-running less its call, ipi_flight, ipi_receive, exit and entry; at \
                           most self-interrupt - exit-icr";
            v.derived("inject", ns, formula, "msi-running");
        }
        let inject = self.sum(v, &["inject"]);
        let irq = handled.saturating_sub(inject);
        let own_wake = || Some(self.m("self-wake")?.saturating_sub(icr).saturating_sub(inject));
        let woken = self.m("guest-wake-switch").or_else(own_wake);
        // The way back to what was interrupted is longer than the way to a task that slept.
        let irq_ns = woken.map_or(irq, |w| w.min(irq));
        let formula = "self-interrupt less exit-icr and inject, at most guest-wake-switch; with the \
                       end of the interrupt";
        v.derived("guest_irq", irq_ns, formula, "self-interrupt");
        if let Some(woken) = woken {
            let sum = woken.saturating_sub(irq_ns);
            let (wakeup, switch) = self.split(sum, "guest_wakeup", "guest_switch");
            let formula = "guest-wake-switch (or self-wake less exit-icr and inject) less guest_irq, \
                           split as in xeon-server; the lab's guest, not Linux";
            v.derived("guest_wakeup", wakeup, formula, "guest-wake-switch");
            v.derived("guest_switch", switch, formula, "guest-wake-switch");
            if let Some(slept) = self.m("guest-sleep-switch") {
                let formula = "guest-sleep-switch less guest_switch; the lab's guest, not Linux";
                let ns = slept.saturating_sub(switch);
                v.derived("lab_sleep", ns, formula, "guest-sleep-switch");
            }
        }
    }

    /// Into sleep and out of it.
    fn halts(&self, v: &mut Values) {
        let wake = self.m("wake-polling").or_else(|| self.m("wake-idle"));
        if let (Some(halted), Some(wake)) = (self.m("msi-halted"), wake) {
            let ns = halted.saturating_sub(wake + self.sum(v, &["entry", "inject"]));
            let formula = "msi-halted - wake-polling - entry - inject: what waking a vCPU takes \
                           more than waking a thread";
            v.derived("vcpu_load", ns, formula, "msi-halted");
        }
        if let Some(cycle) = self.m("halt-cycle-cpu") {
            let guest = ["guest_irq", "guest_wakeup", "guest_switch", "lab_sleep"];
            let rest = self.sum(v, &["context_switch", "vcpu_load", "entry", "inject", "exit"])
                + self.sum(v, &guest);
            let formula = "halt-cycle-cpu less context_switch, vcpu_load, entry, inject, \
                           guest_irq, guest_wakeup, guest_switch, lab_sleep and exit";
            v.derived("handle_hlt", cycle.saturating_sub(rest), formula, "halt-cycle-cpu");
        }
        if let Some(wake) = self.m("wake-idle") {
            let first = self.known.facts.idle.halting().next();
            let (less, formula): (&[_], _) = if first.is_some_and(IdleState::is_mwait) {
                let formula = "wake-idle less syscall, wakeup, poll_notice and context_switch";
                (&["wakeup", "poll_notice", "context_switch"], formula)
            } else {
                let formula = "wake-idle less syscall, wakeup, ipi_send, ipi_flight, ipi_receive \
                               and context_switch";
                (&["wakeup", "ipi_send", "ipi_flight", "ipi_receive", "context_switch"], formula)
            };
            let ns = wake.saturating_sub(self.sum(v, less) + self.m("syscall").unwrap_or(0));
            v.derived(IDLE_EXIT, ns, formula, "wake-idle");
        }
    }
}

impl RuleInput<'_> {
    /// What the source says of a measure.
    fn evidence(&self, value: &Value) -> String {
        let plain = value.of == value.formula.as_ref();
        let evidence = self.seen(value.of).map_or_else(String::new, |d| {
            let of = if plain { String::new() } else { format!("; {}", value.of) };
            let (n, median, p10, p90) = (d.n, d.median_ns, d.p10_ns, d.p90_ns);
            format!(
                "{of}: n={n}, median {median} ns, p10..p90 {p10}..{p90} ns, mean {} ns",
                d.mean_ns
            )
        });
        let word = if value.origin == Origin::Measured {
            "measured by vcoop calibrate"
        } else {
            "derived: from measures of vcoop calibrate"
        };
        format!("{word} on {}: {}{evidence}", self.place, value.formula)
    }

    /// All costs, and the idle states.
    pub(crate) fn costs(&self) -> (Vec<Cost>, Vec<CState>) {
        let (values, spread) = self.values();
        let mut costs: Vec<Cost> = Vec::new();
        for (key, base) in self.base.costs.entries() {
            let of = |value: &Value| Cost {
                key: key.to_owned(),
                ns: value.ns.min(MAX_NS),
                spread: spread.get(key).copied(),
                origin: value.origin,
                source: self.evidence(value),
            };
            costs.push(values.find(key).map_or_else(|| self.assumed(key, base), of));
        }
        let (states, sources) = self.idle(&values, &spread);
        costs.extend(sources);
        (costs, states)
    }

    fn assumed(&self, key: &str, ns: Ns) -> Cost {
        let source = format!(
            "assumed: as {BASE_PROFILE}; vcoop calibrate could not measure it on {}",
            self.place
        );
        Cost { key: key.to_owned(), ns, spread: None, origin: Origin::Assumed, source }
    }

    /// The driver's idle states that halt, the first with its measured way out.
    fn idle(
        &self,
        values: &Values,
        spread: &BTreeMap<&str, Quantiles>,
    ) -> (Vec<CState>, Vec<Cost>) {
        let idle = &self.facts.idle;
        let mut states: Vec<CState> = Vec::new();
        for state in idle.halting() {
            let name: String = state
                .name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
                .take(48)
                .collect();
            if name.is_empty() || states.iter().any(|s| s.name == name) {
                continue;
            }
            // Firmware may report any order; the states of a profile only deepen.
            let last = states.last().map_or((0, 0), |s| (s.exit_ns, s.residency_ns));
            states.push(CState {
                name,
                exit_ns: state.exit_ns.max(last.0).min(MAX_NS),
                residency_ns: state.residency_ns.max(last.1).min(MAX_NS),
                monitor: state.is_mwait(),
            });
        }
        let driver = idle.driver.as_deref().unwrap_or("none");
        let stated = format!("published: by this host's idle driver ({driver}), the worst case");
        if states.is_empty() {
            let name = "HLT".to_owned();
            states.push(CState { name, exit_ns: 0, residency_ns: 0, monitor: false });
        }
        let mut sources: Vec<(String, Origin)> =
            states.iter().map(|_| (stated.clone(), Origin::Assumed)).collect();
        if let Some(value) = values.find(IDLE_EXIT) {
            sources[0] = (self.evidence(value), Origin::Derived);
            states[0].exit_ns = value.ns.min(MAX_NS);
            let mut last = 0;
            for state in &mut states {
                last = state.exit_ns.max(last);
                state.exit_ns = last;
            }
        } else if idle.states.is_empty() {
            sources[0] = (
                "assumed: a plain HLT without a way out that could be measured".to_owned(),
                Origin::Assumed,
            );
        }
        let costs = states.iter().zip(sources).map(|(state, (source, origin))| Cost {
            spread: spread.get(IDLE_EXIT).copied().filter(|_| origin == Origin::Derived),
            key: format!("cstate.{}", state.name),
            ns: state.exit_ns,
            origin,
            source,
        });
        let costs = costs.collect();
        (states, costs)
    }

    /// The profile.
    ///
    /// # Panics
    ///
    /// Never: every key of the base profile's costs is among the costs.
    pub(crate) fn profile(&self) -> (Vec<Cost>, Profile) {
        let (costs, cstates) = self.costs();
        let ns = |key: &str| costs.iter().find(|c| c.key == key).map_or(0, |c| c.ns);
        let mut profile = self.base.clone();
        let varying = costs.iter().filter_map(|c| Some((c.key.clone(), c.spread?)));
        let spread = varying.collect();
        profile.costs = Costs { cstates, spread, ..self.base.costs.with(ns) };
        profile.cpu = Some(self.cpu.0);
        // A distance, which cannot be 0.
        profile.costs.voluntary_point_ns = profile.costs.voluntary_point_ns.max(1);
        "this-host".clone_into(&mut profile.name);
        let cpu = self.facts.cpu_model.as_deref().unwrap_or("an unknown CPU");
        profile.title =
            format!("{cpu}, {} CPUs, Linux {}", self.facts.cpus.len(), self.facts.release);
        profile.about = format!(
            "Written by vcoop calibrate on {}. What could not be measured is as in {BASE_PROFILE}, \
             and says so.",
            self.place
        );
        let topology = self.facts.topology.value;
        profile.topology = if topology.cpus() <= 1024 && topology.threads_per_core <= 8 {
            topology
        } else {
            vcoop_sched::config::Topology::flat(topology.cpus().min(1024))
        };
        profile.sources = costs.iter().map(|c| (c.key.clone(), c.source.clone())).collect();
        profile.sources.insert("cpu".to_owned(), self.cpu.1.clone());
        profile.noise.clear();
        for seen in self.noise.iter().filter(|_| !self.constant) {
            let noise = seen.noise();
            profile.sources.insert(format!("noise.{}", noise.name), seen.source(self.place));
            profile.noise.push(noise);
        }
        (costs, profile)
    }
}

/// Values by key.
#[derive(Debug)]
struct Values(Vec<(&'static str, Value)>);

impl Values {
    fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    fn get(&self, key: &str) -> Option<Ns> {
        self.find(key).map(|v| v.ns)
    }

    fn measured(
        &mut self,
        key: &'static str,
        ns: Option<Ns>,
        formula: impl Into<Cow<'static, str>>,
        of: &'static str,
    ) {
        if let Some(ns) = ns {
            let (origin, formula) = (Origin::Measured, formula.into());
            self.0.push((key, Value { ns, origin, formula, of }));
        }
    }

    fn derived(&mut self, key: &'static str, ns: Ns, formula: &'static str, of: &'static str) {
        self.0.push((key, Value { ns, origin: Origin::Derived, formula: formula.into(), of }));
    }
}

#[cfg(test)]
mod tests;
