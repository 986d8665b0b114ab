//! Scheduler ticks.

use vcoop_model::rng::Stream;

use crate::queue::Ns;

/// Ticks of a level: with a phase of its machine, and another one for each CPU. Ticks of a real host are nearly in
/// phase, but its CPUs are not: they came up one after the other, and are disturbed differently. Here nothing else
/// would prevent equal VMs from being switched everywhere at once, as by a gang scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    period: Ns,
    /// invariant: `< period`.
    phase: Ns,
}

impl Ticks {
    /// Ticks of machine number `machine` (0: the host).
    pub(crate) fn new(period: Ns, seed: u64, machine: usize) -> Self {
        Self { period, phase: Stream::ticks(seed, machine).below(period) }
    }

    /// Time between two of them.
    pub(crate) fn period(&self) -> Ns {
        self.period
    }

    /// The first tick of this CPU after `now`.
    pub(crate) fn after(&self, cpu: u32, now: Ns) -> Ns {
        // Multiples of the golden section spread any number of CPUs evenly over the period.
        let turn = u128::from(cpu.wrapping_mul(0x9e37_79b9));
        let skew = (turn * u128::from(self.period)) >> 32;
        let phase = self.phase + skew as Ns;
        // Both are below a period; a division would take as long as the rest.
        let phase = phase.checked_sub(self.period).unwrap_or(phase);
        if now < phase {
            return phase;
        }
        phase + ((now - phase) / self.period + 1) * self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_ticks_once_a_period_at_a_phase_of_its_own() {
        let ticks = Ticks::new(1_000_000, 7, 1);
        let mut phases = Vec::new();
        for cpu in 0..8 {
            let first = ticks.after(cpu, 0);
            assert!(first <= 1_000_000);
            assert_eq!(ticks.after(cpu, first), first + ticks.period());
            assert_eq!(ticks.after(cpu, first - 1), first);
            phases.push(first);
        }
        phases.sort_unstable();
        let apart = phases.windows(2).map(|two| two[1] - two[0]);
        assert!(apart.min().unwrap() > 1_000_000 / 32, "{phases:?}");
    }
}
