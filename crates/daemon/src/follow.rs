//! Applies the policies of rules to VMs as they come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use vcoop_vmm::{Proc, SkippedProcesses, VcpuThread, Vm};

use crate::config::Config;
use crate::protocol::{VcpuStatus, VmId, VmStatus};
use crate::service::{Owner, Service};

/// Time between two looks, if processes or threads have begun since the last one.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two looks if none has begun; also the time between two looks at all processes.
const REST: Duration = Duration::from_secs(10);
/// Longest time of one look, so that the daemon can report that it is alive. The rest of the VMs come first in the next
/// look, which follows at once.
const MOST_LOOK: Duration = Duration::from_secs(2);
/// A policy that could not be applied is tried again after this many times the time that the try took,
const SELDOM: u32 = 50;
/// but after at most this time.
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// A VM that starts takes up to this time to name the threads of its vCPUs.
const STARTS: Duration = Duration::from_secs(5);
/// A policy that has ended by itself is applied again after this time, and after twice as long each time,
const FIRST: Duration = Duration::from_secs(10);
/// but after at most this time. A policy that was in force for this long starts at the first delay again.
const LONGEST: Duration = Duration::from_secs(600);

/// A thread: its number and when it started.
type ThreadId = (u32, u64);

fn threads_of(vcpus: &[VcpuThread]) -> Vec<ThreadId> {
    vcpus.iter().map(|vcpu| (vcpu.thread.tid, vcpu.thread.start_time)).collect()
}

/// How many vCPUs are left alone, and why the first of them is, in words.
pub fn left_alone(vcpus: &[VcpuStatus]) -> Option<String> {
    let why = |v: &VcpuStatus| Some((v.index, v.left_alone.clone()?));
    let (first, why) = vcpus.iter().find_map(why)?;
    let alone = vcpus.iter().filter(|v| v.left_alone.is_some()).count();
    Some(format!("{alone} left alone (vCPU {first}: {why})"))
}

/// A VM that is followed.
#[derive(Debug)]
struct FollowedVm {
    first_seen: Instant,
    /// The threads of its vCPUs that its policy was applied to.
    vcpus: Vec<ThreadId>,
    /// The last message about it, so that messages do not repeat.
    said: Option<String>,
    /// Which of its vCPUs are left alone, and why, as of the last look.
    alone: Option<String>,
    again: Retry,
    /// No new try before this time, because its policy could not be applied.
    pause: Option<Instant>,
}

/// When to apply a policy again that has ended by itself: the kernel may have ended `scx_vcoop`, or the engine may have
/// failed.
#[derive(Debug, Default)]
struct Retry {
    /// When it was applied.
    applied: Option<Instant>,
    /// How often it has ended soon after it was applied, and when it is due again.
    times: u32,
    due: Option<Instant>,
}

impl Retry {
    /// A try has ended; `done`: the policy was applied.
    fn tried(&mut self, now: Instant, done: bool) {
        self.applied = done.then_some(now);
        self.due = None;
    }

    /// The policy is not in force. Returns when to apply it again, and whether this is the first call since it ended.
    fn due(&mut self, now: Instant) -> (Instant, bool) {
        if let Some(due) = self.due {
            return (due, false);
        }
        if self.applied.is_some_and(|at| now.duration_since(at) >= LONGEST) {
            self.times = 0;
        }
        let delay = FIRST.saturating_mul(1 << self.times.min(16)).min(LONGEST);
        self.times += 1;
        (*self.due.insert(now + delay), true)
    }
}

/// All elements, beginning behind the one for which `is_last`.
fn from_behind<T>(all: &[T], is_last: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
    let (before, behind) = all.split_at(all.iter().position(is_last).map_or(0, |at| at + 1));
    behind.iter().chain(before)
}

/// Time from a look to the next one. `is_whole`: the look had time for all VMs.
fn interval(quiet: bool, is_whole: bool) -> Duration {
    match (is_whole, quiet) {
        (false, _) => Duration::ZERO,
        (true, true) => REST,
        (true, false) => LOOK,
    }
}

/// Pause after a failed try that took `took`: a search of much memory for a guest's driver may take a second or two.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(SELDOM).min(MOST_PAUSE)
}

/// Applies rules to the VMs of this host.
#[derive(Debug)]
pub struct Follower<'a> {
    service: &'a Service,
    config: Config,
    vms: BTreeMap<VmId, FollowedVm>,
    looked: Option<Instant>,
    /// The newest process or thread of this host at the last look.
    last: String,
    /// Processes that ran no VM at the last look at all processes, and the time of that look.
    passed: SkippedProcesses,
    looked_at_all: Option<Instant>,
    /// The last VM that the last look had time for.
    last_followed: Option<VmId>,
}

impl<'a> Follower<'a> {
    /// A follower that has seen no VM yet.
    pub fn new(service: &'a Service, config: Config) -> Self {
        Self {
            service,
            config,
            vms: BTreeMap::new(),
            looked: None,
            last: String::new(),
            passed: SkippedProcesses::default(),
            looked_at_all: None,
            last_followed: None,
        }
    }

    /// Replaces the rules. VMs that a client detached get theirs again.
    pub fn reload(&mut self, config: Config) {
        self.config = config;
        self.service.forget_detached();
        self.looked = None;
        self.vms.values_mut().for_each(|vm| {
            (vm.said, vm.pause) = (None, None);
            // Also where one has ended by itself.
            if vm.again.due.is_some() {
                vm.again = Retry { due: Some(Instant::now()), ..Retry::default() };
            }
        });
    }

    /// Looks for VMs, if it is time to.
    pub fn look(&mut self) {
        let since = self.looked.map(|at| at.elapsed());
        // The file ends with the id of the last thread. While that stays, no VM can have started.
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let last = load.split_whitespace().next_back().unwrap_or_default();
        let quiet = last == self.last && !self.vms.values().any(FollowedVm::starts);
        if since.is_some_and(|since| since < interval(quiet, self.last_followed.is_none())) {
            return;
        }
        last.clone_into(&mut self.last);
        self.looked = Some(Instant::now());
        if self.looked_at_all.is_none_or(|at| at.elapsed() >= REST) {
            self.looked_at_all = self.looked;
            self.passed = SkippedProcesses::default();
        }
        match Proc::default().scan_again(&mut self.passed) {
            Ok(scan) => self.apply(&scan.vms),
            Err(why) => tracing::error!("/proc: {why}"),
        }
    }

    fn apply(&mut self, vms: &[Vm]) {
        let there: BTreeSet<VmId> = vms.iter().map(VmId::of).collect();
        self.vms.retain(|id, _| {
            let stays = there.contains(id);
            if !stays {
                if self.service.owner(id).is_some() {
                    tracing::info!("{}: it has ended", id.name);
                }
                self.service.ended(id);
            }
            stays
        });
        let in_force = self.service.in_force();
        let began = Instant::now();
        let last = self.last_followed.take();
        for vm in from_behind(vms, |vm| Some(VmId::of(vm)) == last) {
            self.follow(vm, &in_force);
            if began.elapsed() > MOST_LOOK {
                self.last_followed = Some(VmId::of(vm));
                break;
            }
        }
    }

    fn follow(&mut self, vm: &Vm, in_force: &BTreeMap<VmId, VmStatus>) {
        let (id, now) = (VmId::of(vm), Instant::now());
        let again = Retry::default();
        let (said, alone) = (None, None);
        let new =
            FollowedVm { first_seen: now, vcpus: Vec::new(), said, alone, again, pause: None };
        let followed = self.vms.entry(id.clone()).or_insert(new);
        let rule = self.config.rule(vm).filter(|(_, rule)| rule.acts());
        let owner = self.service.owner(&id);
        let Some((number, rule)) = rule else {
            if matches!(owner, Some(Owner::Rule(..))) && self.service.take_back(&id) {
                tracing::info!("{}: no rule applies to it any more", id.name);
            }
            return;
        };
        if let (Some(Owner::Rule(..)), Some(status)) = (&owner, in_force.get(&id))
            && let Some(alone) = followed.news_of_alone(left_alone(&status.vcpus))
        {
            tracing::warn!("{}: {alone}", id.name);
        }
        let due = match owner {
            None => true,
            Some(Owner::Rule(..)) if !in_force.contains_key(&id) => {
                let (due, is_new) = followed.again.due(now);
                if is_new {
                    let after = due.duration_since(now).as_secs();
                    tracing::warn!(
                        "{}: its policy has ended by itself; again in {after} s",
                        id.name
                    );
                    followed.said = None;
                }
                due <= now
            }
            Some(Owner::Rule(policy, sets)) => {
                (&policy, &sets) != (&rule.policy, &rule.sets)
                    || followed.vcpus != threads_of(&vm.vcpus)
            }
            Some(Owner::Connection { .. } | Owner::Nobody) => false,
        };
        // Some of its threads may not have a name yet.
        let whole = !vm.vcpus.is_empty() && vm.unplaced.unwrap_or(0) == 0;
        let paused = followed.pause.is_some_and(|until| now < until);
        if !due || paused || !whole && followed.starts() {
            return;
        }
        let applied = self.service.apply(vm, &rule.policy, &rule.sets);
        followed.again.tried(now, applied.is_ok());
        followed.pause = applied.is_err().then(|| Instant::now() + pause_after(now.elapsed()));
        let said = match applied {
            Ok(status) => {
                followed.vcpus = threads_of(&vm.vcpus);
                let (name, policy, vcpus) = (&id.name, &rule.policy, status.extent());
                let mut said = format!("{name}: {policy} on {vcpus}, by rule {number}");
                followed.alone = left_alone(&status.vcpus);
                said.extend(followed.alone.iter().map(|alone| format!("; {alone}")));
                for note in &status.notes {
                    said += &format!("; {note}");
                }
                said
            }
            Err(why) => format!("{}: rule {number} cannot be applied: {why}", id.name),
        };
        if followed.said.as_ref() != Some(&said) {
            tracing::info!("{said}");
            followed.said = Some(said);
        }
    }
}

impl FollowedVm {
    /// Notes which vCPUs are left alone. Returns the text if it has changed.
    fn news_of_alone(&mut self, alone: Option<String>) -> Option<String> {
        let is_new = self.alone != alone;
        self.alone = alone;
        self.alone.clone().filter(|_| is_new)
    }

    fn starts(&self) -> bool {
        self.first_seen.elapsed() < STARTS
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FIRST, FollowedVm, LONGEST, LOOK, REST, Retry, from_behind, interval, left_alone,
        pause_after, threads_of,
    };
    use crate::protocol::VcpuStatus;
    use std::time::{Duration, Instant};
    use vcoop_vmm::{Source, Thread, VcpuThread};

    #[test]
    fn a_vcpu_that_comes_back_with_another_thread_is_noticed() {
        let vcpu = |tid, start_time| {
            let thread = Thread { tid, start_time, comm: "CPU 0/KVM".to_owned() };
            VcpuThread { index: 0, kvm_id: None, thread, source: Source::ThreadName }
        };
        let before = threads_of(&[vcpu(7, 1)]);
        assert_eq!(before, threads_of(&[vcpu(7, 1)]));
        for other in [vcpu(8, 1), vcpu(7, 2)] {
            assert_ne!(before, threads_of(&[other]));
        }
    }

    #[test]
    fn who_is_left_alone_after_a_while_is_told_once() {
        let vcpu = |index, why: Option<&str>| VcpuStatus {
            index,
            left_alone: why.map(str::to_owned),
            ..VcpuStatus::default()
        };
        let now = Instant::now();
        let (vcpus, again) = (Vec::new(), Retry::default());
        let (said, alone, pause) = (None, None, None);
        let mut followed = FollowedVm { first_seen: now, vcpus, said, alone, again, pause };
        let mut news = |last| {
            let vcpus = [vcpu(0, None), vcpu(1, Some("it is FIFO")), vcpu(2, last)];
            followed.news_of_alone(left_alone(&vcpus))
        };
        let alone = |count| Some(format!("{count} left alone (vCPU 1: it is FIFO)"));
        assert_eq!([news(None), news(None)], [alone(1), None]);
        assert_eq!([news(Some("full")), news(Some("full"))], [alone(2), None]);
    }

    #[test]
    fn whom_there_was_no_time_for_comes_first() {
        let after = |last| from_behind(&[1, 2, 3], |it| *it == last).copied().collect::<Vec<_>>();
        assert_eq!((after(1), after(3)), (vec![2, 3, 1], vec![1, 2, 3]));
        assert_eq!(after(7), [1, 2, 3], "it has ended");
        // Nor does it wait until something else on the host begins.
        assert_eq!([true, false].map(|quiet| interval(quiet, false)), [Duration::ZERO; 2]);
        assert_eq!([true, false].map(|quiet| interval(quiet, true)), [REST, LOOK]);
    }

    #[test]
    fn what_takes_long_in_vain_is_tried_seldom() {
        for (took, pause) in [(0, 0), (1, 50), (500, 25_000), (2_000, 60_000)] {
            assert_eq!(pause_after(Duration::from_millis(took)), Duration::from_millis(pause));
        }
    }

    #[test]
    fn what_ends_again_and_again_is_applied_less_and_less_often() {
        let (mut again, mut now) = (Retry::default(), Instant::now());
        let mut delays = Vec::new();
        for round in 0..9 {
            // It cannot be applied at all in every third round.
            again.tried(now, round % 3 > 0);
            now += Duration::from_secs(1);
            let (due, is_new) = again.due(now);
            assert_eq!((again.due(now), is_new), ((due, false), true));
            delays.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        again.tried(now, true);
        now += LONGEST;
        assert_eq!(again.due(now), (now + FIRST, true), "it was in force for long");
    }
}
