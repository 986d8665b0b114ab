//! Checks the use of pages by guests and policies against the protocol.

use vcoop_abi::conformance::{Limits, Operation, Report, Watch};

use crate::queue::Ns;

/// What the conformance checker of one vCPU's page found.
#[derive(Clone, Debug)]
pub struct PageReport {
    /// `VM/vcpuN`.
    pub vcpu: String,
    /// The guest's rules; `None` for a hostile guest.
    pub guest: Option<Report>,
    /// The host's rules.
    pub host: Report,
}

/// Checkers of the vCPUs' pages; empty without checks.
#[derive(Debug, Default)]
pub(crate) struct PageChecks(Vec<Option<Watch>>);

impl PageChecks {
    /// Checks the page of each vCPU for which this is true, from time 0 on.
    pub(crate) fn new(limits: Limits, checked: impl Iterator<Item = bool>) -> Self {
        Self(checked.map(|checked| checked.then(|| Watch::new(limits, 0))).collect())
    }

    /// Whether there are checkers.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.0.is_empty()
    }

    /// Reports to the checker of a vCPU's page, if there is one.
    pub(crate) fn show(&mut self, v: u32, what: impl FnOnce(&mut Watch)) {
        if let Some(Some(page)) = self.0.get_mut(v as usize) {
            what(page);
        }
    }

    /// Results for the guest's rules and for the host's, by vCPU.
    pub(crate) fn reports(&mut self, end: Ns) -> Vec<(usize, Report, Report)> {
        let mut all = Vec::new();
        for (v, watched) in self.0.iter_mut().enumerate() {
            if let Some(watch) = watched {
                watch.event(end, Operation::End);
                let (guest, host) = watch.reports();
                all.push((v, guest, host));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pages_that_are_checked_are_reported() {
        let mut checks = PageChecks::default();
        assert!(!checks.is_on());
        checks.show(0, |_| panic!("nobody checks"));
        checks = PageChecks::new(Limits::default(), [false, true].into_iter());
        assert!(checks.is_on());
        checks.show(0, |_| panic!("this one is not checked"));
        checks.show(1, |page| page.event(10, Operation::Registered(true)));
        let reports = checks.reports(20);
        assert_eq!(reports.iter().map(|report| report.0).collect::<Vec<_>>(), [1]);
    }
}
