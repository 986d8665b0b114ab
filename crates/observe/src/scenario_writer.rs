//! A scenario of a VM and its neighbours: what they did in a window, for simulation under other policies.
//!
//! - A vCPU becomes a guest task that runs and sleeps as its thread did: with `of_vcpu`, because the thread's running
//!   time includes exits and the guest's kernel. The thread's waits for a CPU are left out: the simulated host makes
//!   its own. If the guest has a driver, as many of the runs as it counted become runs of an urgent task.
//! - A thread that never slept becomes a hog with its policy and CPUs.
//! - All others become captures, one for each group and each set of CPUs that threads may use, as a
//!   capture has none of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::iter;

use vcoop_policy::thread::Policy;
use vcoop_sources::trace::Tid;
use vcoop_threads::cpu_list;
use vcoop_threads::tsc::Clock;
use vcoop_vmm::{CpuMax, Level};

use crate::group::{Group, Hierarchy};
use crate::history::{ThreadEvent, ThreadFacts, TimedEvent};
use crate::scene_vcpu::SceneVcpu;
use crate::trace_text::{Timestamp, mark, priority, script, switch, waking};

/// A thread that used less than this share of the window is no hog.
const LEAST_HOG: f64 = 0.01;

/// Ticks a second of the simulated guest. The real guest's ticks are part of what its vCPUs did.
const GUEST_TICK_HZ: u32 = 100;

/// A VM and its neighbours in a window.
#[derive(Clone, Debug)]
pub struct Scene {
    pub(crate) vm: String,
    pub(crate) vcpus: Vec<SceneVcpu>,
    /// Whether its guest has a driver, which reports how often urgent tasks were woken.
    pub cooperates: bool,
    pub(crate) events: Vec<TimedEvent>,
    pub(crate) threads: BTreeMap<Tid, ThreadFacts>,
    /// The thread that observed.
    pub(crate) observer: Tid,
    /// Beginning and end, and a clock that counts from the beginning.
    pub(crate) window: (u64, u64),
    pub(crate) clock: Clock,
    /// The beginning in clock ticks since boot.
    pub(crate) began: u64,
}

/// Threads with the same name, policy and place, which share one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hogs {
    name: String,
    policy: String,
    place: Place,
}

/// CPUs that threads may use (`None`: not known), and their group.
type Place = (Option<Vec<u32>>, Option<Group>);

/// All threads but the vCPUs.
#[derive(Debug, Default)]
struct OtherThreads {
    hogs: BTreeMap<Hogs, u32>,
    captured: BTreeMap<Place, BTreeSet<Tid>>,
}

impl OtherThreads {
    /// The groups that each thread is in, and those of the VM's vCPUs.
    fn groups<'g>(&'g self, vm: Option<&'g Group>) -> Hierarchy<'g> {
        let hogs = self.hogs.iter().map(|(hogs, count)| (&hogs.place, *count as usize));
        let captured = self.captured.iter().map(|(place, threads)| (place, threads.len()));
        let threads = hogs.chain(captured).map(|((_, group), count)| (group.as_ref(), count));
        let vm = iter::once((vm, 1));
        Hierarchy::of(vm.chain(threads).flat_map(|(group, count)| iter::repeat_n(group, count)))
    }
}

/// A quota as a scenario writes it.
fn max_text(CpuMax { quota_us, period_us }: CpuMax) -> String {
    format!("cpu_max = \"{quota_us}us/{period_us}us\"\n")
}

/// A policy as a scenario writes it.
fn policy_text(policy: Policy) -> String {
    match policy {
        Policy::Fifo(priority) => format!("fifo {priority}"),
        Policy::Rr(priority) => format!("rr {priority}"),
        Policy::Normal { nice: 0, slice_ns: None } => "other".to_owned(),
        Policy::Normal { nice, slice_ns: None } => format!("nice {nice}"),
        Policy::Normal { nice, slice_ns: Some(ns) } => format!("nice {nice} slice {ns}ns"),
        Policy::Idle => "idle".to_owned(),
        Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
            format!("deadline {runtime_ns}ns/{deadline_ns}ns/{period_ns}ns")
        }
    }
}

/// A name with only characters that a scenario accepts.
fn plain(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    name.chars().take(32).map(letter).collect()
}

/// Such a name that is not in `names` yet; it is added.
fn unlike(names: &mut BTreeSet<String>, name: &str) -> String {
    let mut name = plain(name);
    while !names.insert(name.clone()) {
        name += "-";
    }
    name
}

/// Tables of the guest tasks for vCPU `i`.
fn task_tables(i: usize, vcpu: &SceneVcpu, stem: &str) -> String {
    let urgent = vcpu.urgent;
    match (vcpu.runs(), vcpu.sleeps()) {
        (false, _) => format!("\n# vCPU {i} slept all the time.\n"),
        (true, 0) => {
            let mut text = format!("\n# vCPU {i} never slept.\n");
            if urgent > 0 {
                text += &format!(
                    "# A timer woke urgent tasks {urgent} times. How long they ran is not known, so they are left out.\n"
                );
            }
            text + &format!("[[vm.task]]\nname = \"vcpu{i}\"\nkind = \"hog\"\ncpus = \"{i}\"\n")
        }
        (true, sleeps) => {
            let mut text = String::new();
            if urgent > 0 {
                text += &format!(
                    "\n# A timer woke urgent tasks {urgent} times; vCPU {i} was woken {sleeps} times."
                );
            }
            for (task, policy, _) in vcpu.tasks(i) {
                text += &format!(
                    "\n[[vm.task]]\nname = \"{task}\"\nkind = \"capture\"\n\
                     file = \"{stem}-{task}.txt.gz\"\ncpus = \"{i}\"\npolicy = \"{policy}\"\n\
                     slack = \"0us\"\nof_vcpu = true\n"
                );
            }
            text
        }
    }
}

impl Scene {
    /// Tables for the VM and its neighbours in a scenario whose captures' names begin with `stem`. `number`: the
    /// scenario's number of a CPU of the host, which has `cpus` CPUs.
    pub fn tables(&self, stem: &str, cpus: u32, number: &dyn Fn(u32) -> Option<u32>) -> String {
        let all = cpus as usize;
        let list = |cpus: &[u32]| {
            let mut own: Vec<u32> = cpus.iter().filter_map(|cpu| number(*cpu)).collect();
            own.sort_unstable();
            (!own.is_empty() && own.len() < all).then(|| cpu_list(&own))
        };
        let (others, vm) = (self.others(), self.group());
        let groups = others.groups(vm.as_ref());
        let mut names = BTreeSet::new();
        let names: BTreeMap<usize, String> = groups
            .groups()
            .map(|(group, node)| (group, unlike(&mut names, &node.level.name)))
            .collect();
        let named = |group: Option<usize>| {
            let name = group.and_then(|group| names.get(&group));
            name.map_or_else(String::new, |name| format!("group = \"{name}\"\n"))
        };
        let in_group =
            |group: &Option<Group>| named(group.as_ref().and_then(|group| groups.number(group)));
        let place = |(cpus, group): &Place| {
            let cpus = cpus.as_deref().and_then(list);
            let cpus = cpus.map_or_else(String::new, |cpus| format!("cpus = \"{cpus}\"\n"));
            cpus + &in_group(group)
        };
        let mut text = self.vm_table(&list) + &in_group(&vm) + &self.vcpu_groups(vm.as_ref());
        let kept_off = |cpu: u32| self.vcpus.iter().all(|v| !v.cpus.contains(&cpu));
        if self.is_woken_from_elsewhere() && self.events.iter().any(|event| kept_off(event.cpu)) {
            text += "# Most wake-ups of its vCPUs came from CPUs where they did not run then: another thread has its timers.\n\
                     timer = \"exitless\"\n";
        }
        for (i, vcpu) in self.vcpus.iter().enumerate() {
            text += &task_tables(i, vcpu, stem);
        }
        // Writing to a string does not fail.
        for (group, node) in groups.groups() {
            let (name, weight) = (&names[&group], node.level.weight.clamp(2, 262_144));
            let _ = write!(text, "\n[[group]]\nname = \"{name}\"\nweight = {weight}\n");
            text += &named(node.parent);
            text += &node.level.quota.map_or_else(String::new, max_text);
        }
        let mut names = BTreeSet::new();
        for (hogs, count) in &others.hogs {
            let name = unlike(&mut names, &hogs.name);
            let policy = &hogs.policy;
            let _ = write!(
                text,
                "\n[[load]]\nname = \"{name}\"\nkind = \"hog\"\ncount = {count}\npolicy = \"{policy}\"\n"
            );
            text += &place(&hogs.place);
        }
        for (i, captured) in others.captured.keys().enumerate() {
            let name = unlike(&mut names, &format!("others-{i}"));
            let _ = write!(
                text,
                "\n[[load]]\nname = \"{name}\"\nkind = \"capture\"\n\
                 file = \"{stem}-others{i}.txt.gz\"\nslack = \"0us\"\n"
            );
            text += &place(captured);
        }
        text
    }

    /// The VM's table. `list`: CPUs in the scenario's numbers; none for all.
    fn vm_table(&self, list: &dyn Fn(&[u32]) -> Option<String>) -> String {
        let quoted = |texts: Vec<String>| {
            let texts: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
            texts.join(", ")
        };
        let pins = self.vcpus.iter().map(|v| list(&v.cpus).unwrap_or_else(|| "all".to_owned()));
        let policies = self.vcpus.iter().map(|v| policy_text(v.policy));
        let (pins, policies) = (quoted(pins.collect()), quoted(policies.collect()));
        let (vm, n, cooperates) = (&self.vm, self.vcpus.len(), self.cooperates);
        format!(
            "[[vm]]\nname = {vm:?}\nvcpus = {n}\npin = [{pins}]\nvcpu_policy = [{policies}]\n\
             tick_hz = {GUEST_TICK_HZ}\ncooperative = {cooperates}\nwaits = true\n"
        )
    }

    /// The groups that all vCPUs are in.
    fn group(&self) -> Option<Group> {
        Group::shared(self.vcpus.iter().map(|vcpu| vcpu.group.as_ref()))
    }

    /// Keys of the VM if each vCPU has a group of its own in the group of all.
    fn vcpu_groups(&self, vm: Option<&Group>) -> String {
        let depth = vm.map_or(0, |vm| vm.0.len());
        let own = self.vcpus.iter().map(|vcpu| match &vcpu.group.as_ref()?.0[depth..] {
            [own] => Some(own),
            _ => None,
        });
        let Some(own) = own.collect::<Option<Vec<_>>>() else { return String::new() };
        let quotas = own.iter().filter_map(|own| own.quota);
        match quotas.min_by_key(|quota| quota.each_second()) {
            Some(quota) => format!("vcpu_{}", max_text(quota)),
            None => "vcpu_groups = true\n".to_owned(),
        }
    }

    /// How many threads are in each group, or in groups in it.
    fn crowds(&self) -> BTreeMap<&[Level], u32> {
        let mut crowds = BTreeMap::new();
        for group in self.threads.values().filter_map(|person| person.group.as_ref()) {
            for depth in 1..=group.0.len() {
                *crowds.entry(&group.0[..depth]).or_insert(0) += 1;
            }
        }
        crowds
    }

    /// The groups of a thread, without one that only it is in and that has no effect.
    fn group_of(person: &ThreadFacts, crowds: &BTreeMap<&[Level], u32>) -> Option<Group> {
        let mut own = person.group.clone()?;
        let is_usual = person.policy.is_none_or(|policy| policy == Policy::NORMAL);
        if crowds.get(&*own.0) == Some(&1) && is_usual {
            own.0.pop_if(|level| level.is_like_a_thread());
        }
        (!own.0.is_empty()).then_some(own)
    }

    /// Whether most wake-ups of the vCPUs came from another CPU than the vCPU's last, as when a thread of the VMM has
    /// their timers, and not from a timer of their own CPU.
    fn is_woken_from_elsewhere(&self) -> bool {
        let is_vcpu = |tid: Tid| self.vcpus.iter().any(|v| v.tid == tid);
        let mut woken_by: BTreeMap<Tid, u32> = BTreeMap::new();
        let (mut here, mut elsewhere) = (0, 0);
        for event in &self.events {
            match event.event {
                ThreadEvent::Waking { tid, .. } if is_vcpu(tid) => {
                    woken_by.insert(tid, event.cpu);
                }
                ThreadEvent::Switch { next, .. } => match woken_by.remove(&next) {
                    Some(cpu) if cpu == event.cpu => here += 1,
                    Some(_) => elsewhere += 1,
                    None => {}
                },
                ThreadEvent::Waking { .. } | ThreadEvent::Lost => {}
            }
        }
        elsewhere > here
    }

    /// The captures that the tables name: name after the stem, and text.
    pub fn captures(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for (i, vcpu) in self.vcpus.iter().enumerate() {
            if vcpu.runs() && vcpu.sleeps() > 0 {
                let tasks = vcpu.tasks(i);
                files
                    .extend(tasks.map(|(task, _, steps)| {
                        (format!("-{task}.txt.gz"), script(&task, &steps))
                    }));
            }
        }
        for (i, members) in self.others().captured.values().enumerate() {
            files.push((format!("-others{i}.txt.gz"), self.trace(members)));
        }
        files
    }

    /// Sorts all threads but the vCPUs and the observer.
    fn others(&self) -> OtherThreads {
        #[derive(Clone, Copy, Default)]
        struct Seen {
            ran: u64,
            slept: bool,
        }
        let mut seen: BTreeMap<Tid, Seen> = BTreeMap::new();
        let mut since: BTreeMap<u32, u64> = BTreeMap::new();
        for event in &self.events {
            match event.event {
                ThreadEvent::Switch { prev, runnable, next } => {
                    let from = since.insert(event.cpu, event.time).unwrap_or(self.window.0);
                    let prev = seen.entry(prev).or_default();
                    prev.ran += event.time.saturating_sub(from);
                    prev.slept |= !runnable;
                    seen.entry(next).or_default();
                }
                ThreadEvent::Waking { tid, .. } => seen.entry(tid).or_default().slept = true,
                ThreadEvent::Lost => {
                    since.insert(event.cpu, event.time);
                }
            }
        }
        let length = self.window.1.saturating_sub(self.window.0).max(1) as f64;
        let (mut others, crowds) = (OtherThreads::default(), self.crowds());
        let vcpus: BTreeSet<Tid> = self.vcpus.iter().map(|v| v.tid).collect();
        let is_other = |tid: &Tid| *tid != 0 && *tid != self.observer && !vcpus.contains(tid);
        for (tid, seen) in seen.into_iter().filter(|(tid, _)| is_other(tid)) {
            let person = self.threads.get(&tid).cloned().unwrap_or_default();
            let before = person.start.is_some_and(|start| start <= self.began);
            let place = (person.cpus.clone(), Self::group_of(&person, &crowds));
            if !seen.slept && before && seen.ran as f64 >= LEAST_HOG * length {
                let policy = policy_text(person.policy.unwrap_or(Policy::NORMAL));
                let hogs = Hogs { name: person.name, policy, place };
                *others.hogs.entry(hogs).or_default() += 1;
            } else {
                others.captured.entry(place).or_default().insert(tid);
            }
        }
        others
    }

    /// Events of some threads, in the format of the kernel's tracer. Other threads do not appear: while one of them
    /// runs, the CPU is idle, and a wake-up by one of them is a wake-up by an interrupt. All captures last from the
    /// first event of any thread to the last one, so that what a thread did once is not repeated at once.
    fn trace(&self, members: &BTreeSet<Tid>) -> String {
        let mut text = String::from("# tracer: nop\n");
        let place = |event: &TimedEvent| (event.cpu, Timestamp(self.clock.ns_at(event.time)));
        if let Some(first) = self.events.first() {
            mark(&mut text, place(first), "begin");
        }
        let own = |tid: Tid| if members.contains(&tid) { tid } else { 0 };
        let who = |tid: Tid| {
            let person = self.threads.get(&tid);
            let name = person.map_or("gone", |person| person.name.as_str());
            (name.to_owned(), priority(person.and_then(|person| person.policy)))
        };
        for event in &self.events {
            let (cpu, at) = place(event);
            match event.event {
                ThreadEvent::Switch { prev, runnable, next } => {
                    let (prev, next) = (own(prev), own(next));
                    if prev != next {
                        let state = if runnable || prev == 0 { "R" } else { "S" };
                        switch(&mut text, (cpu, at), (prev, who(prev)), state, (next, who(next)));
                    }
                }
                ThreadEvent::Waking { tid, by } if members.contains(&tid) => {
                    waking(&mut text, (cpu, at), by.map_or(0, own), (tid, who(tid)));
                }
                ThreadEvent::Waking { .. } => {}
                // Writing to a string does not fail.
                ThreadEvent::Lost => {
                    let _ = writeln!(text, "CPU:{cpu} [LOST EVENTS]");
                }
            }
        }
        if let Some(last) = self.events.last() {
            mark(&mut text, place(last), "end");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{Scene, policy_text, priority};
    use crate::follow::Step;
    use crate::group::Group;
    use crate::history::{ThreadEvent, ThreadFacts, TimedEvent};
    use crate::scene_vcpu::SceneVcpu;
    use vcoop_capture::{Capture, Limits, Shape};
    use vcoop_model::plan::Step as Replayed;
    use vcoop_policy::thread::Policy;
    use vcoop_threads::tsc::Clock;
    use vcoop_vmm::CpuMax;

    const MS: u64 = 1_000_000;

    /// Thread 5 is a vCPU, 7 a hog on CPU 1, 8 and 9 talk to each other, 6 observes.
    fn scene() -> Scene {
        let own = || Some(Group::one("user.slice", 1024));
        let at = |ms: u64, cpu, did| TimedEvent { time: 1_000 * MS + ms * MS, cpu, event: did };
        let switch = |ms, cpu, prev, runnable, next| {
            at(ms, cpu, ThreadEvent::Switch { prev, runnable, next })
        };
        let wake = |ms, cpu, tid, by| at(ms, cpu, ThreadEvent::Waking { tid, by });
        let person = |name: &str, cpus: &[u32], start| ThreadFacts {
            name: name.to_owned(),
            cpus: Some(cpus.to_vec()),
            policy: Some(Policy::Normal { nice: 5, slice_ns: None }),
            start: Some(start),
            group: own(),
        };
        Scene {
            vm: "web".to_owned(),
            vcpus: vec![
                SceneVcpu {
                    tid: 5,
                    cpus: vec![0],
                    policy: Policy::Rr(7),
                    steps: vec![Step::Run(2 * MS), Step::Sleep(3 * MS), Step::Run(MS)],
                    urgent: 0,
                    group: own(),
                },
                SceneVcpu {
                    tid: 15,
                    cpus: vec![0, 1],
                    policy: Policy::NORMAL,
                    steps: vec![Step::Run(MS)],
                    urgent: 0,
                    group: own(),
                },
                SceneVcpu {
                    tid: 16,
                    cpus: vec![1],
                    policy: Policy::Idle,
                    steps: Vec::new(),
                    urgent: 0,
                    group: own(),
                },
            ],
            cooperates: false,
            events: vec![
                switch(1, 1, 7, true, 5),
                switch(2, 1, 5, true, 7),
                wake(3, 0, 8, None),
                switch(3, 0, 0, true, 8),
                wake(5, 0, 9, Some(8)),
                switch(6, 0, 8, false, 9),
                switch(8, 0, 9, false, 6),
                switch(9, 0, 6, false, 0),
                switch(12, 1, 7, true, 5),
            ],
            threads: [
                (7, person("my hog", &[1], 3)),
                (8, person("a", &[0, 1], 3)),
                (9, person("b", &[0, 1], 3)),
            ]
            .into_iter()
            .collect(),
            observer: 6,
            window: (1_000 * MS, 1_020 * MS),
            clock: Clock::new(1_000 * MS, 1_000_000),
            began: 4,
        }
    }

    #[test]
    fn a_thread_elsewhere_that_wakes_vcpus_has_their_timers() {
        let mut scene = scene();
        scene.vcpus.truncate(1);
        assert!(!scene.tables("web", 2, &Some).contains("timer ="));
        let at = |ms: u64, cpu, did| TimedEvent { time: 1_000 * MS + ms * MS, cpu, event: did };
        let wake = at(13, 1, ThreadEvent::Waking { tid: 5, by: Some(8) });
        let switch = at(14, 0, ThreadEvent::Switch { prev: 0, runnable: true, next: 5 });
        scene.events.extend([wake, switch]);
        assert!(scene.tables("web", 2, &Some).contains("timer = \"exitless\"\n"));
        scene.events.extend([(15, 0), (16, 0)].into_iter().flat_map(|(ms, cpu)| {
            let wake = at(ms, cpu, ThreadEvent::Waking { tid: 5, by: None });
            [wake, at(ms, 0, ThreadEvent::Switch { prev: 0, runnable: true, next: 5 })]
        }));
        assert!(!scene.is_woken_from_elsewhere(), "a timer of its own CPU does");
    }

    #[test]
    fn everybody_has_a_table() {
        let text = scene().tables("web", 2, &Some);
        for line in [
            "pin = [\"0\", \"all\", \"1\"]\n",
            "vcpu_policy = [\"rr 7\", \"other\", \"idle\"]\n",
            "file = \"web-vcpu0.txt.gz\"\ncpus = \"0\"\n",
            "name = \"vcpu1\"\nkind = \"hog\"\ncpus = \"1\"\n",
            "# vCPU 2 slept all the time.\n",
            "name = \"my_hog\"\nkind = \"hog\"\ncount = 1\npolicy = \"nice 5\"\ncpus = \"1\"\n",
            "name = \"others-0\"\nkind = \"capture\"\nfile = \"web-others0.txt.gz\"\nslack = \"0us\"\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert_eq!(text.matches("[[load]]").count(), 2, "{text}");
        // CPUs by the scenario's numbers.
        let text = scene().tables("web", 9, &|cpu| Some(8 - cpu));
        assert!(text.contains("pin = [\"8\", \"7-8\", \"7\"]"), "{text}");
    }

    #[test]
    fn a_guest_that_says_so_has_urgent_tasks() {
        let mut scene = scene();
        let text = scene.tables("web", 2, &Some);
        assert!(text.contains("cooperative = false") && !text.contains("fifo"), "{text}");
        scene.cooperates = true;
        let text = scene.tables("web", 2, &Some);
        assert!(text.contains("cooperative = true") && !text.contains("fifo"), "{text}");
        scene.vcpus.iter_mut().for_each(|vcpu| vcpu.urgent = 1);
        let text = scene.tables("web", 2, &Some);
        for line in [
            "file = \"web-vcpu0-urgent.txt.gz\"\ncpus = \"0\"\npolicy = \"fifo 50\"\n",
            "# vCPU 1 never slept.\n# A timer woke urgent tasks 1 times.",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    /// Puts all vCPUs into a group.
    fn put(scene: &mut Scene, group: &Option<Group>) {
        scene.vcpus.iter_mut().for_each(|vcpu| vcpu.group.clone_from(group));
    }

    #[test]
    fn groups_count_where_there_is_more_than_one() {
        let mut scene = scene();
        assert!(!scene.tables("web", 2, &Some).contains("group"), "all are in one");
        put(&mut scene, &Some(Group::one("machine.slice", 512)));
        let text = scene.tables("web", 2, &Some);
        for line in [
            "waits = true\ngroup = \"machine_slice\"\n",
            "[[group]]\nname = \"machine_slice\"\nweight = 512\n",
            "[[group]]\nname = \"user_slice\"\nweight = 1024\n",
            "cpus = \"1\"\ngroup = \"user_slice\"\n",
            "slack = \"0us\"\ngroup = \"user_slice\"\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        // Names that a scenario cannot tell apart.
        put(&mut scene, &Some(Group::one("user_slice", 512)));
        let text = scene.tables("web", 2, &Some);
        for name in ["user_slice", "user_slice-"] {
            assert_eq!(
                text.matches(&format!("[[group]]\nname = \"{name}\"\n")).count(),
                1,
                "{text}"
            );
        }
        // With a quota even one that has all.
        let mut limited = scene.threads[&7].group.clone();
        limited.as_mut().unwrap().0[0].quota = Some(MAX);
        put(&mut scene, &limited);
        scene.threads.values_mut().for_each(|person| person.group.clone_from(&limited));
        let text = scene.tables("web", 2, &Some);
        let group = "name = \"user_slice\"\nweight = 1024\ncpu_max = \"150000us/100000us\"\n";
        assert!(text.contains(group), "{text}");
        put(&mut scene, &None);
        let text = scene.tables("web", 2, &Some);
        assert!(!text.contains("machine_slice") && text.contains("user_slice"), "{text}");
    }

    const MAX: CpuMax = CpuMax { quota_us: 150_000, period_us: 100_000 };

    #[test]
    fn groups_are_in_groups_and_vcpus_have_their_own() {
        let mut scene = scene();
        let group = |names: &[&str]| {
            let levels = names.iter().map(|name| Group::one(name, 1024).0.remove(0));
            Some(Group(levels.collect()))
        };
        for (vcpu, name) in scene.vcpus.iter_mut().zip(["vcpu0", "vcpu1", "vcpu2"]) {
            vcpu.group = group(&["machine", "web", name]);
        }
        // The hog is a thread of another VM, and another thread.
        scene.threads.get_mut(&7).unwrap().group = group(&["machine", "db", "vcpu0"]);
        scene.threads.get_mut(&8).unwrap().group = group(&["machine", "db", "emulator"]);
        let text = scene.tables("web", 2, &Some);
        for line in [
            "waits = true\ngroup = \"web\"\nvcpu_groups = true\n",
            "[[group]]\nname = \"machine\"\nweight = 1024\n\n",
            "[[group]]\nname = \"web\"\nweight = 1024\ngroup = \"machine\"\n",
            "[[group]]\nname = \"db\"\nweight = 1024\ngroup = \"machine\"\n",
            "policy = \"nice 5\"\ncpus = \"1\"\ngroup = \"vcpu0\"\n",
            "slack = \"0us\"\ngroup = \"user_slice\"\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        // Alone in its group, a nice value counts for nothing; without one, it counts as it would outside.
        scene.threads.get_mut(&7).unwrap().policy = Some(Policy::NORMAL);
        let text = scene.tables("web", 2, &Some);
        assert!(text.contains("cpus = \"1\"\ngroup = \"db\"\n"), "{text}");
        scene.vcpus[1].group.as_mut().unwrap().0[2].quota = Some(MAX);
        let text = scene.tables("web", 2, &Some);
        assert!(text.contains("group = \"web\"\nvcpu_cpu_max = \"150000us/100000us\"\n"), "{text}");
    }

    #[test]
    fn a_thread_that_came_later_is_no_hog() {
        let mut scene = scene();
        scene.began = 2;
        let text = scene.tables("web", 2, &Some);
        assert!(!text.contains("my_hog") && text.contains("web-others1"), "{text}");
    }

    #[test]
    fn captures_say_what_was_done() {
        let files = scene().captures();
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["-vcpu0.txt.gz", "-others0.txt.gz"]);
        let read = |i: usize| {
            let capture = Capture::read(files[i].1.as_bytes(), &Limits::default()).unwrap();
            assert_eq!(capture.losses.not_understood, 0, "{}", files[i].1);
            capture
        };
        let vcpu = read(0);
        let replay = vcpu.replay(&Shape::default());
        let steps = [Replayed::Run(2 * MS), Replayed::Sleep(3 * MS), Replayed::Run(MS)];
        assert_eq!((replay.threads.len(), replay.threads[0].steps.as_slice()), (1, &steps[..]));

        let others = read(1);
        let demands: Vec<_> =
            others.threads.iter().map(|t| (t.name.as_str(), t.demand_ns, t.policy)).collect();
        let nice = vcoop_sched::config::Policy::Normal { nice: 5, slice_ns: None };
        assert_eq!(demands, [("a", 3 * MS, nice), ("b", 2 * MS, nice)]);
        assert_eq!(others.span_ns, 11 * MS, "from the first event of anybody to the last");
        // The second waits for the first.
        let replay = others.replay(&Shape::default());
        assert!(replay.threads[1].steps.iter().any(|s| matches!(s, Replayed::Wait(_))));
        assert!(replay.threads[0].steps.iter().any(|s| matches!(s, Replayed::Wake(1))));
    }

    #[test]
    fn policies_are_written_as_scenarios_and_traces_have_them() {
        let deadline = Policy::Deadline { runtime_ns: 1, deadline_ns: 2, period_ns: 3 };
        for (policy, text, prio) in [
            (Policy::NORMAL, "other", 120),
            (Policy::Normal { nice: -5, slice_ns: Some(200_000) }, "nice -5 slice 200000ns", 115),
            (Policy::Fifo(50), "fifo 50", 49),
            (deadline, "deadline 1ns/2ns/3ns", -1),
        ] {
            assert_eq!((policy_text(policy).as_str(), priority(Some(policy))), (text, prio));
        }
    }
}
