//! The daemon's page of metrics.

use std::fmt;
use std::io;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use vcoop_service::metrics::{self, Listen, MetricsServer};
use vcoop_threads::run_time;
use vcoop_vmm::Proc;

use crate::protocol::{InterruptStatus, Refusal, Status, VcpuStatus};

/// A vCPU on this host.
#[derive(Clone, Debug)]
struct VcpuSample {
    vm: String,
    pid: u32,
    index: u32,
    ran_ns: u64,
    waited_ns: u64,
}

/// The data of a page, as of a request.
#[derive(Clone, Debug)]
struct Page {
    status: Status,
    vcpus: Vec<VcpuSample>,
}

/// The text of a page. Without the VMs that run there is none: series that end would mean that VMs have ended.
fn text(status: Status) -> io::Result<String> {
    let scan = Proc::default().scan()?;
    let vcpus = scan.vms.iter().flat_map(|vm| {
        vm.vcpus.iter().map(|vcpu| {
            let time = run_time(vcpu.thread.tid as i32);
            let (ran_ns, waited_ns) = (time.ran_ns, time.waited_ns);
            VcpuSample { vm: vm.name.clone(), pid: vm.pid, index: vcpu.index, ran_ns, waited_ns }
        })
    });
    Ok(metrics::text(Page { status, vcpus: vcpus.collect() }))
}

const NS: f64 = 1e9;
const COUNTER: MetricType = MetricType::Counter;
const GAUGE: MetricType = MetricType::Gauge;

/// Labels of a VM or a vCPU.
type Labels = Vec<(&'static str, String)>;
/// A VM or a vCPU, and a value of it.
type Value = (Labels, f64);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (status, seconds) = (&self.status, Some(Unit::Seconds));
        let mut one = |name, help, unit: &Option<Unit>, value: f64| {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), COUNTER)?;
            ConstCounter::new(value).encode(metric)
        };
        let help = "CPU time of the thread that drives vCPUs";
        one("vcoop_engine_cpu", help, &seconds, status.engine_cpu_ns as f64 / NS)?;
        let help = "Sleeps of vCPU threads that the engine was told of";
        one("vcoop_engine_events", help, &None, status.events as f64)?;
        let help = "Time from those sleeps until the engine was told of them";
        one("vcoop_engine_reaction", help, &seconds, status.reaction_sum_ns as f64 / NS)?;

        // A counter, with a value for each of some vCPUs or VMs.
        let mut many = |name,
                        help,
                        unit: &Option<Unit>,
                        values: &mut dyn Iterator<Item = Value>|
         -> fmt::Result {
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), COUNTER)?;
            for (labels, value) in values {
                let labels = labels.as_slice();
                ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        };
        let all = |of: fn(&VcpuSample) -> u64| {
            self.vcpus.iter().map(move |v| (labels(&v.vm, v.pid, v.index), of(v) as f64))
        };
        let mut times = all(|v| v.ran_ns).map(in_seconds);
        many("vcoop_vcpu_ran", "CPU time of a vCPU's thread", &seconds, &mut times)?;
        let help = "Time for which a vCPU's thread was runnable and did not run: the guest's steal";
        let mut times = all(|v| v.waited_ns).map(in_seconds);
        many("vcoop_vcpu_run_delay", help, &seconds, &mut times)?;
        let help = "Boosts, since the policy was applied";
        many("vcoop_vcpu_boosts", help, &None, &mut self.driven(|v| Some(v.boosts)))?;
        let mut times = self.driven(|v| Some(v.boosted_ns)).map(in_seconds);
        many("vcoop_vcpu_boosted", "Time boosted and awake", &seconds, &mut times)?;
        let help = "Times that the budget ended or prevented a boost";
        many("vcoop_vcpu_throttles", help, &None, &mut self.driven(|v| Some(v.throttles)))?;
        let help = "Throttles because boosts lasted longer than longest_boost allows";
        many("vcoop_vcpu_throttles_too_long", help, &None, &mut self.driven(|v| Some(v.too_long)))?;
        let help = "Throttles by the VM's budget, where the vCPU's own had tokens left";
        many("vcoop_vcpu_throttles_by_vm", help, &None, &mut self.driven(|v| Some(v.by_vm)))?;
        let help = "Boosts that were due and not given";
        many("vcoop_vcpu_denied", help, &None, &mut self.driven(|v| Some(v.denied)))?;

        let help = "Interrupts for a VM's vCPUs that the engine was told of";
        many("vcoop_vm_interrupts", help, &None, &mut self.interrupts(|i| i.heard))?;
        let help =
            "Interrupts not passed to the policy, because they came too soon after one that was";
        many("vcoop_vm_interrupts_coalesced", help, &None, &mut self.interrupts(|i| i.coalesced))?;
        let help = "Interrupts that found their vCPU boosted, or boosted it";
        many("vcoop_vm_interrupts_boosted", help, &None, &mut self.interrupts(|i| i.boosted))?;

        let all = status.vms.iter().filter_map(|vm| vm.interrupts.as_ref());
        if let Some(lost) = all.map(|i| i.lost).max() {
            let help = "Interrupts of any VM that were lost, because too many came at once";
            let name = "vcoop_engine_interrupts_lost";
            let metric = encoder.encode_descriptor(name, help, None, COUNTER)?;
            ConstCounter::new(lost as f64).encode(metric)?;
        }
        let (name, help) = ("vcoop_vcpu_budget", "Boosted time left");
        let mut metric = encoder.encode_descriptor(name, help, seconds.as_ref(), GAUGE)?;
        for (labels, value) in self.driven(|v| v.budget_left_ns).map(in_seconds) {
            ConstGauge::new(value).encode(metric.encode_family(&labels.as_slice())?)?;
        }
        let (name, help) = ("vcoop_vm_policy", "The policy in force on a VM");
        let mut metric = encoder.encode_descriptor(name, help, None, GAUGE)?;
        for vm in &status.vms {
            let pid = vm.vm.pid.to_string();
            let labels = [("vm", vm.vm.name.clone()), ("pid", pid), ("policy", vm.policy.clone())];
            ConstGauge::new(1_i64).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Whether the policy boosts nobody, because hardly any thread of the host waits for a CPU";
        let mut metric = encoder.encode_descriptor("vcoop_vm_at_rest", help, None, GAUGE)?;
        for vm in &status.vms {
            let labels = [("vm", vm.vm.name.clone()), ("pid", vm.vm.pid.to_string())];
            ConstGauge::new(i64::from(vm.rests)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Page {
    /// A value of each vCPU that has it and that a policy is applied to.
    fn driven(&self, of: fn(&VcpuStatus) -> Option<u64>) -> impl Iterator<Item = Value> {
        self.status.vms.iter().flat_map(move |vm| {
            let labels = |v: &VcpuStatus| labels(&vm.vm.name, vm.vm.pid, v.index);
            vm.driven().filter_map(move |v| Some((labels(v), of(v)? as f64)))
        })
    }

    /// A value of each VM whose interrupts are watched.
    fn interrupts(&self, of: fn(&InterruptStatus) -> u64) -> impl Iterator<Item = Value> {
        self.status.vms.iter().filter_map(move |vm| {
            let labels = vec![("vm", vm.vm.name.clone()), ("pid", vm.vm.pid.to_string())];
            Some((labels, of(vm.interrupts.as_ref()?) as f64))
        })
    }
}

fn labels(vm: &str, pid: u32, vcpu: u32) -> Labels {
    vec![("vm", vm.to_owned()), ("pid", pid.to_string()), ("vcpu", vcpu.to_string())]
}

fn in_seconds((labels, ns): Value) -> Value {
    (labels, ns / NS)
}

/// Serves metrics of what `status` says at each request.
///
/// # Errors
///
/// The listening socket cannot be made.
pub(crate) fn serve(
    listen: &Listen,
    status: impl Fn() -> Result<Status, Refusal> + Send + Sync + 'static,
) -> io::Result<MetricsServer> {
    metrics::serve(listen, move || text(status().map_err(io::Error::other)?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use vcoop_service::metrics;
    use vcoop_testing::metric_names;

    use super::{Page, VcpuSample};
    use crate::protocol::{InterruptStatus, Status, VcpuStatus, VmId, VmStatus};

    /// Prefixes of the daemon's metrics, after `vcoop_`.
    const OWN: [&str; 3] = ["vcpu_", "vm_", "engine_"];

    /// A page with every metric.
    fn text() -> String {
        let vm = VmId { pid: 7, start_ticks: 1, name: "a\"b\nc".to_owned() };
        let seen =
            VcpuSample { vm: vm.name.clone(), pid: 7, index: 1, ran_ns: 250_000_000, waited_ns: 1 };
        let vcpu = VcpuStatus {
            boosts: 3,
            throttles: 9,
            too_long: 4,
            by_vm: 2,
            boosted_ns: 2_500_000_000,
            budget_left_ns: Some(500_000_000),
            ..VcpuStatus::default()
        };
        let alone = VcpuStatus { index: 1, left_alone: Some("why".to_owned()), ..vcpu.clone() };
        let heard = InterruptStatus {
            heard: 9,
            coalesced: 5,
            lost: 2,
            boosted: 8,
            ..InterruptStatus::default()
        };
        let vms = vec![VmStatus {
            vm,
            policy: "wake-boost".to_owned(),
            vcpus: vec![vcpu, alone],
            rests: true,
            interrupts: Some(heard),
            ..VmStatus::default()
        }];
        metrics::text(Page { status: Status { vms, ..Status::default() }, vcpus: vec![seen] })
    }

    #[test]
    fn names_are_escaped_and_units_are_base_units() {
        let text = text();
        for line in [
            "vcoop_vcpu_ran_seconds_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"1\"} 0.25",
            "vcoop_vcpu_boosted_seconds_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 2.5",
            "vcoop_vcpu_boosts_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 3.0",
            "vcoop_vcpu_throttles_too_long_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 4.0",
            "vcoop_vcpu_throttles_by_vm_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 2.0",
            "vcoop_vcpu_budget_seconds{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 0.5",
            "vcoop_vm_interrupts_total{vm=\"a\\\"b\\nc\",pid=\"7\"} 9.0",
            "vcoop_vm_interrupts_coalesced_total{vm=\"a\\\"b\\nc\",pid=\"7\"} 5.0",
            "vcoop_vm_interrupts_boosted_total{vm=\"a\\\"b\\nc\",pid=\"7\"} 8.0",
            "vcoop_engine_interrupts_lost_total 2.0",
            "vcoop_vm_policy{vm=\"a\\\"b\\nc\",pid=\"7\",policy=\"wake-boost\"} 1",
            "vcoop_vm_at_rest{vm=\"a\\\"b\\nc\",pid=\"7\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        // A vCPU that is left alone has no boosts.
        assert!(!text.contains("boosts_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"1\""), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn documentation_and_dashboard_name_the_metrics_that_there_are() {
        let file = |path: &str| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            fs::read_to_string(root.join(path)).unwrap()
        };
        let exported = metric_names(&text(), &OWN);
        assert_eq!(metric_names(&file("docs/src/daemon.md"), &OWN), exported);
        let drawn = metric_names(&file("packaging/grafana/vcoop.json"), &OWN);
        assert_eq!(drawn, exported, "the dashboard and what is exported");
    }
}
