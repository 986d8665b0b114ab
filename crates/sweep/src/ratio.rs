//! Sets a ratio of vCPUs to pCPUs by a numeric field.
//!
//! vCPUs and pCPUs are both linear in the number of pCPUs, of VMs, or of a VM's vCPUs. So two evaluations of the
//! scenario and one division give the number.

use vcoop_model::diagnostic::{Diagnostic, Diagnostics};
use vcoop_model::plan::Plan;
use vcoop_model::sweep::RATIO;

/// Largest relative difference between a point's ratio and the requested one: integers do not reach all.
const NEAR: f64 = 0.1;

/// vCPUs of all VMs, and pCPUs of the host.
pub fn size(plan: &Plan) -> (u32, u32) {
    (plan.vms.iter().map(|vm| vm.level.topology.cpus()).sum(), plan.host.sched.cpus())
}

/// The error of a scenario that does not accept `n` for `by`, in terms of the ratio: a topology with `cores_per_llc`,
/// for example, fixes the number of pCPUs.
pub fn refused(by: &str, n: i64, found: Diagnostics) -> Diagnostics {
    let whole = |d: Diagnostic| {
        let message = format!("`{by}` cannot be {n} in this scenario: {}", d.message);
        let help = "reach the ratio by another number, as { by = \"vm.NAME.count\", values = [1, 2] }, or \
                    vary a copy of the scenario without what fixes this one (a topology's `cores_per_llc`)";
        Diagnostic::whole(RATIO, message, Some(help.to_owned()))
    };
    Diagnostics(found.0.into_iter().map(whole).collect())
}

/// The number of `by` that is nearest to a ratio; `size` gives vCPUs and pCPUs for a number.
///
/// # Errors
///
/// Errors of `size`; a field that changes neither, or a ratio that no number comes near.
pub fn reach(
    by: &str,
    ratio: &str,
    mut size: impl FnMut(i64) -> Result<(u32, u32), Diagnostics>,
) -> Result<i64, Diagnostics> {
    let no = |message: String, help: Option<String>| -> Diagnostics {
        Diagnostic::whole(RATIO, message, help).into()
    };
    let wanted: f64 = ratio.parse().map_err(|_| no(format!("`{ratio}` is no number"), None))?;
    let two = |(vcpus, pcpus): (u32, u32)| (f64::from(vcpus), f64::from(pcpus));
    // A VM has one vCPU at least, and fewer than two pCPUs may not fit its pins: 2 and 3 always can
    // where 1 can.
    let (low, high) = (two(size(2)?), two(size(3)?));
    let (vcpus, pcpus) = (high.0 - low.0, high.1 - low.1);
    if vcpus == 0.0 && pcpus == 0.0 {
        let help = "host.pcpus, vm.NAME.count or vm.NAME.vcpus do".to_owned();
        return Err(no(format!("`{by}` changes neither vCPUs nor pCPUs"), Some(help)));
    }
    // (low.0 + vcpus (n - 2)) = wanted (low.1 + pcpus (n - 2))
    let exact = 2.0 + (wanted * low.1 - low.0) / (vcpus - wanted * pcpus);
    let ratio_at = |n: f64| (low.0 + vcpus * (n - 2.0)) / (low.1 + pcpus * (n - 2.0));
    let off = |n: f64| {
        let at = ratio_at(n);
        if at.is_finite() && at > 0.0 { libm::fabs(libm::log(at / wanted)) } else { f64::INFINITY }
    };
    let below = if exact.is_finite() { libm::floor(exact).clamp(1.0, 1e6) } else { 1.0 };
    let n = if off(below) <= off(below + 1.0) { below } else { below + 1.0 };
    if off(n) > libm::log(1.0 + NEAR) {
        let message = format!(
            "no `{by}` makes it {ratio} vCPUs a pCPU: {n} makes it {:.2}, the nearest",
            ratio_at(n)
        );
        return Err(no(message, None));
    }
    Ok(n as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcpus_vms_and_vcpus_reach_a_ratio() {
        let by = |of: fn(i64) -> (i64, i64), ratio: &str| {
            let size = |n| {
                let (vcpus, pcpus) = of(n);
                Ok((vcpus as u32, pcpus as u32))
            };
            reach("x", ratio, size).map_err(|e| e.to_string())
        };
        // 16 vCPUs on n pCPUs.
        assert_eq!(by(|n| (16, n), "4"), Ok(4));
        assert_eq!(by(|n| (16, n), "0.5"), Ok(32));
        assert_eq!(by(|n| (16, n), "3"), Ok(5), "16 / 5 is 3.2");
        // n VMs of 4 on 8 pCPUs, beside one of 2.
        let far = by(|n| (4 * n + 2, 8), "2").unwrap_err();
        assert!(far.contains("4 makes it 2.25, the nearest"), "14 or 18 vCPUs for 16: {far}");
        assert_eq!(by(|n| (4 * n, 8), "0.5"), Ok(1));
        let no = by(|n| (1, n), "4").unwrap_err();
        assert!(no.contains("1 makes it 1.00"), "{no}");
        assert!(by(|_| (4, 4), "2").unwrap_err().contains("neither"));
        assert!(by(|n| (4 * n, 8), "0.1").unwrap_err().contains("0.50, the nearest"));
    }
}
