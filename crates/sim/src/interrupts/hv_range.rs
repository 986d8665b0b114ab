//! The range of deadlines of the VMX preemption timer.

use vcoop_model::profile::Cpu;

use crate::queue::Ns;

/// Fractional bits of VMX's TSC multiplier.
const RATIO_BITS: u32 = 48;

/// The range of the preemption timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    tsc_khz: u64,
    shift: u32,
    /// Guest cycles per host cycle, with [`RATIO_BITS`] fractional bits; `None`: TSC scaling is not used.
    ratio: Option<u64>,
}

impl Range {
    pub(crate) fn new(cpu: Option<Cpu>, ratio_ppm: u64) -> Self {
        let ratio = (u128::from(ratio_ppm) << RATIO_BITS) / 1_000_000;
        Self {
            tsc_khz: cpu.map_or(1, |cpu| u64::from(cpu.tsc_khz)),
            shift: cpu.and_then(|cpu| cpu.preemption_timer_shift).unwrap_or(0),
            ratio: (ratio_ppm != 1_000_000).then_some(ratio as u64),
        }
    }

    /// Time that the timer takes to count down when loaded for `ns`; `None` if KVM returns -ERANGE.
    pub(crate) fn counts(&self, ns: Ns) -> Option<Ns> {
        let cycles = u128::from(ns) * u128::from(self.tsc_khz) / 1_000_000;
        let cycles = u64::try_from(cycles).ok()?;
        let cycles = match self.ratio {
            None => cycles,
            Some(ratio) => {
                // To guest cycles, and back: `u64_shl_div_u64` fails if the quotient does not fit.
                let guest =
                    u64::try_from((u128::from(cycles) * u128::from(ratio)) >> RATIO_BITS).ok()?;
                if ratio == 0 || guest >> (64 - RATIO_BITS) >= ratio {
                    return None;
                }
                u64::try_from((u128::from(guest) << RATIO_BITS) / u128::from(ratio)).ok()?
            }
        };
        if cycles >> self.shift > u64::from(u32::MAX) {
            return None;
        }
        // It counts when bits of the TSC change: up to one count later than the deadline, not earlier.
        let counts = cycles.div_ceil(1 << self.shift);
        let cycles = u128::from(counts) << self.shift;
        let back = (cycles * 1_000_000).div_ceil(u128::from(self.tsc_khz));
        Some(Ns::try_from(back).ok()?.max(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(tsc_khz: u32, shift: u32, ratio_ppm: u64) -> Range {
        let cpu = Cpu { tsc_khz, signature: 0x306f2, preemption_timer_shift: Some(shift) };
        Range::new(Some(cpu), ratio_ppm)
    }

    #[test]
    fn it_counts_in_32_bits_of_32_cycles() {
        let r = range(2_300_000, 5, 1_000_000);
        assert_eq!(r.counts(0), Some(0));
        // 14 ns are 32 cycles: one count. 15 ns are 34: two, which are 27.8 ns.
        assert_eq!(r.counts(14), Some(14));
        assert_eq!(r.counts(15), Some(28));
        // 2^32 counts are 59.76 s.
        assert!(r.counts(59_700_000_000).is_some());
        assert_eq!(r.counts(59_800_000_000), None);
    }

    #[test]
    fn scaling_converts_and_overflows_as_kvm_does() {
        for ppm in [500_000, 1_500_000, 3_000_000] {
            let r = range(2_000_000, 5, ppm);
            let ns = r.counts(1_000_000).expect("in range");
            assert!((1_000_000..1_000_040).contains(&ns), "{ppm}: {ns}");
        }
        // The guest's delta shifted by 48 bits must leave a quotient of 64: with a ratio of a
        // thousandth, 2^16 thousandths of 2^48 cycles; other limits come first but at shift 31.
        let r = range(1_000_000, 31, 1_000);
        assert!(r.counts(1 << 40).is_some());
        let r = range(10_000_000, 31, 1);
        assert_eq!(r.counts(u64::MAX / 2), None, "no u64 of cycles");
    }

    #[test]
    fn kvm_shuns_broken_and_short_timers() {
        let cpu =
            |signature, shift, tsc_khz| Cpu { tsc_khz, signature, preemption_timer_shift: shift };
        assert!(!cpu(0x306f2, Some(5), 2_300_000).avoids_preemption_timer(), "Haswell");
        assert!(cpu(0x306a8, Some(5), 2_300_000).avoids_preemption_timer(), "an Ivy Bridge");
        assert!(cpu(0x106a5, Some(5), 2_300_000).avoids_preemption_timer(), "Nehalem");
        assert!(cpu(0x306f2, None, 2_300_000).avoids_preemption_timer(), "without");
        assert!(cpu(0x306f2, Some(1), 2_300_000).avoids_preemption_timer(), "3.7 s");
    }
}
