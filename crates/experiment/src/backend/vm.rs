//! A VM that runs on this host, under one policy after the other.

mod exec;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;
use vcoop_model::trace_event::Observer;
use vcoop_observe::{NO_EXITS, NoObserver, Observation, ObservedVm, Slicing};
use vcoop_threads::{AffinityGuard, affinity};
use vcoop_vmm::Vm as Found;

use super::{Backend, Unavailable};
use crate::result::Note;
use crate::result::VM;
use exec::Exec;
use probe::HostProbe;

/// Applies policies to the VM.
pub trait PolicyApplier: Send + fmt::Debug {
    /// Applies the plan's policy, in place of the one in force.
    ///
    /// # Errors
    ///
    /// Why not.
    fn apply(&mut self, plan: &Plan) -> Result<(), String>;

    /// Takes the policy back.
    ///
    /// # Errors
    ///
    /// Why not.
    fn take_back(&mut self) -> Result<PolicyOutcome, String>;
}

/// What a policy did while in force, over all vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyOutcome {
    /// Boosts.
    pub boosts: u64,
    /// Times the budget ended or prevented a boost.
    pub throttles: u64,
    /// Throttles because a boost was the longest allowed.
    pub too_long: u64,
    /// Throttles by the VM's budget.
    pub by_vm: u64,
    /// Time boosted and awake.
    pub boosted_ns: Ns,
    /// How long it was in force.
    pub for_ns: Ns,
    /// CPU time of the engine meanwhile, if known.
    pub engine_ns: Option<Ns>,
    /// Sources of sleeps, wake-ups and interrupts.
    pub heard_by: Vec<String>,
}

/// Throttles a second from which there is a note.
const MANY_THROTTLES: f64 = 1.0;

impl PolicyOutcome {
    /// Adds the numbers of another run that notes use.
    fn add(&mut self, run: &Self) {
        self.throttles += run.throttles;
        self.too_long += run.too_long;
        self.by_vm += run.by_vm;
        self.for_ns += run.for_ns;
        self.heard_by.clone_from(&run.heard_by);
    }

    /// A note about a budget that was too small for the guest's requests.
    fn note(&self, policy: &str) -> Option<Note> {
        let per_second = self.throttles as f64 * 1e9 / self.for_ns.max(1) as f64;
        if per_second <= MANY_THROTTLES {
            return None;
        }
        let by_vcpu = self.throttles.saturating_sub(self.too_long + self.by_vm);
        let reasons = [
            (by_vcpu, "the budget of a vCPU was used up", "vcpu_refill"),
            (self.by_vm, "the budget of the VM was used up", "vm_refill"),
            (self.too_long, "boosts lasted longer than longest_boost allows", "longest_boost"),
        ];
        let (_, because, key) = reasons.into_iter().max_by_key(|(times, ..)| *times)?;
        Some(Note {
            evidence: format!(
                "{policy} was throttled {per_second:.0} times a second, most often because {because}: \
                 urgent work went without a boost then"
            ),
            remedy: Some(format!(
                "a larger {key} (--set policy.{policy}.{key}=VALUE) allows more, at the cost of other threads of the host"
            )),
        })
    }
}

/// A VM that runs on this host. A run applies the plan's policy, waits for the warm-up, and then measures for the
/// plan's duration, or until the command that runs meanwhile ends.
#[derive(Debug)]
pub struct Vm {
    found: Found,
    applies: Mutex<Box<dyn PolicyApplier>>,
    /// Whether a thread of the host measures beside the VM.
    probes: bool,
    /// Command that runs meanwhile.
    command: Option<String>,
    notes: Mutex<Vec<Note>>,
    /// Sums over all runs, by policy.
    totals: Mutex<BTreeMap<String, PolicyOutcome>>,
    /// Whether a turn saw exits of the VM.
    saw_exits: AtomicBool,
    /// Lengths of complete turns: at least as planned, and as long as the command.
    lengths: Mutex<Vec<Ns>>,
}

impl Vm {
    /// For a found VM. `probes`: a fair thread measures its waits on the vCPUs' CPUs. `command`: a shell command that
    /// runs during each measurement, and prints `NAME=NUMBER`.
    pub fn new(
        found: Found,
        applies: Box<dyn PolicyApplier>,
        probes: bool,
        command: Option<String>,
    ) -> Self {
        let (notes, totals, lengths) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (applies, saw_exits) = (Mutex::new(applies), AtomicBool::new(false));
        Self { found, applies, probes, command, notes, totals, saw_exits, lengths }
    }

    /// Notes about what was not seen, the cost of observing, and budgets that were too small; each once.
    pub fn notes(&self) -> Vec<Note> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut notes = of_all_turns(notes, self.saw_exits.load(Ordering::Relaxed));
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        notes.extend(totals.iter().filter_map(|(policy, total)| total.note(policy)));
        notes
    }

    /// The shortest and the longest measured time of the turns, in seconds, if any took longer than planned.
    pub fn measured_s(&self, planned: Ns) -> Option<[f64; 2]> {
        range(&self.lengths.lock().unwrap_or_else(PoisonError::into_inner), planned)
    }

    /// The different sets of CPUs that its vCPUs may use.
    fn cpu_sets(&self) -> Vec<Vec<u32>> {
        let sets = self.found.vcpus.iter().filter_map(|v| affinity(v.thread.tid as i32).ok());
        sets.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn measure(
        &self,
        plan: &Plan,
        stop: &dyn Fn() -> bool,
        observer: &mut dyn Observer,
    ) -> Result<Recording, String> {
        let name = &self.found.name;
        let said = |e: &dyn fmt::Display| e.to_string();
        let cpus = affinity(0).unwrap_or_default();
        let mut observation =
            Observation::new(ObservedVm::of(&self.found)).map_err(|e| said(&e))?;
        let pause = |observation: &mut Observation, until: Instant, observer: &mut dyn Observer| {
            while Instant::now() < until && !stop() {
                let left = until.saturating_duration_since(Instant::now());
                thread::sleep(left.min(Observation::LOOK));
                observation.poll(observer);
            }
        };
        let warm = Instant::now() + Duration::from_nanos(plan.warmup_ns);
        pause(&mut observation, warm, &mut NoObserver);
        let length = Duration::from_nanos(plan.duration_ns);
        let probe = self.probes.then(|| HostProbe::start(&self.cpu_sets()));
        observation.begin(Slicing { slices: plan.slices, duration_ns: plan.duration_ns });
        let began = Instant::now();
        let mut exec = None;
        if let Some(line) = &self.command {
            // It may run where this process may, and not only where the observation keeps this thread.
            let _anywhere = AffinityGuard::on(&cpus);
            exec = Some(Exec::start(line, name, &plan.policy_name, length)?);
        }
        pause(&mut observation, began + length, observer);
        while let Some(running) = &mut exec
            && !stop()
            && running.is_running()?
        {
            pause(&mut observation, Instant::now() + Observation::LOOK, observer);
        }
        let observed = observation.end(observer)?;
        if !observation.is_there() {
            return Err(format!("{name} has ended"));
        }
        if !stop() {
            let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
            lengths.push(observed.window_ns);
        }
        let mut recording = observed.recording;
        let exits = recording.scalars.keys().any(|(_, metric)| metric.starts_with("exit."));
        self.saw_exits.fetch_or(exits, Ordering::Relaxed);
        recording.latencies.extend(probe.map(HostProbe::end));
        let mut said = observed.notes;
        if !stop()
            && let Some(exec) = exec
        {
            let (values, passed_over) = exec.end()?;
            recording.scalars.extend(values);
            said.extend(passed_over.map(|line| {
                Note::new(format!("--exec: {line:?} has no number and was passed over"), None)
            }));
        }
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        for note in said {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        Ok(recording)
    }
}

/// The notes of all turns: a turn without exits may have been short.
fn of_all_turns(mut notes: Vec<Note>, saw_exits: bool) -> Vec<Note> {
    notes.retain(|note| !saw_exits || note.evidence != NO_EXITS);
    notes
}

/// What was measured, and what the policy did meanwhile. Why a measurement failed is said first: nothing can be taken
/// back from a VM that has ended.
fn both(
    measured: Result<Recording, String>,
    applied: Result<PolicyOutcome, String>,
) -> Result<(Recording, PolicyOutcome), String> {
    match (measured, applied) {
        (Ok(recording), Ok(applied)) => Ok((recording, applied)),
        (Err(why), Err(also)) => Err(format!("{why}; {also}")),
        (Err(why), Ok(_)) | (Ok(_), Err(why)) => Err(why),
    }
}

/// The shortest and the longest of these lengths, in seconds, unless all are as planned. Up to a hundredth of a second
/// more counts as planned.
fn range(lengths: &[Ns], planned: Ns) -> Option<[f64; 2]> {
    const HUNDREDTH: Ns = 10_000_000;
    let seconds = |ns: Ns| match ns.saturating_sub(planned) {
        0..HUNDREDTH => planned as f64 / 1e9,
        _ => ((ns + HUNDREDTH / 2) / HUNDREDTH) as f64 / 100.0,
    };
    let (least, most) = (lengths.iter().min()?, lengths.iter().max()?);
    (most.saturating_sub(planned) >= HUNDREDTH).then(|| [seconds(*least), seconds(*most)])
}

impl Backend for Vm {
    fn name(&self) -> &'static str {
        VM
    }

    fn is_live(&self) -> bool {
        true
    }

    fn available(&self) -> Result<(), Unavailable> {
        Observation::new(ObservedVm::of(&self.found)).map(drop)
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let (found, cpus) = (&self.found, self.cpu_sets());
        let lists: Vec<String> = cpus.iter().map(|set| vcoop_threads::cpu_list(set)).collect();
        let mut facts = vcoop_lab::environment();
        let mut put = |key: &str, value: String| _ = facts.insert(key.to_owned(), value);
        put("vm", format!("{}, {}, {}, process {}", found.name, found.vmm, found.accel, found.pid));
        put("vm cpus", lists.join("; "));
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        for (policy, total) in totals.iter().filter(|(_, t)| !t.heard_by.is_empty()) {
            put(&format!("{policy} is told by"), total.heard_by.join(" and "));
        }
        facts
    }

    fn run(&self, run: Run<'_>) -> Result<(Recording, Option<String>), String> {
        let plan = run.plan;
        let mut nobody = NoObserver;
        let observer: &mut dyn Observer = match run.observer {
            Some(observer) => observer,
            None => &mut nobody,
        };
        let mut applies = self.applies.lock().unwrap_or_else(PoisonError::into_inner);
        applies.apply(plan)?;
        let measured = self.measure(plan, run.stop, observer);
        let (mut recording, applied) = both(measured, applies.take_back())?;
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.entry(plan.policy_name.clone()).or_default().add(&applied);
        drop(totals);
        let name = ObservedVm::of(&self.found).name;
        let (for_s, vcpus) = (applied.for_ns.max(1) as f64 / 1e9, self.found.vcpus.len() as f64);
        recording.put(&name, "boosts", "1/s", applied.boosts as f64 / for_s);
        recording.put(&name, "throttles", "1/s", applied.throttles as f64 / for_s);
        let boosted = applied.boosted_ns as f64 / 1e7 / for_s / vcpus.max(1.0);
        recording.put(&name, "boosted", "%", boosted);
        if let Some(engine_ns) = applied.engine_ns {
            recording.put("host", "engine", "CPU", engine_ns as f64 / 1e9 / for_s);
        }
        Ok((recording, None))
    }
}

#[cfg(test)]
mod tests {
    use super::{NO_EXITS, Note, PolicyOutcome, Recording, both, of_all_turns, range};

    #[test]
    fn no_exits_are_told_only_if_no_turn_saw_any() {
        let notes = || vec![Note::new(NO_EXITS, None), Note::new("it was dark", None)];
        assert_eq!(of_all_turns(notes(), false), notes());
        assert_eq!(of_all_turns(notes(), true), notes()[1..]);
    }

    #[test]
    fn the_end_of_a_vm_is_said_before_what_follows_from_it() {
        let ended = || Err("web has ended".to_owned());
        let none = || Err("web: no policy is applied to it".to_owned());
        let told = |measured, applied| both(measured, applied).map(drop).unwrap_err();
        assert_eq!(told(ended(), none()), "web has ended; web: no policy is applied to it");
        assert_eq!(told(ended(), Ok(PolicyOutcome::default())), "web has ended");
        assert!(told(Ok(Recording::default()), none()).starts_with("web: no policy"));
    }

    #[test]
    fn turns_that_took_longer_than_planned_are_told() {
        assert_eq!(range(&[], 1), None);
        assert_eq!(range(&[1_000_050_000, 1_009_999_999], 1_000_000_000), None);
        let [least, most] = range(&[1_234_567_890, 1_000_400_000], 1_000_000_000).unwrap();
        assert_eq!((least, most), (1.0, 1.23));
    }

    #[test]
    fn a_budget_that_was_too_small_is_named() {
        let of = |throttles, too_long, by_vm| {
            PolicyOutcome {
                throttles,
                too_long,
                by_vm,
                for_ns: 10_000_000_000,
                ..PolicyOutcome::default()
            }
            .note("dynamic")
        };
        assert_eq!(of(10, 10, 0), None);
        let named = |too_long, by_vm, keys: &str| {
            let note = of(300, too_long, by_vm).unwrap();
            assert!(note.evidence.contains(" 30 times a second"), "{note:?}");
            assert!(note.remedy.as_ref().unwrap().contains(keys), "{note:?}");
        };
        named(151, 0, "larger longest_boost (--set policy.dynamic.longest_boost=");
        named(149, 0, "larger vcpu_refill (--set policy.dynamic.vcpu_refill=");
        named(100, 140, "larger vm_refill (--set policy.dynamic.vm_refill=");
    }
}
