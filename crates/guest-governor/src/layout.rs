//! The guest's CPUs and cores.

use crate::cpus::{self, Cpus};
use crate::error::FoldError;
use crate::files::{self, Roots, read};

/// The CPUs of a guest that its tasks may use, by cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// CPUs that are online, and not in a partition of cpusets.
    shared: Cpus,
    /// Cores of those that are not isolated, by their lowest CPU.
    cores: Vec<Vec<u32>>,
    /// Most CPUs of a core.
    threads: u32,
}

impl Layout {
    /// Reads it from sysfs, and the partitions of cpusets from the root cgroup if there is one.
    ///
    /// # Errors
    ///
    /// [`FoldError::Io`], [`FoldError::Missing`]: there is no list of CPUs, or it is empty.
    pub fn read(roots: &Roots) -> Result<Self, FoldError> {
        let all = roots.cpus();
        let path = all.join("online");
        let text = read(&path).map_err(FoldError::io(&path))?;
        let mut shared = cpus::parse(&text).ok_or_else(|| FoldError::Missing {
            what: format!("{}: {text:?} is no list of CPUs", path.display()),
            remedy: "mount -t sysfs sys /sys",
        })?;
        if let Some(effective) = roots.shared() {
            shared.retain(|cpu| effective.contains(cpu));
        }
        let isolated = files::list(&all.join("isolated")).unwrap_or_default();
        let mut cores: Vec<Vec<u32>> = Vec::new();
        let mut placed = Cpus::new();
        for cpu in shared.difference(&isolated) {
            if placed.contains(cpu) {
                continue;
            }
            let siblings = all.join(format!("cpu{cpu}/topology/thread_siblings_list"));
            let siblings = files::list(&siblings).unwrap_or_default();
            let free = |s: &u32| s > cpu && shared.contains(s) && !isolated.contains(s);
            let others = siblings.into_iter().filter(|s| free(s) && !placed.contains(s));
            let core: Vec<u32> = [*cpu].into_iter().chain(others).collect();
            placed.extend(&core);
            cores.push(core);
        }
        let threads = cores.iter().map(|core| core.len() as u32).max();
        let threads = threads.ok_or_else(|| FoldError::Missing {
            what: format!("{}: no CPU is left to use", path.display()),
            remedy: "a guest whose CPUs are not all isolated",
        })?;
        Ok(Self { shared, cores, threads })
    }

    /// Shared CPUs that isolcpus= isolates.
    pub(crate) fn isolated(&self) -> Cpus {
        &self.shared - &self.all()
    }

    /// The width of all CPUs. Widths are in whole cores; a core with a missing CPU counts like any other.
    pub(crate) fn counted(&self) -> u32 {
        self.cores.len() as u32 * self.threads
    }

    /// Most CPUs of a core.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The CPUs, in the order in which governors count them; `None`: a core has fewer than others.
    pub fn order(&self) -> impl Iterator<Item = Option<u32>> {
        let threads = self.threads as usize;
        self.cores.iter().flat_map(move |core| (0..threads).map(|i| core.get(i).copied()))
    }

    /// The smallest width that has so many CPUs, or that of all.
    pub(crate) fn width_of(&self, cpus: u32) -> u32 {
        let mut there = 0;
        let cores = self.cores.iter().take_while(|core| {
            let lacking = there < cpus.max(1);
            there += core.len() as u32;
            lacking
        });
        cores.count() as u32 * self.threads
    }

    /// All CPUs that are governed.
    pub fn all(&self) -> Cpus {
        self.cores.iter().flatten().copied().collect()
    }

    /// The CPUs of a width: the lowest cores.
    pub fn used(&self, width: u32) -> Cpus {
        let cores = (width / self.threads) as usize;
        self.cores.iter().take(cores).flatten().copied().collect()
    }

    /// The CPUs to avoid while these are used.
    pub fn avoided(&self, used: &Cpus) -> Cpus {
        &self.all() - used
    }

    /// Whether the guest's CPUs have changed; `offline`: CPUs that were taken offline by us.
    pub(crate) fn differs(&self, now: &Self, offline: &Cpus) -> bool {
        let expected: Vec<Vec<u32>> = self
            .cores
            .iter()
            .map(|core| core.iter().copied().filter(|cpu| !offline.contains(cpu)).collect())
            .filter(|core: &Vec<u32>| !core.is_empty())
            .collect();
        expected != now.cores
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use crate::cpus::Cpus;

    #[test]
    fn a_width_has_the_cpus_that_there_are() {
        // A core of four, and three that lack some.
        let cores = vec![vec![0], vec![1, 5], vec![2, 6, 8, 9], vec![3]];
        let shared: Cpus = cores.iter().flatten().copied().collect();
        let layout = Layout { shared, cores, threads: 4 };
        assert_eq!(
            [0, 1, 2, 3, 4, 7, 8, 99].map(|n| layout.width_of(n)),
            [4, 4, 8, 8, 12, 12, 16, 16]
        );
        assert_eq!(layout.used(layout.width_of(3)), Cpus::from([0, 1, 5]));
    }
}
