//! What the daemon tells a monitoring system, as OpenMetrics text over HTTP.
//!
//! It answers every request with the same page, whatever was asked, one connection at a time, and
//! waits for nobody for long.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use vcoop_threads::run_time;
use vcoop_vmm::Proc;

use crate::config::Listen;
use crate::protocol::{Status, VcpuStatus, VmStatus};
use crate::service::Shared;

/// So long a client may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request.
const MOST_REQUEST: u64 = 8 << 10;
/// What the page is.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A vCPU on this host.
#[derive(Clone, Debug)]
struct Seen {
    vm: String,
    pid: u32,
    index: u32,
    ran_ns: u64,
    waited_ns: u64,
}

/// What is known at the moment of a request.
#[derive(Clone, Debug)]
struct Page {
    status: Status,
    vcpus: Vec<Seen>,
}

/// The text of a page.
fn text(status: Status) -> String {
    let scan = Proc::default().scan().unwrap_or_default();
    let vcpus = scan.vms.iter().flat_map(|vm| {
        vm.vcpus.iter().map(|vcpu| {
            let time = run_time(vcpu.thread.tid as i32);
            let (ran_ns, waited_ns) = (time.ran_ns, time.waited_ns);
            Seen { vm: vm.name.clone(), pid: vm.pid, index: vcpu.index, ran_ns, waited_ns }
        })
    });
    let page = Page { status, vcpus: vcpus.collect() };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

const NS: f64 = 1e9;

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.status;
        let e = &mut encoder;
        one(
            e,
            "vcoop_engine_cpu",
            "CPU time of the thread that drives vCPUs",
            Some(Unit::Seconds),
            status.engine_cpu_ns as f64 / NS,
        )?;
        one(
            e,
            "vcoop_engine_events",
            "Sleeps of vCPU threads that it heard of",
            None,
            status.events as f64,
        )?;
        one(
            e,
            "vcoop_engine_reaction",
            "Time from these until it heard of them",
            Some(Unit::Seconds),
            status.reaction_sum_ns as f64 / NS,
        )?;
        let mut family = |name, help, unit: Option<Unit>, of: fn(&Seen) -> f64| -> fmt::Result {
            let counter = MetricType::Counter;
            let mut metric = e.encode_descriptor(name, help, unit.as_ref(), counter)?;
            for v in &self.vcpus {
                let labels = labels(&v.vm, v.pid, v.index);
                ConstCounter::new(of(v)).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        };
        family("vcoop_vcpu_ran", "CPU time of a vCPU's thread", Some(Unit::Seconds), |v| {
            v.ran_ns as f64 / NS
        })?;
        family(
            "vcoop_vcpu_run_delay",
            "Time for which it could have run and did not: the guest's steal",
            Some(Unit::Seconds),
            |v| v.waited_ns as f64 / NS,
        )?;
        let mut boosts =
            |name, help, unit: Option<Unit>, of: fn(&VcpuStatus) -> f64| -> fmt::Result {
                let counter = MetricType::Counter;
                let mut metric = e.encode_descriptor(name, help, unit.as_ref(), counter)?;
                for (vm, v) in self.driven() {
                    let labels = labels(&vm.vm.name, vm.vm.pid, v.index);
                    ConstCounter::new(of(v)).encode(metric.encode_family(&labels)?)?;
                }
                Ok(())
            };
        boosts("vcoop_vcpu_boosts", "Boosts, since the policy was applied", None, |v| {
            v.boosts as f64
        })?;
        boosts("vcoop_vcpu_boosted", "Time boosted and awake", Some(Unit::Seconds), |v| {
            v.boosted_ns as f64 / NS
        })?;
        boosts("vcoop_vcpu_throttles", "Times the budget ended or prevented a boost", None, |v| {
            v.throttles as f64
        })?;
        boosts("vcoop_vcpu_denied", "Boosts that were due and not given", None, |v| {
            v.denied as f64
        })?;
        let unit = Some(Unit::Seconds);
        let mut metric = e.encode_descriptor(
            "vcoop_vcpu_budget",
            "Boosted time left",
            unit.as_ref(),
            MetricType::Gauge,
        )?;
        for (vm, v) in self.driven() {
            if let Some(left) = v.budget_left_ns {
                let labels = labels(&vm.vm.name, vm.vm.pid, v.index);
                ConstGauge::new(left as f64 / NS).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = e.encode_descriptor(
            "vcoop_vm_policy",
            "The policy in force on a VM",
            None,
            MetricType::Gauge,
        )?;
        for vm in &status.vms {
            let pid = vm.vm.pid.to_string();
            let labels = [("vm", vm.vm.name.clone()), ("pid", pid), ("policy", vm.policy.clone())];
            ConstGauge::new(1_i64).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Page {
    /// vCPUs that a policy is applied to.
    fn driven(&self) -> impl Iterator<Item = (&VmStatus, &VcpuStatus)> {
        let all = self.status.vms.iter().flat_map(|vm| vm.vcpus.iter().map(move |v| (vm, v)));
        all.filter(|(_, v)| v.left_alone.is_none())
    }
}

fn labels(vm: &str, pid: u32, vcpu: u32) -> [(&'static str, String); 3] {
    [("vm", vm.to_owned()), ("pid", pid.to_string()), ("vcpu", vcpu.to_string())]
}

fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: f64,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

/// Serves metrics until the process ends.
///
/// # Errors
///
/// Nobody can listen there.
pub(crate) fn serve(shared: &Arc<Shared>, listen: &Listen) -> io::Result<()> {
    let shared = shared.clone();
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            thread::Builder::new().name("metrics".to_owned()).spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    let _ = stream.set_write_timeout(Some(PATIENCE));
                    let _ = answer(&stream, &stream, &shared);
                }
            })?;
        }
        Listen::Unix(path) => {
            let listener = bind(path)?;
            thread::Builder::new().name("metrics".to_owned()).spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    let _ = stream.set_write_timeout(Some(PATIENCE));
                    let _ = answer(&stream, &stream, &shared);
                }
            })?;
        }
    }
    Ok(())
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // One that an earlier daemon has left; anything else stays, and is an error.
    if std::os::unix::net::UnixStream::connect(path)
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn answer(stream: impl Read, mut out: impl Write, shared: &Shared) -> io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    let mut stream = stream.take(MOST_REQUEST);
    while !request.ends_with(b"\r\n\r\n") && !request.ends_with(b"\n\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        request.extend_from_slice(&byte);
    }
    let status = shared.status().map_err(io::Error::other)?;
    let text = text(status);
    let length = text.len();
    write!(
        out,
        "HTTP/1.0 200 OK\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\n\r\n{text}"
    )?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::protocol::{Status, VcpuStatus, VmId, VmStatus};

    #[test]
    fn names_are_escaped_and_units_are_base_units() {
        let vm = VmId { pid: 7, start_ticks: 1, name: "a\"b\nc".to_owned() };
        let vcpu = VcpuStatus {
            boosts: 3,
            boosted_ns: 2_500_000_000,
            budget_left_ns: Some(500_000_000),
            ..VcpuStatus::default()
        };
        let alone = VcpuStatus { index: 1, left_alone: Some("why".to_owned()), ..vcpu.clone() };
        let policy = "wake-boost".to_owned();
        let vms = vec![VmStatus { vm, policy, for_ns: 1, vcpus: vec![vcpu, alone] }];
        let text = text(Status { vms, ..Status::default() });
        for line in [
            "vcoop_vcpu_boosted_seconds_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 2.5",
            "vcoop_vcpu_boosts_total{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 3.0",
            "vcoop_vcpu_budget_seconds{vm=\"a\\\"b\\nc\",pid=\"7\",vcpu=\"0\"} 0.5",
            "vcoop_vm_policy{vm=\"a\\\"b\\nc\",pid=\"7\",policy=\"wake-boost\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("vcpu=\"1\"") && text.ends_with("# EOF\n"), "{text}");
    }
}
