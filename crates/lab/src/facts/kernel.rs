//! How the kernel was built and configured.

use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use serde::Serialize;
use vcoop_model::plan::{Ns, Preemption};
use vcoop_policy::config::HostPollConfig;
use vcoop_sched::config::{
    Bandwidth, CfsRelease, CfsTunables, EevdfRelease, EevdfTunables, Fair, RtGuard,
};

use super::{Fact, Root};

/// The numbers of a kernel release; they order as versions do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Release {
    /// `6` in 6.18.
    pub major: u32,
    /// `18` in 6.18.
    pub minor: u32,
    /// `44` in 6.18.44; 0 in 6.18.
    pub patch: u32,
}

impl Release {
    /// From `uname -r`; what is not a number counts as 0.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text
            .split('.')
            .map(|part| part.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default())
            .map(|digits| digits.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self { major: next(), minor: next(), patch: next() }
    }

    /// From its numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }
}

/// The kernel's build configuration, if the host has it.
#[derive(Debug, Default)]
pub(super) struct Config {
    text: String,
    from: &'static str,
}

impl Config {
    /// More than any kernel's.
    const MAX: u64 = 4 << 20;

    pub(super) fn load(root: &Root, release: &str) -> Self {
        let open = |path: &str| File::open(root.path(path)).ok();
        let text = |from: &mut dyn Read| {
            let mut text = String::new();
            from.take(Self::MAX).read_to_string(&mut text).ok().map(|_| text)
        };
        let packed = open("proc/config.gz").and_then(|file| text(&mut GzDecoder::new(file)));
        if let Some(text) = packed {
            return Self { text, from: "/proc/config.gz" };
        }
        match open(&format!("boot/config-{release}")).and_then(|mut file| text(&mut file)) {
            Some(text) => Self { text, from: "/boot/config-<release>" },
            None => Self::default(),
        }
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    fn is_on(&self, key: &str) -> bool {
        self.value(key) == Some("y")
    }
}

/// The tick. The coarse clocks move once a tick, and their resolution is its period.
pub(super) fn tick(coarse: Option<Ns>, config: &Config) -> Fact<Ns> {
    let plausible = |ns: &Ns| (100_000..=100_000_000).contains(ns);
    if let Some(ns) = coarse.filter(plausible) {
        return Fact::read(ns, "clock_getres(CLOCK_MONOTONIC_COARSE)");
    }
    let hz: Option<Ns> = config.value("CONFIG_HZ").and_then(|hz| hz.parse().ok());
    match hz.and_then(|hz| 1_000_000_000_u64.checked_div(hz)).filter(plausible) {
        Some(ns) => Fact::read(ns, &format!("CONFIG_HZ in {}", config.from)),
        None => Fact::inferred(4_000_000, "HZ=250, as most distributions"),
    }
}

/// The preemption model: from debugfs, else from the boot option, else from the build configuration.
pub(super) fn preemption(root: &Root, config: &Config) -> Fact<Preemption> {
    let named = |name: &str| Preemption::ALL.into_iter().find(|model| model.name() == name);
    // `none voluntary (full) lazy`.
    if let Some(text) = root.text("sys/kernel/debug/sched/preempt")
        && let Some(chosen) = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix('(')?.strip_suffix(')'))
            .and_then(named)
    {
        return Fact::read(chosen, "/sys/kernel/debug/sched/preempt");
    }
    let version = root.text("proc/sys/kernel/version").unwrap_or_default();
    let says = |word: &str| version.split_whitespace().any(|w| w == word);
    if says("PREEMPT_RT") {
        // Beyond the model's four: also locks are preemptible.
        return Fact::read(Preemption::Full, "/proc/sys/kernel/version (PREEMPT_RT)");
    }
    let dynamic = says("PREEMPT_DYNAMIC") || config.is_on("CONFIG_PREEMPT_DYNAMIC");
    let cmdline = root.text("proc/cmdline").unwrap_or_default();
    let asked = cmdline.split_whitespace().filter_map(|w| w.strip_prefix("preempt=")).next_back();
    if dynamic && let Some(chosen) = asked.and_then(named) {
        return Fact::read(chosen, "/proc/cmdline (preempt=)");
    }
    let built = [
        ("CONFIG_PREEMPT_NONE", Preemption::None),
        ("CONFIG_PREEMPT_VOLUNTARY", Preemption::Voluntary),
        ("CONFIG_PREEMPT_LAZY", Preemption::Lazy),
        ("CONFIG_PREEMPT", Preemption::Full),
    ];
    if let Some((key, model)) = built.into_iter().find(|(key, _)| config.is_on(key)) {
        return Fact::read(model, &format!("{key} in {}", config.from));
    }
    if says("PREEMPT") {
        return Fact::read(Preemption::Full, "/proc/sys/kernel/version");
    }
    Fact::inferred(Preemption::Voluntary, "the kernel does not say; most distributions")
}

/// The fair class of this release with its default tunables, and the base slice in force where
/// debugfs shows it.
///
/// CFS until 6.5, EEVDF from 6.6 (`kernel/sched/fair.c` of these releases).
pub(super) fn fair(root: &Root, release: Release, cpus: u32) -> Fact<Fair> {
    if release < Release::new(6, 6) {
        let why = "Linux before 6.6 has CFS; tunables are its defaults";
        let before = release < Release::new(5, 16);
        let rules = if before { CfsRelease::V5_15 } else { CfsRelease::V6_5 };
        return Fact::inferred(Fair::Cfs(CfsTunables::of(rules, cpus)), why);
    }
    // The stable updates of 2026 changed the rules within 6.18: all of them are in 6.18.36, none in 6.18.32.
    let rules = match (release.major, release.minor, release.patch) {
        (6, ..=11, _) => EevdfRelease::V6_6,
        (6, ..=14, _) => EevdfRelease::V6_12,
        (6, ..=16, _) => EevdfRelease::V6_15,
        (6, 17, _) | (6, 18, ..=32) => EevdfRelease::V6_18_0,
        (6, ..) | (7, ..=2, _) => EevdfRelease::V6_18,
        _ => EevdfRelease::V7_3,
    };
    let mut eevdf = EevdfTunables::of(rules, cpus);
    // Commit 79104becf42b, as the stable series have it.
    eevdf.yield_forfeits = match (release.major, release.minor) {
        (6, 6) => release.patch >= 120,
        (6, 12) => release.patch >= 63,
        (6, 17) => release.patch >= 13,
        (6, 18) => release.patch >= 2,
        _ => eevdf.yield_forfeits,
    };
    // Features can be switched while the kernel runs.
    let features = root.text("sys/kernel/debug/sched/features").unwrap_or_default();
    eevdf.hrtick = match features.split_whitespace().find(|f| f.ends_with("HRTICK")) {
        Some(feature) => feature == "HRTICK",
        None => release >= Release::new(7, 1),
    };
    match root.number("sys/kernel/debug/sched/base_slice_ns") {
        Some(ns) if ns > 0 => {
            eevdf.base_slice_ns = ns;
            Fact::read(Fair::Eevdf(eevdf), "/sys/kernel/debug/sched/base_slice_ns")
        }
        _ => {
            Fact::inferred(Fair::Eevdf(eevdf), "Linux since 6.6 has EEVDF; the release's defaults")
        }
    }
}

pub(super) fn rr_slice(root: &Root) -> Fact<Ns> {
    match root.number::<Ns>("proc/sys/kernel/sched_rr_timeslice_ms") {
        Some(ms) if (1..=10_000).contains(&ms) => {
            Fact::read(ms * 1_000_000, "/proc/sys/kernel/sched_rr_timeslice_ms")
        }
        _ => Fact::inferred(100_000_000, "the kernel's default"),
    }
}

/// How KVM polls for halted vCPUs: `halt_poll_ns` and how it adapts.
pub(super) fn halt_poll(root: &Root) -> Fact<HostPollConfig> {
    fn parameter<T: std::str::FromStr>(root: &Root, name: &str) -> Option<T> {
        root.number(&format!("sys/module/kvm/parameters/halt_poll_ns{name}"))
    }
    let read = || {
        Some(HostPollConfig {
            max_ns: parameter(root, "")?,
            grow: parameter(root, "_grow")?,
            grow_start_ns: parameter(root, "_grow_start")?,
            shrink: parameter(root, "_shrink")?,
            fixed: false,
        })
    };
    match read() {
        Some(poll) => Fact::read(poll, "/sys/module/kvm/parameters"),
        None => Fact::inferred(HostPollConfig::KVM, "KVM's default: its module is not here"),
    }
}

/// `sched_rt_runtime_us` within `sched_rt_period_us`, in nanoseconds; `None` = unlimited or unknown.
pub(super) fn rt_limit(root: &Root) -> Option<(Ns, Ns)> {
    // -1 does not parse: no limit.
    let runtime: Ns = root.number("proc/sys/kernel/sched_rt_runtime_us")?;
    let period: Ns = root.number("proc/sys/kernel/sched_rt_period_us")?;
    Some((runtime.checked_mul(1000)?, period.checked_mul(1000)?))
}

/// RT throttling until 6.11, the fair server from 6.12 on, and both where 6.12 and later are built
/// with `CONFIG_RT_GROUP_SCHED`.
pub(super) fn rt_guard(root: &Root, release: Release, config: &Config) -> Fact<RtGuard> {
    let from = "/proc/sys/kernel/sched_rt_{runtime,period}_us";
    let groups = config.is_on("CONFIG_RT_GROUP_SCHED");
    if release < Release::new(6, 12) {
        return match rt_limit(root) {
            Some((runtime, period)) if runtime >= period => Fact::read(RtGuard::Off, from),
            Some((runtime_ns, period_ns)) => {
                Fact::read(RtGuard::Throttle(Bandwidth { runtime_ns, period_ns }), from)
            }
            None if root.text("proc/sys/kernel/sched_rt_runtime_us").as_deref() == Some("-1") => {
                Fact::read(RtGuard::Off, from)
            }
            None => Fact::inferred(RtGuard::THROTTLE, "the kernel's default"),
        };
    }
    let of =
        |file: &str| root.number::<Ns>(&format!("sys/kernel/debug/sched/fair_server/cpu0/{file}"));
    let server = of("runtime");
    if let Some((runtime_ns, period_ns)) = rt_limit(root).filter(|&(r, p)| groups && r < p) {
        let (guard, server) = match server {
            Some(0) => (RtGuard::Throttle(Bandwidth { runtime_ns, period_ns }), "no fair server"),
            _ => (RtGuard::Both(Bandwidth { runtime_ns, period_ns }), "fair server since 6.12"),
        };
        return Fact::read(guard, &format!("{from}, CONFIG_RT_GROUP_SCHED; {server}"));
    }
    match (server, of("period")) {
        (Some(0), _) => Fact::read(RtGuard::Off, "/sys/kernel/debug/sched/fair_server"),
        (Some(runtime_ns), Some(period_ns)) if period_ns > 0 => Fact::read(
            RtGuard::FairServer(Bandwidth { runtime_ns, period_ns }),
            "/sys/kernel/debug/sched/fair_server",
        ),
        _ => Fact::inferred(
            RtGuard::FAIR_SERVER,
            "Linux since 6.12 has the fair server; its defaults",
        ),
    }
}
