//! Scenarios that ship with the program, and scenarios that other files name.

use std::path::Path;

use crate::diagnostic::nearest;
use crate::file;

/// A scenario that ships with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Its name, as for `vcoop run` and in the file.
    pub name: &'static str,
    /// The text of its file.
    pub text: &'static str,
}

macro_rules! builtin {
    ($($name:literal),+ $(,)?) => {
        &[$( Builtin {
            name: $name,
            text: include_str!(concat!("../../../scenarios/", $name, ".toml")),
        } ),+]
    };
}

/// The scenarios that ship with the program, the flagship first.
pub fn builtin_scenarios() -> &'static [Builtin] {
    builtin![
        "busy-host",
        "busy-host-1",
        "idle-host-1",
        "duty-host-1",
        "bursty-host-1",
        "two-guests-1",
        "audio-host-1",
        "threads-1",
        "boost-means",
        "timer-ablation",
        "hv-timer",
        "hv-timer-boost",
        "exitless-timer",
        "pinning",
        "isolated-cpu",
        "halt-polling",
        "ipi-80",
        "ipi-boost",
        "tcp-rr",
        "dedicated",
        "spinlock-overcommit",
        "directed-yield",
        "mmap-lock",
        "smt-siblings",
        "core-scheduling",
        "noisy-host",
        "tax-cut",
        "halt-polling-rr",
        "pvsched-idle",
        "pvsched-busy",
        "pvsched-audio",
        "rogue-guest",
        "vmping",
        "ipi-ping",
        "xen-bootstorm",
        "xen-vmping",
        "xen-ratelimit",
        "xen-patches",
        "xen-density",
        "xen-pinning",
        "xen-vmstart",
        "paravirt-cpus",
        "paravirt-duty",
        "governor-compare",
        "governor-unfair",
        "governor-quota",
        "governor-loads",
        "governor-live",
    ]
}

/// The text of a scenario that ships with the program.
pub fn builtin_scenario(name: &str) -> Option<&'static str> {
    builtin_scenarios().iter().find(|b| b.name == name).map(|b| b.text)
}

/// Whether a name is a path, not the name of something built in.
pub fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

/// The text of the scenario that a file names: a built-in one, or a file at `path`.
///
/// # Errors
///
/// What is wrong, and the remedy.
pub fn named_scenario(name: &str, path: &Path) -> Result<String, (String, Option<String>)> {
    if is_path(name) {
        return file::text(path, file::MOST_TEXT).map_err(|e| {
            let message = format!("cannot read {}: {e}", path.display());
            (message, file::remedy(&e).map(str::to_owned))
        });
    }
    builtin_scenario(name).map(str::to_owned).ok_or_else(|| {
        let names = builtin_scenarios().iter().map(|b| b.name);
        let help = nearest(name, "built-in scenarios", names) + "; or a path to a file";
        (format!("there is no scenario `{name}`"), Some(help))
    })
}
