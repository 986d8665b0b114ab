//! What a guest's files had before, and what they may have from us: the content of a journal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::change::{Change, ChangedTo, Target, same};
use crate::cpus::{Cpus, MOST_CPUS};

/// The schema; the number is the format's version.
const SCHEMA: &str = "vcoop.guest-journal/1";

/// Content of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contents {
    schema: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub(crate) boot: String,
    /// The cpuset controller was enabled below the root.
    pub(crate) controllers: bool,
    cgroups: BTreeMap<String, ChangedCgroup>,
    /// CPUs that were taken offline.
    pub(crate) cpus: Cpus,
}

/// A cgroup that was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedCgroup {
    inode: u64,
    /// Its content before.
    pub(crate) before: String,
    /// Contents that it may have from us.
    mine: Vec<String>,
}

impl ChangedCgroup {
    /// Whether this may have been written by us.
    pub(crate) fn is_mine(&self, now: &str) -> bool {
        self.mine.iter().any(|mine| same(mine, now))
    }
}

impl Contents {
    pub(crate) fn new(boot: String) -> Self {
        Self { schema: SCHEMA.to_owned(), boot, ..Self::default() }
    }

    /// Why the journal cannot be ours.
    pub(crate) fn fault(&self) -> Option<String> {
        let odd = |name: &&String| matches!(name.as_str(), "" | "." | "..") || name.contains('/');
        if self.schema != SCHEMA {
            return Some(format!("this version does not read {:?}", self.schema));
        }
        let name = self.cgroups.keys().find(odd);
        let cpu = self.cpus.iter().find(|cpu| **cpu == 0 || **cpu >= MOST_CPUS);
        name.map(|name| format!("{name:?} is no name of a cgroup"))
            .or(cpu.map(|cpu| format!("CPU {cpu} is never taken offline")))
    }

    /// Whether no change of ours is left.
    pub(crate) fn is_empty(&self) -> bool {
        !self.controllers && !self.is_folded()
    }

    /// Whether CPUs are avoided.
    pub(crate) fn is_folded(&self) -> bool {
        !self.cgroups.is_empty() || !self.cpus.is_empty()
    }

    /// The cgroups.
    pub(crate) fn targets(&self) -> Vec<(Target, ChangedCgroup)> {
        let target = |(name, ours): (&String, &ChangedCgroup)| {
            (Target::Cgroup { name: name.clone(), inode: ours.inode }, ours.clone())
        };
        self.cgroups.iter().map(target).collect()
    }

    /// The entry of a cgroup; a cgroup with the name and another inode is another one.
    pub(crate) fn ours(&self, target: &Target) -> Option<&ChangedCgroup> {
        let Target::Cgroup { name, inode } = target else { return None };
        self.cgroups.get(name).filter(|ours| ours.inode == *inode)
    }

    /// Records a change that is about to be made.
    pub(crate) fn expect(&mut self, change: &Change) {
        match &change.target {
            Target::Controllers => self.controllers = true,
            Target::Cpu(cpu) => _ = self.cpus.insert(*cpu),
            Target::Cgroup { name, inode } => {
                if self.ours(&change.target).is_none() {
                    let before = change.before.clone();
                    let ours = ChangedCgroup { inode: *inode, before, mine: Vec::new() };
                    self.cgroups.insert(name.clone(), ours);
                }
                let ours = self.cgroups.get_mut(name);
                if let Some(ours) = ours {
                    ours.mine.extend([&change.to].into_iter().chain(&change.instead).cloned());
                }
            }
        }
    }

    /// Records that a change was made, or refused (`None`).
    pub(crate) fn settle(&mut self, change: &Change, made: Option<ChangedTo>) {
        let is_back = made == Some(ChangedTo::So) && change.to == change.before;
        match &change.target {
            Target::Controllers => self.controllers = made.is_some(),
            Target::Cpu(cpu) => {
                // Refused: it is as it was.
                let offline = if made.is_some() { &change.to } else { &change.from } == "0";
                if !offline {
                    self.cpus.remove(cpu);
                }
            }
            Target::Cgroup { name, .. } => {
                let Some(ours) = self.cgroups.get_mut(name) else { return };
                match made {
                    Some(ChangedTo::So) => ours.mine = vec![change.to.clone()],
                    Some(ChangedTo::Instead) => {
                        ours.mine = change.instead.iter().cloned().collect()
                    }
                    None => {
                        let expected = 1 + usize::from(change.instead.is_some());
                        ours.mine.truncate(ours.mine.len().saturating_sub(expected));
                    }
                }
                if is_back || ours.mine.is_empty() {
                    self.cgroups.remove(name);
                }
            }
        }
    }

    /// Drops a file that was changed from outside or no longer exists.
    pub(crate) fn forget(&mut self, target: &Target) {
        match target {
            Target::Controllers => self.controllers = false,
            Target::Cpu(cpu) => _ = self.cpus.remove(cpu),
            Target::Cgroup { name, .. } => _ = self.cgroups.remove(name),
        }
    }
}
