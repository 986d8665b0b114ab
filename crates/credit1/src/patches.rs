//! The study's patches by name, for lists and for policies that apply them.

use super::{BoostPreempts, Patch, Patches};

/// A patch, or a version of one, by name. Where the posted lines do something else than the text
/// beside them says, each has a name: `-as-posted` and `-as-meant`.
#[derive(Clone, Copy, Debug)]
pub struct NamedPatch {
    /// Name in scenario files.
    pub name: &'static str,
    /// What it changes, in one line.
    pub about: &'static str,
    /// Why it cannot do what it was written for, if it cannot.
    pub cannot: Option<&'static str>,
    /// Switches it on.
    pub apply: fn(&mut Patches),
}

/// All patches, in the order of the study.
pub const fn patches() -> &'static [NamedPatch] {
    &LIST
}

/// The patch of this name.
pub fn find_patch(name: &str) -> Option<&'static NamedPatch> {
    LIST.iter().find(|p| p.name == name)
}

static LIST: [NamedPatch; 15] = [
    NamedPatch {
        name: "dom0-preempts-ratelimit-as-posted",
        about: "the ratelimit is void whenever a dom0 vCPU heads the queue, at whatever priority",
        cannot: None,
        apply: |p| p.dom0_preempts_ratelimit = Patch::AsPosted,
    },
    NamedPatch {
        name: "dom0-preempts-ratelimit-as-meant",
        about: "dom0 preempts within the ratelimit, where it will then run",
        cannot: None,
        apply: |p| p.dom0_preempts_ratelimit = Patch::AsMeant,
    },
    NamedPatch {
        name: "migrate-if-blocked-as-posted",
        about: "an offline vCPU may be stolen while cache-hot",
        cannot: Some(
            "a queued vCPU is runnable, never offline; and without migration_delay none is cache-hot",
        ),
        apply: |p| p.migrate_if_blocked = Patch::AsPosted,
    },
    NamedPatch {
        name: "migrate-if-blocked-as-meant",
        about: "a vCPU that blocked and woke may be stolen while cache-hot; needs migration_delay",
        cannot: None,
        apply: |p| p.migrate_if_blocked = Patch::AsMeant,
    },
    NamedPatch {
        name: "waker-local",
        about: "a vCPU woken by dom0 goes to the pCPU of the dom0 vCPU that woke it (an idea only)",
        cannot: None,
        apply: |p| p.waker_local = true,
    },
    NamedPatch {
        name: "boost-preempts-ratelimit-v1",
        about: "a boosted vCPU preempts within the ratelimit; as posted by luck, BOOST being 0",
        cannot: None,
        apply: |p| p.boost_preempts_ratelimit = BoostPreempts::V1,
    },
    NamedPatch {
        name: "boost-preempts-ratelimit-v2",
        about: "a boosted vCPU preempts within the ratelimit of one that is not",
        cannot: None,
        apply: |p| p.boost_preempts_ratelimit = BoostPreempts::V2,
    },
    NamedPatch {
        name: "io-wake-ignores-ratelimit-as-posted",
        about: "a vCPU's first wake-up ends the ratelimit of whoever runs",
        cannot: Some("its flag is set where the context of an HVM vCPU is loaded, not at I/O"),
        apply: |p| p.io_wake_ignores_ratelimit = Patch::AsPosted,
    },
    NamedPatch {
        name: "io-wake-ignores-ratelimit-as-meant",
        about: "an I/O completion ends the ratelimit of whoever runs",
        cannot: None,
        apply: |p| p.io_wake_ignores_ratelimit = Patch::AsMeant,
    },
    NamedPatch {
        name: "keep-dom0-boost-as-posted",
        about: "the tick leaves dom0's BOOST; the accounting, every timeslice, still takes it",
        cannot: None,
        apply: |p| p.keep_dom0_boost = Patch::AsPosted,
    },
    NamedPatch {
        name: "keep-dom0-boost-as-meant",
        about: "dom0 keeps its BOOST",
        cannot: None,
        apply: |p| p.keep_dom0_boost = Patch::AsMeant,
    },
    NamedPatch {
        name: "long-slice-alone-as-posted",
        about: "ten timeslices for a vCPU alone on its pCPU; the credit tick goes on as before",
        cannot: Some("the tick is a timer of its own: hardly an interrupt is saved"),
        apply: |p| p.long_slice_alone = Patch::AsPosted,
    },
    NamedPatch {
        name: "long-slice-alone-as-meant",
        about: "ten timeslices for a vCPU alone on its pCPU, and a tenth of the ticks",
        cannot: None,
        apply: |p| p.long_slice_alone = Patch::AsMeant,
    },
    NamedPatch {
        name: "spread-dom0",
        about: "dom0's vCPUs do not move to a pCPU that has another of them (posted as a link only)",
        cannot: None,
        apply: |p| p.spread_dom0 = true,
    },
    NamedPatch {
        name: "dom0-front",
        about: "dom0's vCPUs go to the front of run queues, whatever their priority",
        cannot: None,
        apply: |p| p.dom0_front = true,
    },
];

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
