//! `/proc/stat`: how long each CPU ran, and how long it was stolen.

use std::collections::BTreeMap;

use vcoop_policy::govern::CpuTime;

use crate::cpus::MOST_CPUS;

/// Nanoseconds of a tick of `/proc/stat`. `USER_HZ` is 100 on every architecture that has
/// paravirtual steal time, whatever the kernel's own ticks are.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Most that the sum of a CPU's counters of busy and stolen time is too small by: a tick each.
const ROUNDED_NS: u64 = 6 * TICK_NS;

/// Counters of each CPU since the guest booted, by number. Offline CPUs are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Counters of each CPU.
    pub cpus: BTreeMap<u32, Counters>,
}

/// Counters of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time that it ran or was stolen.
    pub time: CpuTime,
    /// Time in which it had nothing to run.
    pub idle_ns: u64,
}

impl Counters {
    /// Time since the counters were `before`, `elapsed_ns` ago; and whether more was counted than can be. Then the
    /// steal is left out: no VM competes because a live migration, or CPU hotplug, has set the counter anew.
    ///
    /// A vCPU that the host keeps from running counts nothing, and its steal late. `late_ns` is the most time that it
    /// may have to count still from before `elapsed_ns`.
    pub(crate) fn since(self, before: Self, elapsed_ns: u64, late_ns: &mut u64) -> (CpuTime, bool) {
        let CpuTime { busy_ns, steal_ns } = self.time.since(before.time);
        // The time of a look is the middle of a read: that between two reads can be twice as long.
        let most = late_ns.saturating_add(elapsed_ns).saturating_mul(2).saturating_add(ROUNDED_NS);
        *late_ns = if self == before { late_ns.saturating_add(elapsed_ns) } else { elapsed_ns };
        if busy_ns.saturating_add(steal_ns) <= most {
            return (CpuTime { busy_ns, steal_ns }, false);
        }
        (CpuTime { busy_ns: busy_ns.min(elapsed_ns), steal_ns: 0 }, true)
    }
}

impl Stat {
    /// Parses the file's bytes, whatever they are. Unreadable lines of CPUs are left out, and so is a last line without
    /// its end: it may have been cut off.
    pub fn parse(bytes: &[u8]) -> Self {
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        let mut cpus = BTreeMap::new();
        for line in bytes[..whole].split(|b| *b == b'\n') {
            let Some((cpu, time)) = str::from_utf8(line).ok().and_then(cpu) else { continue };
            cpus.entry(cpu).or_insert(time);
        }
        Self { cpus }
    }

    /// All CPUs together.
    pub fn sum(&self) -> CpuTime {
        self.cpus.values().fold(CpuTime::default(), |all, one| CpuTime {
            busy_ns: all.busy_ns.saturating_add(one.time.busy_ns),
            steal_ns: all.steal_ns.saturating_add(one.time.steal_ns),
        })
    }
}

/// A line: `cpu3 USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL GUEST GUEST_NICE`, in ticks. Time of
/// guests is in USER and NICE already.
fn cpu(line: &str) -> Option<(u32, Counters)> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    // The line of all together has no number, and begins with a space.
    let cpu = words.next().filter(|_| line.as_bytes()[3].is_ascii_digit())?;
    let cpu = cpu.parse().ok().filter(|cpu| *cpu < MOST_CPUS)?;
    let mut ticks = [0_u64; 8];
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
    let ns = |ticks: u64| ticks.saturating_mul(TICK_NS);
    let time = CpuTime { busy_ns: ns(busy), steal_ns: ns(steal) };
    Some((cpu, Counters { time, idle_ns: ns(idle.saturating_add(iowait)) }))
}

#[cfg(test)]
mod tests {
    use super::{Counters, Stat, TICK_NS};
    use crate::cpus::MOST_CPUS;
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use vcoop_policy::govern::CpuTime;

    fn time(busy: u64, steal: u64) -> CpuTime {
        CpuTime { busy_ns: busy * TICK_NS, steal_ns: steal * TICK_NS }
    }

    fn counters(busy: u64, steal: u64, idle: u64) -> Counters {
        Counters { time: time(busy, steal), idle_ns: idle * TICK_NS }
    }

    #[test]
    fn busy_is_all_but_idle_iowait_and_steal() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 100 200 8 16 7 1 2\n\
                    cpu3 10 0 0 5 0 0 0 0 0 0\nintr 1 2 3\nctxt 5\n";
        let stat = Stat::parse(text.as_bytes());
        assert_eq!(
            stat.cpus.into_iter().collect::<Vec<_>>(),
            [(0, counters(31, 7, 300)), (3, counters(10, 0, 5))]
        );
    }

    #[test]
    fn what_is_no_line_of_a_cpu_is_left_out() {
        let text = "cpu0 1 0 0 0 0 0 0 1\ncpu0 9 9 9 9 9 9 9 9\ncpu1 1 2 3\ncpux 1 1 1 1 1 1 1 1\n\
                    cpu8192 1 1 1 1 1 1 1 1\ncpu2 -1 1 1 1 1 1 1 1\n\ncpu 5 5 5 5 5 5 5 5 5\n\
                    cpu4 99999999999999999999 1 1 1 1 1 1 1\ncpu5 1 1 1 1 1 1 1 1";
        let stat = Stat::parse(text.as_bytes());
        assert_eq!(stat.cpus.into_iter().collect::<Vec<_>>(), [(0, counters(1, 1, 0))]);
        assert_eq!(Stat::parse(b""), Stat::default());
    }

    #[test]
    fn as_many_cpus_as_linux_can_have_are_read() {
        let lines = (0..4096).map(|cpu| format!("cpu{cpu} 1 0 0 9 0 0 0 2 0 0\n"));
        let stat = Stat::parse(lines.collect::<String>().as_bytes());
        assert_eq!((stat.cpus.len(), stat.sum()), (4096, time(4096, 8192)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..400)) {
            let stat = Stat::parse(&bytes);
            prop_assert!(stat.cpus.keys().all(|cpu| *cpu < MOST_CPUS));
            let _ = stat.sum();
        }

        /// What a kernel could write comes back, whatever else is around it.
        #[test]
        fn what_was_written_is_read(
            cpus in vec((0..64_u32, 0..1_000_000_u64, 0..1_000_000_u64), 0..20),
            junk in "[^\n]{0,40}",
        ) {
            let mut text = String::new();
            let mut expected = Stat::default();
            for (cpu, busy, steal) in cpus {
                text += &format!("{junk} \ncpu{cpu} {busy} 0 0 5 5 0 0 {steal} 0 0\n");
                expected.cpus.entry(cpu).or_insert(counters(busy, steal, 10));
            }
            let own = Stat::parse(format!("{junk} \n").as_bytes());
            if own.cpus.is_empty() {
                prop_assert_eq!(Stat::parse(text.as_bytes()), expected);
            }
        }

        /// Counters that go back are no time, and never a panic.
        #[test]
        fn counters_may_go_back(a in any::<[u64; 2]>(), b in any::<[u64; 2]>()) {
            let line = |t: [u64; 2]| format!("cpu0 {} {} 0 0 0 0 0 {}\n", t[0], t[1], t[1]);
            let (a, b) = (Stat::parse(line(a).as_bytes()), Stat::parse(line(b).as_bytes()));
            let since = b.sum().since(a.sum());
            prop_assert!(since.busy_ns <= b.sum().busy_ns && since.steal_ns <= b.sum().steal_ns);
        }
    }
}
