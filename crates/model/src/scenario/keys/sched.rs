//! `[host.sched]` and `[vm.sched]`: every tunable of a scheduling level.

use vcoop_sched::config::{
    Balance, Bandwidth, CfsRelease, CfsTunables, DlConfig, EevdfRelease, EevdfTunables, Fair,
    LevelConfig, RtGuard, Topology,
};

use crate::diagnostic::{Collector, Span};
use crate::plan::Ns;
use crate::toml_read::Placed;
use crate::toml_read::table::table;
use crate::toml_read::units::{Period, Span1, Time, show};
use crate::toml_read::value::{Int, choice};

choice! {
    /// Whose scheduler.
    pub(crate) enum ClassKind {
        /// Linux's classes.
        Linux = "linux",
        /// Xen's credit1.
        Credit1 = "credit1",
        /// A shared processor pool as PowerVM has it.
        PowerVm = "powervm",
    }
}

impl ClassKind {
    /// Whose scheduler it is, and what a host that has it is said to have.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Linux => ("Linux's scheduler", "Linux's"),
            Self::Credit1 => ("Xen's scheduler", "credit1"),
            Self::PowerVm => ("a shared processor pool", "PowerVM's"),
        }
    }

    /// Refuses a key that means something under this scheduler only, if it is given on a host that has another.
    pub(crate) fn only(
        self,
        has: Self,
        key: &str,
        given: impl Into<Option<Span>>,
        errors: &Collector,
    ) {
        let Some(span) = given.into().filter(|_| has != self) else { return };
        let message =
            format!("`{key}` needs {}, and this host has {}", self.names().0, has.names().1);
        let help = format!("set class = \"{}\" in [host.sched], or take `{key}` out", self.name());
        errors.error_help(span, message, help);
    }

    /// Refuses the tunables of this scheduler on a host that has another.
    pub(crate) fn not_tuned(self, has: Self, given: &[(String, Span)], errors: &Collector) {
        let owner = if self == Self::Linux { "Linux" } else { self.name() };
        for (key, span) in given.iter().filter(|(key, _)| key != "class") {
            let message =
                format!("`{key}` is a tunable of {owner}, but class = \"{}\"", has.name());
            let place = if self == Self::Linux { "" } else { " in [host.sched]" };
            let help = format!("set class = \"{}\"{place}, or take `{key}` out", self.name());
            errors.error_help(*span, message, help);
        }
    }
}

choice! {
    /// Which fair class.
    pub(crate) enum FairKind {
        /// The completely fair scheduler, as of Linux 5.16 to 6.5.
        Cfs = "cfs",
        /// CFS as of Linux until 5.15.
        Cfs515 = "cfs-5.15",
        /// Earliest eligible virtual deadline first, as of Linux 6.18 with its stable updates of 2026, to 7.2.
        Eevdf = "eevdf",
        /// EEVDF as of Linux 7.3.
        Eevdf73 = "eevdf-7.3",
        /// EEVDF as of Linux 6.17 to the first releases of 6.18.
        Eevdf6180 = "eevdf-6.18.0",
        /// EEVDF as of Linux 6.15 and 6.16.
        Eevdf615 = "eevdf-6.15",
        /// EEVDF as of Linux 6.12 to 6.14.
        Eevdf612 = "eevdf-6.12",
        /// EEVDF as of Linux 6.6 to 6.11, without slices.
        Eevdf66 = "eevdf-6.6",
    }
}

/// Rules of a fair class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    Cfs(CfsRelease),
    Eevdf(EevdfRelease),
}

impl FairKind {
    fn release(self) -> Release {
        match self {
            Self::Cfs => Release::Cfs(CfsRelease::V6_5),
            Self::Cfs515 => Release::Cfs(CfsRelease::V5_15),
            Self::Eevdf => Release::Eevdf(EevdfRelease::V6_18),
            Self::Eevdf73 => Release::Eevdf(EevdfRelease::V7_3),
            Self::Eevdf6180 => Release::Eevdf(EevdfRelease::V6_18_0),
            Self::Eevdf615 => Release::Eevdf(EevdfRelease::V6_15),
            Self::Eevdf612 => Release::Eevdf(EevdfRelease::V6_12),
            Self::Eevdf66 => Release::Eevdf(EevdfRelease::V6_6),
        }
    }

    /// Whether an entity can have a slice of its own.
    pub(crate) fn has_slices(self) -> bool {
        matches!(self.release(), Release::Eevdf(release) if release.has_slices())
    }
}

/// What a scenario calls a fair class.
pub fn fair_name(fair: &Fair) -> &'static str {
    let release = match fair {
        Fair::Cfs(t) => Release::Cfs(t.release),
        Fair::Eevdf(t) => Release::Eevdf(t.release),
    };
    FairKind::ALL.into_iter().find(|kind| kind.release() == release).map_or("eevdf", FairKind::name)
}

choice! {
    /// What keeps real-time threads from starving the rest.
    pub(crate) enum GuardKind {
        /// Nothing.
        Off = "off",
        /// RT throttling (before Linux 6.12).
        Throttle = "throttle",
        /// The fair server (Linux 6.12 and later).
        FairServer = "fair-server",
        /// Both (Linux 6.12 and later with CONFIG_RT_GROUP_SCHED).
        Both = "both",
    }
}

table! {
    /// A scheduler and its tunables. Times not given are the kernel's own for this number of CPUs
    /// (`sched_tunable_scaling = LOG`: times 1, 2, 3, 4 at 1, 2, 4, 8 CPUs).
    pub(crate) struct SchedKeys {
        /// The scheduler: Linux's, credit1 or PowerVM's; guests have Linux's. All other keys of this table are about
        /// Linux's: the others have the tables `[host.credit1]` and `[host.powervm]`.
        class: Placed<ClassKind> = "linux",
        /// Fair class.
        fair: Placed<FairKind> = "eevdf",
        /// CFS: period in which every runnable entity should run once. Kernel: 6 ms, scaled.
        sched_latency: Option<Placed<Span1>>,
        /// CFS: no slice is shorter. Kernel: 0.75 ms, scaled.
        min_granularity: Option<Placed<Span1>>,
        /// CFS: lead in virtual time that a waking entity needs to preempt. Kernel: 1 ms, scaled.
        wakeup_granularity: Option<Placed<Time>>,
        /// CFS: place a sleeper half a latency behind rather than a whole one. Kernel: true.
        gentle_sleepers: Option<Placed<bool>>,
        /// EEVDF: request size of an entity without a slice of its own. Kernel: 0.7 ms, 0.75 ms until 6.14, scaled.
        base_slice: Option<Placed<Span1>>,
        /// EEVDF: the running entity keeps the CPU until its slice is used or it is not eligible.
        /// Kernel: true.
        run_to_parity: Option<Placed<bool>>,
        /// EEVDF: a waking entity with a shorter slice ends the protection of `run_to_parity`. Kernel: true since 6.12.
        preempt_short: Option<Placed<bool>>,
        /// EEVDF: keep lag across sleep. Kernel: true.
        place_lag: Option<Placed<bool>>,
        /// EEVDF: keep a sleeper with negative lag queued until the lag is gone. Kernel: true since 6.12.
        delay_dequeue: Option<Placed<bool>>,
        /// EEVDF: a thread that yields (`sched_yield`, and a vCPU that yields to another one) gives up the rest of its
        /// request, if it is eligible. False: only its deadline moves, further with each yield. Kernel: true with
        /// eevdf and eevdf-7.3, and in stable updates from 6.6.120, 6.12.63, 6.17.13 and 6.18.2 on; false with the other releases.
        yield_forfeits: Option<Placed<bool>>,
        /// EEVDF: if others wait, a timer ends the running entity's request when it is used up (HRTICK). False: the
        /// next tick does. Kernel: true with eevdf-7.3; on x86 since 7.1.
        hrtick: Option<Placed<bool>>,
        /// EEVDF: a thread that yields to another one of its CPU (`kvm_vcpu_on_spin`, `pv_sched_yield`) gets a penalty
        /// in virtual time, once in 6 ms on each CPU, as posted in December 2025 ("vCPU debooster"). Kernel: none has
        /// it.
        yield_penalty: Option<Placed<bool>>,
        /// Slice of SCHED_RR.
        rr_slice: Placed<Span1> = "100ms",
        /// Starvation guard. Default: what kernels with this fair class have, `throttle` with cfs
        /// and eevdf-6.6, else `fair-server`.
        rt_guard: Option<Placed<GuardKind>>,
        /// RT time allowed in a period (default with throttle and both: 95 % of it), or fair time granted in one
        /// (with fair-server: 5 %). With `both` the fair server grants what is left of the period.
        rt_runtime: Option<Placed<Span1>>,
        /// The period of `rt_runtime`. Default: 1s.
        rt_period: Option<Placed<Period>>,
        /// Admission control of SCHED_DEADLINE: reservations may take 95 % of the CPUs, less what fair
        /// servers have, and their threads may not be confined to some CPUs. False is Linux's
        /// `sched_rt_runtime_us = -1`.
        dl_admission: Placed<bool> = "true",
        /// A timer throttles a deadline thread when its runtime is used up, as with the kernel's feature HRTICK_DL.
        /// False: the next tick does. Kernel: true with eevdf-7.3; on x86 since 7.1.
        dl_hrtick: Option<Placed<bool>>,
        /// Balance load on the tick.
        balance_periodic: Placed<bool> = "true",
        /// Pull when a CPU is about to go idle.
        balance_newidle: Placed<bool> = "true",
        /// An entity that ran within this time is cache-hot, and balancing does not pull it at first.
        migration_cost: Placed<Time> = "500us",
        /// Busiest must exceed local by this many percent, 117 meaning 17 % more.
        imbalance_pct: Placed<Int<100, 1000>> = "117",
        /// A busy CPU balances this many times less often than an idle one.
        busy_factor: Placed<Int<1, 1024>> = "16",
    }
}

/// What a level needs besides its `sched` table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelShape {
    pub(crate) topology: Topology,
    pub(crate) tick_ns: Ns,
}

impl SchedKeys {
    /// The level's configuration, without groups.
    pub(crate) fn level(&self, shape: LevelShape, errors: &Collector) -> LevelConfig {
        let hrtick = or(&self.dl_hrtick, matches!(self.fair.value, FairKind::Eevdf73));
        LevelConfig {
            topology: shape.topology,
            tick_ns: shape.tick_ns,
            fair: self.fair(shape.topology.cpus(), errors),
            rr_slice_ns: self.rr_slice.value.0,
            rt_guard: self.guard(errors),
            dl: DlConfig { admission: self.dl_admission.value, hrtick },
            balance: Balance {
                periodic: self.balance_periodic.value,
                newidle: self.balance_newidle.value,
                migration_cost_ns: self.migration_cost.value.0,
                imbalance_pct: self.imbalance_pct.value.get32(),
                busy_factor: self.busy_factor.value.get32(),
            },
            groups: Vec::new(),
        }
    }

    fn fair(&self, cpus: u32, errors: &Collector) -> Fair {
        let cfs_only = [
            ("sched_latency", self.sched_latency.as_ref().map(|k| k.span)),
            ("min_granularity", self.min_granularity.as_ref().map(|k| k.span)),
            ("wakeup_granularity", self.wakeup_granularity.as_ref().map(|k| k.span)),
            ("gentle_sleepers", self.gentle_sleepers.as_ref().map(|k| k.span)),
        ];
        let eevdf_only = [
            ("base_slice", self.base_slice.as_ref().map(|k| k.span)),
            ("run_to_parity", self.run_to_parity.as_ref().map(|k| k.span)),
            ("preempt_short", self.preempt_short.as_ref().map(|k| k.span)),
            ("place_lag", self.place_lag.as_ref().map(|k| k.span)),
            ("delay_dequeue", self.delay_dequeue.as_ref().map(|k| k.span)),
            ("yield_forfeits", self.yield_forfeits.as_ref().map(|k| k.span)),
            ("hrtick", self.hrtick.as_ref().map(|k| k.span)),
            ("yield_penalty", self.yield_penalty.as_ref().map(|k| k.span)),
        ];
        match self.fair.value.release() {
            Release::Cfs(release) => {
                refuse_foreign(&eevdf_only, "eevdf", "cfs", errors);
                let kernel = CfsTunables::of(release, cpus);
                let ns = |key: &Option<Placed<Span1>>, default| {
                    key.as_ref().map_or(default, |k| k.value.0)
                };
                let granularity = self.wakeup_granularity.as_ref().map(|k| k.value.0);
                Fair::Cfs(CfsTunables {
                    release,
                    sched_latency_ns: ns(&self.sched_latency, kernel.sched_latency_ns),
                    min_granularity_ns: ns(&self.min_granularity, kernel.min_granularity_ns),
                    wakeup_granularity_ns: granularity.unwrap_or(kernel.wakeup_granularity_ns),
                    gentle_sleepers: or(&self.gentle_sleepers, kernel.gentle_sleepers),
                })
            }
            Release::Eevdf(release) => {
                refuse_foreign(&cfs_only, "cfs", "eevdf", errors);
                let kernel = EevdfTunables::of(release, cpus);
                let slice = self.base_slice.as_ref().map(|k| k.value.0);
                Fair::Eevdf(EevdfTunables {
                    release,
                    base_slice_ns: slice.unwrap_or(kernel.base_slice_ns),
                    run_to_parity: or(&self.run_to_parity, kernel.run_to_parity),
                    preempt_short: or(&self.preempt_short, kernel.preempt_short),
                    place_lag: or(&self.place_lag, kernel.place_lag),
                    delay_dequeue: or(&self.delay_dequeue, kernel.delay_dequeue),
                    yield_forfeits: or(&self.yield_forfeits, kernel.yield_forfeits),
                    hrtick: or(&self.hrtick, kernel.hrtick),
                    yield_penalty: or(&self.yield_penalty, kernel.yield_penalty),
                })
            }
        }
    }

    fn guard(&self, errors: &Collector) -> RtGuard {
        let kind = self.rt_guard.as_ref().map_or(
            match self.fair.value {
                FairKind::Cfs | FairKind::Cfs515 | FairKind::Eevdf66 => GuardKind::Throttle,
                _ => GuardKind::FairServer,
            },
            |guard| guard.value,
        );
        let runtime = self.rt_runtime.as_ref().map(|key| key.span);
        let period = self.rt_period.as_ref().map(|key| key.span);
        let (guard, default): (fn(Bandwidth) -> RtGuard, Ns) = match kind {
            GuardKind::Off => {
                for span in [runtime, period].into_iter().flatten() {
                    errors.error(span, "with rt_guard = \"off\" this has no meaning");
                }
                return RtGuard::Off;
            }
            GuardKind::Throttle => (RtGuard::Throttle, 950),
            GuardKind::Both => (RtGuard::Both, 950),
            GuardKind::FairServer => (RtGuard::FairServer, 50),
        };
        let period_ns = self.rt_period.as_ref().map_or(1_000_000_000, |k| k.value.0);
        let runtime_ns = self.rt_runtime.as_ref().map_or(period_ns * default / 1000, |k| k.value.0);
        if runtime_ns > period_ns
            && let Some(span) = runtime.or(period)
        {
            let (runtime, period) = (show(runtime_ns), show(period_ns));
            let message = format!("rt_runtime {runtime} is more than its period {period}");
            errors.error_help(span, message, "rt_runtime goes up to rt_period");
        }
        guard(Bandwidth { runtime_ns, period_ns })
    }
}

fn or(key: &Option<Placed<bool>>, default: bool) -> bool {
    key.as_ref().map_or(default, |k| k.value)
}

/// A tunable of the other class would silently do nothing.
fn refuse_foreign(keys: &[(&str, Option<Span>)], owner: &str, fair: &str, errors: &Collector) {
    for (key, span) in keys {
        if let Some(span) = span {
            let message = format!("`{key}` is a tunable of {owner}, but fair = \"{fair}\"");
            let help = format!("set fair = \"{owner}\", or take `{key}` out");
            errors.error_help(*span, message, help);
        }
    }
}

/// The period of a tick rate.
pub(crate) fn tick_ns(hz: &Placed<Int<10, 10_000>>) -> Ns {
    1_000_000_000 / hz.value.get()
}
