//! The run loop of a VMM that boosts its vCPU, on `vcoop-abi` and `vcoop-policy` alone.
//!
//! Real here: both areas of the shared page, the guest's half of the protocol, the policy with its
//! budget, and its driver. Four things stand in for a kernel, so that the program runs anywhere and
//! prints the same everywhere: the clock, `enter` for `KVM_RUN` with a guest in it, `set_thread` for
//! `sched_setattr`, and `wait_for_cpu` for the host's run queue. The same port on real threads is in
//! `crates/lab/src/port.rs` (/dev/kvm) and `crates/daemon/src/port.rs` (vCPU threads of other VMMs).
//!
//! `cargo run -p vcoop-examples --bin vmm-loop`

use std::convert::Infallible;
use std::sync::atomic::Ordering::Release;

use vcoop_abi::{GuestArea, GuestWords, Header, HostArea, Status, TaskIntent, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means, Ns};
use vcoop_policy::driver::{self, Port, SetError, VcpuDriver};
use vcoop_policy::thread::Policy;
use vcoop_policy::{GuestEvent, GuestHalf, HostPolicy, Injection, VmShared};

const US: Ns = 1_000;
const MS: Ns = 1_000 * US;
/// The guest's timer interrupt wakes a real-time task this often.
const PERIOD: Ns = 10 * MS;
/// How long a vCPU thread without a boost waits for the host's other threads.
const NEIGHBOURS_SLICE: Ns = 3 * MS;

/// 3 ms at once, as in the first dynamic-priority patches, and a twentieth of the time in the long run.
const DYNAMIC: DynamicConfig = DynamicConfig::new(
    Means::Rr(8),
    Budget { burst_ns: 3 * MS, refill_ppm: 50_000 },
    Budget { burst_ns: 12 * MS, refill_ppm: 200_000 },
);

/// Why the guest left guest mode.
enum Exit {
    /// It wrote `MSR_NOTIFY`: its boost can end.
    Notify,
    /// Anything else: an interrupt of the host's, a device access.
    Other,
}

struct Vcpu {
    /// In guest memory, where the guest registered it by `MSR_REGISTER`.
    guest: GuestArea,
    /// In the host's memory, mapped read-only into the guest.
    host: HostArea,
    /// Hooks of the guest's kernel.
    half: GuestHalf,
    driver: VcpuDriver,
    vm: VmShared,
    clock: Ns,
    thread: Policy,
    interrupt_pending: bool,
    /// What the guest's real-time task has left to do.
    urgent_work: Ns,
    /// From each interrupt's due time to the first instruction of the task, in nanoseconds.
    latencies: Vec<Ns>,
}

impl Vcpu {
    fn new(policy: HostPolicy) -> Self {
        let (guest, host) = (GuestArea::default(), HostArea::default());
        guest.header.store(Header::OURS.to_word(), Release);
        host.header.store(Header::OURS.to_word(), Release);
        Self {
            guest,
            host,
            half: GuestHalf::new(),
            driver: VcpuDriver::new(policy, Some(DYNAMIC.means), Policy::NORMAL),
            vm: VmShared::new(DYNAMIC.vm_budget, 0),
            clock: 0,
            thread: Policy::NORMAL,
            interrupt_pending: false,
            urgent_work: 0,
            latencies: Vec::new(),
        }
    }

    /// One event in the guest's kernel; true: it notifies, which is an exit.
    fn hook(&mut self, event: GuestEvent) -> bool {
        self.half.run(event, &self.guest, &self.host)
    }

    /// Runs the guest until it exits, at the latest at `until`. `due`: when its interrupt was.
    fn enter(&mut self, due: Ns, until: Ns, urgent_work: Ns) -> Exit {
        if std::mem::take(&mut self.interrupt_pending) {
            self.hook(GuestEvent::IrqEnter);
            self.hook(GuestEvent::RtEnqueued(TaskIntent::fifo(80)));
            self.hook(GuestEvent::IrqExit { softirq_pending: false });
            self.hook(GuestEvent::TaskSwitch { next: TaskIntent::fifo(80), pending: None });
            self.latencies.push(self.clock - due);
            self.urgent_work = urgent_work;
        }
        let done = self.clock.saturating_add(self.urgent_work);
        let exit_at = if self.urgent_work > 0 { until.min(done) } else { until };
        self.urgent_work = self.urgent_work.saturating_sub(exit_at - self.clock);
        self.clock = exit_at;
        let is_over = exit_at == done;
        if is_over && self.hook(GuestEvent::TaskSwitch { next: TaskIntent::FAIR, pending: None }) {
            return Exit::Notify;
        }
        Exit::Other
    }

    /// The host's run queue: only a real-time thread runs at once.
    fn wait_for_cpu(&mut self) {
        self.clock += if self.thread.is_rt() { 5 * US } else { NEIGHBOURS_SLICE };
    }
}

/// What differs from VMM to VMM; the rest of the driver is in `vcoop-policy`.
impl Port for Vcpu {
    type Error = Infallible;

    fn now(&mut self) -> Ns {
        self.clock
    }

    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.driver
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        f(&mut self.driver, &mut self.vm)
    }

    fn store_ticket(&mut self, ticket: u64) {
        self.host.ticket.store(ticket, Release);
    }

    fn store_status(&mut self, status: Status) {
        self.host.status.store(status.to_word(), Release);
    }

    fn store_budget(&mut self, left: Ns) {
        self.host.budget_left_ns.store(left, Release);
    }

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Infallible>> {
        self.thread = policy;
        Ok(())
    }

    /// The loop asks [`VcpuDriver::timer`] before each entry; a VMM arms a timer of the host's.
    fn arm(&mut self, _: Option<Ns>) {}

    fn fire(&mut self) -> Result<(), Infallible> {
        self.interrupt_pending = true;
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        GuestArea::fence();
        self.guest.read()
    }
}

/// Runs a guest for `periods`. `urgent_work`: what its real-time task does in each.
fn run(policy: HostPolicy, periods: u64, urgent_work: Ns) -> Result<Vcpu, Infallible> {
    let mut v = Vcpu::new(policy);
    driver::start(&mut v, true)?;
    for due in (1..=periods).map(|n| n * PERIOD) {
        v.clock = v.clock.max(due);
        driver::inject(&mut v, Injection::Timer, false)?;
        v.wait_for_cpu();
        while v.clock < due + PERIOD {
            driver::timer(&mut v)?;
            let until = v.driver.timer().unwrap_or(Ns::MAX).clamp(v.clock, due + PERIOD);
            match v.enter(due, until, urgent_work) {
                Exit::Notify => driver::notify(&mut v, false)?,
                Exit::Other => driver::exit(&mut v)?,
            }
        }
    }
    driver::stop(&mut v)?;
    Ok(v)
}

fn main() -> Result<(), Infallible> {
    println!("{:<34} {:>12} {:>12} {:>10}", "", "worst delay", "boosted", "throttled");
    for (name, policy, urgent_work) in [
        ("vanilla", HostPolicy::Vanilla, 50 * US),
        ("dynamic", HostPolicy::dynamic(DYNAMIC, 0), 50 * US),
        ("dynamic, a guest always urgent", HostPolicy::dynamic(DYNAMIC, 0), Ns::MAX),
    ] {
        let v = run(policy, 100, urgent_work)?;
        let (worst, stats) = (v.latencies.iter().max().unwrap_or(&0), v.driver.policy().stats());
        let share = stats.boosted_ns as f64 / v.clock as f64 * 100.0;
        let worst = worst / US;
        println!("{name:<34} {worst:>9} us {share:>10.1} % {:>9}x", stats.throttles);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(policy: HostPolicy, urgent_work: Ns) -> Vcpu {
        let Ok(v) = run(policy, 100, urgent_work);
        assert_eq!(v.thread, Policy::NORMAL, "the thread has its baseline back");
        assert_eq!(v.latencies.len(), 100);
        v
    }

    #[test]
    fn a_boost_replaces_the_wait_and_ends_with_the_urgent_work() {
        let vanilla = of(HostPolicy::Vanilla, 50 * US);
        assert!(vanilla.latencies.iter().all(|&ns| ns >= NEIGHBOURS_SLICE));
        let dynamic = of(HostPolicy::dynamic(DYNAMIC, 0), 50 * US);
        assert!(dynamic.latencies.iter().all(|&ns| ns < 10 * US));
        let stats = dynamic.driver.policy().stats();
        assert_eq!((stats.boosts, stats.notified, stats.throttles), (100, 100, 0));
        assert!(stats.boosted_ns < 100 * 60 * US);
    }

    #[test]
    fn a_guest_that_is_always_urgent_gets_its_budget_and_no_more() {
        let hostile = of(HostPolicy::dynamic(DYNAMIC, 0), Ns::MAX);
        let stats = hostile.driver.policy().stats();
        let Budget { burst_ns, refill_ppm } = DYNAMIC.vcpu_budget;
        let most = burst_ns + hostile.clock * u64::from(refill_ppm) / 1_000_000;
        assert!(stats.throttles > 0 && stats.boosted_ns <= most + US, "{stats:?}, at most {most}");
    }
}
