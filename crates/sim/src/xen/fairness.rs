//! Deviation of domains from their fair shares.

use vcoop_model::plan::Plan;

use crate::host::scheduler::Scheduler;
use crate::queue::Ns;

/// A domain counts if it wanted its CPUs for at least this part of the time.
const CONTENDS: f64 = 0.9;

/// Use of one domain in some time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    /// Weight of each of its vCPUs.
    weight: u32,
    /// Number of its vCPUs.
    vcpus: u32,
    /// Most CPU it may have, in percent of one pCPU; 0 = what its vCPUs can use.
    cap_pct: u32,
    /// CPU time.
    exec_ns: Ns,
    /// Time that its vCPUs waited for a CPU. May leave out waits that are not over.
    wait_ns: Ns,
}

/// How unfair a credit scheduler was to VMs that always wanted CPU. `used`: CPU time of each VM, and time that its
/// vCPUs waited.
pub(crate) fn error_of(
    host: &Scheduler,
    plan: &Plan,
    used: impl Iterator<Item = (Ns, Ns)>,
    ns: Ns,
) -> Option<f64> {
    let credit1 = host.credit1()?;
    let shares: Vec<Share> = plan
        .vms
        .iter()
        .zip(used)
        .map(|(vm, (exec_ns, wait_ns))| {
            let domain = credit1.config().domains[usize::from(vm.group.unwrap_or(0))];
            let vcpus = vm.level.topology.cpus();
            Share { weight: domain.weight, vcpus, cap_pct: domain.cap_pct, exec_ns, wait_ns }
        })
        .collect();
    error_pct(&shares, ns.max(1))
}

/// Mean of `|attained / entitled - 1|` over the domains that contended, in percent; `None` with
/// fewer than two.
///
/// A domain contends if its vCPUs ran or waited for nine tenths of the time. Together, contending domains are entitled
/// to what they attained together: CPU that others took, or that pinning kept from all of them, does not count. A
/// domain is entitled to a part of that by weight times vCPUs, but to no more than its vCPUs can run, nor than its cap;
/// the rest goes to the others by the same rule. Pinning of single domains is ignored.
fn error_pct(shares: &[Share], ns: Ns) -> Option<f64> {
    let most = |s: &Share| {
        let vcpus = f64::from(s.vcpus);
        if s.cap_pct == 0 { vcpus } else { vcpus.min(f64::from(s.cap_pct) / 100.0) }
    };
    let contends = |s: &&Share| {
        let wanted = (s.exec_ns + s.wait_ns) as f64 / ns as f64;
        wanted >= CONTENDS * f64::from(s.vcpus)
    };
    let shares: Vec<&Share> = shares.iter().filter(contends).collect();
    if shares.len() < 2 {
        return None;
    }
    let attained: Vec<f64> = shares.iter().map(|s| s.exec_ns as f64 / ns as f64).collect();
    let mut entitled = vec![None; shares.len()];
    let mut left: f64 = attained.iter().sum();
    // Each round either gives one VM all that it wants, or hands out what is left.
    loop {
        let claim = |s: &Share| f64::from(s.weight) * f64::from(s.vcpus);
        let open = |(s, e): (&&Share, &Option<f64>)| if e.is_none() { claim(s) } else { 0.0 };
        let claims: f64 = shares.iter().zip(&entitled).map(open).sum();
        if claims == 0.0 {
            break;
        }
        let unit = left / claims;
        let mut full = false;
        for (s, e) in shares.iter().zip(&mut entitled) {
            if e.is_none() && unit * claim(s) > most(s) {
                *e = Some(most(s));
                left = (left - most(s)).max(0.0);
                full = true;
            }
        }
        if !full {
            for (s, e) in shares.iter().zip(&mut entitled) {
                e.get_or_insert(unit * claim(s));
            }
            break;
        }
    }
    let off = |(a, e): (&f64, &Option<f64>)| {
        let e = e.unwrap_or(0.0);
        if e > 0.0 { (a / e - 1.0).abs() } else { 0.0 }
    };
    let sum: f64 = attained.iter().zip(&entitled).map(off).sum();
    Some(100.0 * sum / shares.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::{Share, error_pct};

    const S: u64 = 1_000_000_000;

    fn always(weight: u32, vcpus: u32, exec_pct: u64) -> Share {
        let exec_ns = exec_pct * S / 100;
        let wait_ns = u64::from(vcpus) * S - exec_ns;
        Share { weight, vcpus, cap_pct: 0, exec_ns, wait_ns }
    }

    #[track_caller]
    fn is(shares: &[Share], want: f64) {
        let got = error_pct(shares, S).unwrap();
        assert!((got - want).abs() < 1e-9, "{got}, want {want}");
    }

    #[test]
    fn shares_by_weight_are_fair() {
        is(&[always(256, 1, 25), always(256, 1, 25), always(512, 1, 50)], 0.0);
        is(&[always(256, 2, 60), always(256, 1, 30)], 0.0);
    }

    #[test]
    fn the_error_is_relative_to_what_each_should_have() {
        // 60 and 40 instead of 50 each.
        is(&[always(256, 1, 60), always(256, 1, 40)], 20.0);
        // 75 instead of 80, 25 instead of 20.
        is(&[always(1024, 1, 75), always(256, 1, 25)], (5.0 / 80.0 + 5.0 / 20.0) / 2.0 * 100.0);
    }

    #[test]
    fn what_one_cannot_use_is_the_others() {
        // Two pCPUs: by weight the first should have 1.8, and can have 1.
        is(&[always(2304, 1, 100), always(256, 1, 100)], 0.0);
        is(&[always(2304, 1, 100), always(128, 1, 50), always(128, 1, 50)], 0.0);
        let capped = Share { cap_pct: 20, ..always(256, 1, 20) };
        is(&[capped, always(256, 1, 80)], 0.0);
    }

    #[test]
    fn who_sleeps_does_not_count() {
        let sleeps = Share { wait_ns: 0, ..always(256, 1, 10) };
        is(&[always(256, 1, 45), sleeps, always(256, 1, 45)], 0.0);
        assert_eq!(error_pct(&[always(256, 1, 90), sleeps], S), None);
    }
}
