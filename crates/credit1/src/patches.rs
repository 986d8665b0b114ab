//! The study's patches by name, for lists and for policies that apply them.

use super::{BoostPreempts, Patch, Patches};

/// A named patch, or a version of one. If the posted lines do not do what their description says, both forms have
/// names: `-as-posted` and `-as-meant`.
#[derive(Clone, Copy, Debug)]
pub struct NamedPatch {
    /// Name in scenario files.
    pub name: &'static str,
    /// Its effect, as sentences in one line.
    pub about: &'static str,
    /// The end of a sentence that says why it cannot do what it was written for, if so.
    pub cannot: Option<&'static str>,
    /// Switches it on.
    pub apply: fn(&mut Patches),
}

/// All patches, in the order of the study.
pub const fn patches() -> &'static [NamedPatch] {
    LIST
}

/// The patch with a name.
pub fn find_patch(name: &str) -> Option<&'static NamedPatch> {
    LIST.iter().find(|p| p.name == name)
}

/// Declares the patches: name and switch, what it does, and why it cannot do that, if so.
macro_rules! list {
    ($( $name:literal: $switch:ident = $on:expr, $about:literal $(, cannot: $cannot:literal)?; )+) => {
        static LIST: &[NamedPatch] = &[$( NamedPatch {
            name: $name,
            about: $about,
            cannot: [$( Some($cannot), )? None][0],
            apply: |p| p.$switch = $on,
        } ),+];
    };
}

list! {
    "dom0-preempts-ratelimit-as-posted": dom0_preempts_ratelimit = Patch::AsPosted,
        "The ratelimit does not hold while a vCPU of dom0 is the first in the queue, whatever its priority.";
    "dom0-preempts-ratelimit-as-meant": dom0_preempts_ratelimit = Patch::AsMeant,
        "A vCPU of dom0 preempts within the ratelimit, if it is then the one that runs.";
    "migrate-if-blocked-as-posted": migrate_if_blocked = Patch::AsPosted,
        "An offline vCPU can be stolen while it is cache-hot.",
        cannot: "a vCPU in a queue is runnable and never offline, and without migration_delay none is cache-hot";
    "migrate-if-blocked-as-meant": migrate_if_blocked = Patch::AsMeant,
        "A vCPU that blocked and woke can be stolen while it is cache-hot. This needs migration_delay.";
    "waker-local": waker_local = true,
        "A vCPU that dom0 wakes goes to the pCPU of the dom0 vCPU that woke it. The study only had the idea.";
    "boost-preempts-ratelimit-v1": boost_preempts_ratelimit = BoostPreempts::V1,
        "A boosted vCPU preempts within the ratelimit. The posted lines do this only because BOOST is 0.";
    "boost-preempts-ratelimit-v2": boost_preempts_ratelimit = BoostPreempts::V2,
        "A boosted vCPU preempts within the ratelimit of a vCPU that is not boosted.";
    "io-wake-ignores-ratelimit-as-posted": io_wake_ignores_ratelimit = Patch::AsPosted,
        "The first wake-up of a vCPU ends the ratelimit of the vCPU that runs.",
        cannot: "its flag is set where the context of an HVM vCPU is loaded, and not at I/O";
    "io-wake-ignores-ratelimit-as-meant": io_wake_ignores_ratelimit = Patch::AsMeant,
        "A completion of I/O ends the ratelimit of the vCPU that runs.";
    "keep-dom0-boost-as-posted": keep_dom0_boost = Patch::AsPosted,
        "The tick leaves dom0 its BOOST. The accounting, once in a timeslice, still takes it.";
    "keep-dom0-boost-as-meant": keep_dom0_boost = Patch::AsMeant,
        "The vCPUs of dom0 keep their BOOST.";
    "long-slice-alone-as-posted": long_slice_alone = Patch::AsPosted,
        "A vCPU that is alone on its pCPU gets ten timeslices at once. The credit tick is unchanged.",
        cannot: "the tick has a timer of its own, so that hardly any interrupt is saved";
    "long-slice-alone-as-meant": long_slice_alone = Patch::AsMeant,
        "A vCPU that is alone on its pCPU gets ten timeslices at once, and a tenth of the credit ticks.";
    "spread-dom0": spread_dom0 = true,
        "The vCPUs of dom0 do not move to a pCPU that has another of them. The study posted only a link.";
    "dom0-front": dom0_front = true,
        "The vCPUs of dom0 go to the front of run queues, whatever their priority.";
}

#[cfg(test)]
mod tests {
    use super::{Patches, find_patch, patches};

    #[test]
    fn each_name_is_one_switch() {
        let of = |i: usize| {
            let mut p = Patches::default();
            (patches()[i].apply)(&mut p);
            p
        };
        for (i, patch) in patches().iter().enumerate() {
            assert_eq!(find_patch(patch.name).map(|p| p.name), Some(patch.name));
            assert_ne!(of(i), Patches::default(), "{} does nothing", patch.name);
            (0..i).for_each(|o| assert_ne!(of(i), of(o), "{} is another's twin", patch.name));
            assert!(!patch.about.contains('\n'));
        }
        assert!(find_patch("as-posted").is_none());
    }
}
