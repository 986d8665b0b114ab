//! Which policies there are, and who can run them.

/// One policy, as a list of policies shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in scenario files.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// What it needs of the guest; empty: nothing.
    pub guest: &'static str,
    /// `None`: the simulator runs it. `Some`: it does not, and why.
    pub not_on_sim: Option<&'static str>,
    /// `None`: the lab runs it as it is, on any `/dev/kvm`. `Some`: what is missing or different
    /// there, and why.
    pub not_on_kvm: Option<&'static str>,
}

/// All policies, in the order they are shown.
pub const fn list() -> &'static [Entry] {
    &LIST
}

/// The entry with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    LIST.iter().find(|e| e.name == name)
}

/// What governors need of a guest.
const KEEPS_OFF: &str = "keeps off CPUs that a mask names (`cpu_preferred_mask`)";

static LIST: [Entry; 12] = [
    Entry {
        name: "vanilla",
        about: "do nothing: vCPU threads compete at their baseline",
        guest: "",
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "static",
        about: "vCPU threads keep the means (fifo, rr, nice, slice) all the time",
        guest: "",
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "wake-boost",
        about: "boosted while halted and for a bounded run after the wake-up; bounded by a budget",
        guest: "",
        not_on_sim: None,
        not_on_kvm: Some(
            "user space sees a halt only if HLT exits to it: without the in-kernel interrupt \
             controller, or in the lab's own guest, which announces it in the shared page",
        ),
    },
    Entry {
        name: "dynamic",
        about: "boosted on injection and on the guest's word, across idle, until the guest ends it; \
                bounded by a budget",
        guest: "registers a shared page and runs the guest half",
        not_on_sim: None,
        not_on_kvm: Some(
            "an unpatched KVM handles most exits without telling user space: the request is read \
             at exits to user space and sampled by the injector, later than at every exit",
        ),
    },
    Entry {
        name: "pinned",
        about: "each vCPU on a pCPU of its own; the host's loads go where they like",
        guest: "",
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "isolated",
        about: "pinned, and the host's loads off the vCPUs' pCPUs",
        guest: "",
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "ratelimit-auto",
        about: "a ratelimit for each domain of a credit1 host, from how it runs and whom it holds up",
        guest: "",
        not_on_sim: None,
        not_on_kvm: Some("Linux's scheduler has no ratelimit, and the lab runs on Linux"),
    },
    Entry {
        name: "step",
        about: "the guest keeps off one core more a second above 5 % steal, one less up to 2 %: as merged",
        guest: KEEPS_OFF,
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "proportional",
        about: "the guest keeps off as many cores as the steal on those in use shows, and keeps its share",
        guest: KEEPS_OFF,
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "entitlement",
        about: "the guest keeps off the cores it is not entitled to while the host's pool is contended",
        guest: KEEPS_OFF,
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "host-hint",
        about: "the host says in the shared page how many vCPUs it can give, from who wants what",
        guest: KEEPS_OFF,
        not_on_sim: None,
        not_on_kvm: None,
    },
    Entry {
        name: "hotplug",
        about: "as entitlement, but vCPUs go offline and online: what people do by hand, and its cost",
        guest: "CPU hotplug",
        not_on_sim: None,
        not_on_kvm: Some("the lab's guest has no CPU hotplug, which is a thing of Linux guests"),
    },
];

#[cfg(test)]
mod tests {
    use super::{find, list};

    #[test]
    fn names_are_unique_and_lines_are_lines() {
        for e in list() {
            assert_eq!(find(e.name), Some(e));
            assert_eq!(list().iter().filter(|o| o.name == e.name).count(), 1);
            assert!(!e.about.is_empty() && !e.about.contains('\n'));
        }
        assert_eq!(find("none"), None);
    }
}
