//! The guests' unit of work, on the host.
#![allow(unsafe_code, reason = "counts in assembly, as the guests do")]

use vcoop_threads::tsc::{Clock, tsc};

/// Iterations a millisecond of the guest's unit of work, by timing the same counting loop here. The fastest of several
/// tries: an interruption makes a try slower, never faster.
pub(crate) fn iterations_per_ms(clock: &Clock) -> u64 {
    const N: u64 = 400_000;
    let best = (0..12).map(|_| {
        let start = tsc();
        spin(N);
        clock.to_ns(tsc() - start).max(1)
    });
    N * 1_000_000 / best.min().unwrap_or(1)
}

/// The unit of work, so many times.
pub(crate) fn spin(iterations: u64) {
    if iterations > 0 {
        // SAFETY: touches one register.
        unsafe {
            core::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) iterations => _,
                options(nomem, nostack));
        }
    }
}
