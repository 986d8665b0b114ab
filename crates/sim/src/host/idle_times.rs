//! How long CPUs were idle.

use crate::queue::Ns;

/// Recent idle times of a CPU, as its idle governor remembers them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdleTimes {
    times: [Ns; 8],
    next: usize,
}

impl IdleTimes {
    pub(crate) fn add(&mut self, ns: Ns) {
        self.times[self.next] = ns;
        self.next = (self.next + 1) % self.times.len();
    }

    /// What the idle governor expects: the mean of the recent idle times, leaving out, one by one,
    /// the longest ones while they spread too far (the idea of the menu governor's typical
    /// interval).
    pub(crate) fn typical(self) -> Ns {
        let mut times = self.times;
        times.sort_unstable();
        let mut n = times.len();
        loop {
            let mean = times[..n].iter().sum::<Ns>() / n as Ns;
            let spread = times[n - 1] - times[0];
            if n <= times.len() / 2 || spread <= mean {
                return mean;
            }
            n -= 1;
        }
    }
}
