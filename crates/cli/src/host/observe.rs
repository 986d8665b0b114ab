//! `vcoop observe`: measures how long a running VM waits, and for which threads.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use vcoop_capture::Loader;
use vcoop_daemon::VmId;
use vcoop_experiment::analysis::Metadata;
use vcoop_experiment::format;
use vcoop_experiment::this_host::ThisHost;
use vcoop_experiment::vm::observed;
use vcoop_model::capture::NoCaptures;
use vcoop_model::file::can_write_whole;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::running_vm::RunningVm;
use vcoop_model::scenario::Scenario;
use vcoop_model::trace_event::Observer;
use vcoop_model::{Missing, Note};
use vcoop_observe::{NoObserver, Observation, ObservationResult, ObservedVm, Scene, Slicing};
use vcoop_report::perfetto::Trace;
use vcoop_report::{SLICES, render};
use vcoop_text::{about, quoted};
use vcoop_threads::affinity;
use vcoop_vmm::Vm;

use crate::args::host::ObserveArgs;
use crate::failure::Failure;
use crate::folder::{Folder, TRACE, named, write};
use crate::host::owner;
use crate::interrupt::stop_flag;
use crate::output::{note, print, style};
use crate::scenario::{length, refuse};

/// The policy's name if none is applied.
const AS_IS: &str = "as-is";

pub(crate) fn run(args: &ObserveArgs) -> Result<(), Failure> {
    // From here on an interrupt ends the observation, not the process.
    let stop = stop_flag();
    let length = length("--for", &args.time)?;
    let asked =
        args.scenario.as_deref().map(|file| ScenarioRequest::new(file, args)).transpose()?;
    let vm = owner::find(&args.vm)?;
    let subject = ObservedVm::of(&vm);
    asked.iter().try_for_each(|asked| may_use_all(&asked.here, &subject))?;
    let (text, mut plan) = plan(&vm, &subject, length)?;
    let policies = owner::policies();
    let id = VmId::of(&vm);
    let in_force = policies.iter().flatten().find(|vm| vm.vm == id);
    in_force.into_iter().for_each(|vm| plan.policy_name.clone_from(&vm.policy));
    let unknown = policies.err();
    let folder = args.out.as_deref();
    let folder = folder.map(|dir| Folder::new(dir, &subject.name, args.force)).transpose()?;
    let missing = |missing: Missing| Failure::Missing(missing.to_string());
    let start = if asked.is_some() { Observation::of_everybody } else { Observation::new };
    let observation = start(subject).map_err(missing)?;
    if !args.quiet {
        let (name, cpus) = (&vm.name, vcoop_threads::cpu_list(observation.cpus()));
        let time = format::time(length as f64 / 1e3);
        note(&format!("vcoop: observing {name} on CPUs {cpus} for {time}"));
    }

    let slices = if folder.is_some() { SLICES } else { 0 };
    plan.slices = slices;
    let stopped = || stop.load(Ordering::Relaxed);
    let mut there = true;
    let observe = |observer: &mut dyn Observer| {
        // Dropped with this: the thread may use all its CPUs again, which the code below reads.
        let mut observation = observation;
        observation.begin(Slicing { slices, duration_ns: length });
        let (began, length) = (Instant::now(), Duration::from_nanos(length));
        while let Some(left) = length.checked_sub(began.elapsed())
            && there
            && !stopped()
        {
            thread::sleep(left.min(Observation::LOOK));
            observation.poll(observer);
            there = observation.is_there();
        }
        observation.end(observer)
    };
    let (seen, traced) = match &folder {
        Some(folder) => traced(folder.path(), length, observe)?,
        None => (observe(&mut NoObserver).map_err(Failure::run)?, Ok(())),
    };

    let complete = there && !stopped();
    // The actual duration, not the requested one.
    plan.duration_ns = seen.window_ns;
    let ObservationResult { recording, notes, scene, .. } = seen;
    let cost = recording.scalar("observe", "cpu");
    let cost = cost.map(|cost| Note::new(format!("observing took {cost:.2} % of a CPU"), None));
    let about = Metadata {
        title: format!("{}, {}, process {}", vm.vmm, vm.accel, vm.pid),
        command: command(args),
        baseline: plan.policy_name.clone(),
        environment: vcoop_lab::environment(),
        notes: notes.into_iter().chain(unknown).chain(cost).collect(),
        ..Metadata::default()
    };
    let result = observed(&plan, recording, complete, about);
    let printed = print(&if args.json { result.to_json() } else { render(&result, style()) });
    traced?;
    if let Some(folder) = folder {
        let plans = std::slice::from_ref(&plan);
        folder.write(&result, None, plans, &text)?;
        folder.note_written(args.quiet);
    }
    if let (Some(asked), Some(scene)) = (asked, scene) {
        let written = asked.write(&scene, &plan)?;
        if !args.quiet {
            note(&written);
        }
    }
    if !there {
        return Err(Failure::run(format!("{} has ended", vm.name)));
    }
    if stopped() { Err(Failure::Interrupted) } else { printed }
}

/// A scenario to be written.
struct ScenarioRequest {
    file: PathBuf,
    /// The host as it was before this thread moved off the vCPUs' CPUs.
    here: ThisHost,
    /// Prefix of the names of its captures.
    stem: String,
    /// The host's costs: a line of `[host]`; none for those of the default profile.
    profile: String,
}

impl ScenarioRequest {
    /// Checks before the observation that a scenario is possible, and that the file can be written.
    fn new(file: &Path, args: &ObserveArgs) -> Result<Self, Failure> {
        named("--scenario ", file)?;
        let (calibration, here) = (&args.calibration, ThisHost::look());
        let why =
            |why: &dyn Display| Failure::usage(format!("--scenario {}: {why}", file.display()));
        let stem = file.file_stem().and_then(|stem| stem.to_str());
        let stem = stem.ok_or_else(|| why(&"name a file, like vm.toml"))?.to_owned();
        if stem.contains(|c: char| c == '"' || c == '\\' || c.is_control()) {
            return Err(why(&"its name has quotes in it; name another"));
        }
        can_write_whole(file).map_err(|e| why(&e))?;
        // Names in a scenario are relative to it.
        let profile = match (calibration.set()?, &calibration.file) {
            (Some(_), Some(profile)) => {
                let profile = std::path::absolute(profile).map_err(|e| why(&e))?;
                format!("profile = \"{}\"\n", profile.display())
            }
            _ => String::new(),
        };
        Ok(Self { file: file.to_owned(), here, stem, profile })
    }

    /// Writes the scenario and its captures; returns the message about them.
    fn write(&self, scene: &Scene, plan: &Plan) -> Result<String, Failure> {
        let (here, vm) = (&self.here, &plan.vms[0].name);
        let dir = self.file.parent().unwrap_or(Path::new(""));
        let captures = scene.captures();
        for (name, text) in &captures {
            let path = dir.join(format!("{}{name}", self.stem));
            write(&path, |file| {
                let mut file = GzEncoder::new(file, Compression::default());
                file.write_all(text.as_bytes())?;
                file.finish()
            })?;
        }
        let seconds = plan.duration_ns as f64 / 1e9;
        let tables = scene.tables(&self.stem, here.cpus(), &|cpu| here.number_of(cpu));
        let urgent = if scene.cooperates {
            "    \"As many runs of a vCPU are urgent as the guest's driver counted; which runs they were is not known\",\n"
        } else {
            ""
        };
        let text = |policies: &[&str]| {
            let policies = policies.iter().map(|policy| format!("{policy:?}"));
            let policies = policies.collect::<Vec<_>>().join(", ");
            format!(
                "# Written by vcoop observe: this host, {vm}, and the load beside it, for {seconds:.1} s.\n\
             name = {vm:?}\ntitle = \"{vm}, as it ran, under other policies\"\n\
             duration = \"{}ms\"\nrepeats = 5\n\
             assumptions = [\n\
             \x20   \"Costs are those of the profile; host.profile = FILE takes this host's, of vcoop calibrate\",\n\
             \x20   \"A vCPU wakes up when it did; a sleep of another thread stays as long as it was\",\n{urgent}\
             ]\n\n[compare]\npolicy = [{policies}]\n\n{}\n{tables}",
                (plan.duration_ns / 1_000_000).max(1),
                here.table().replacen("[host]\n", &format!("[host]\n{}", self.profile), 1),
            )
        };
        let file = self.file.display().to_string();
        // Checks that the scenario can be run.
        let parsed = Scenario::parse(&file, &text(&ASKED[..1]), &[], &Loader::default());
        let scenario = parsed.map_err(|found| {
            let wrong = "what was observed is no scenario; please report it";
            Failure::run(format!("{file}: {wrong}\n{found}"))
        })?;
        // A VM that is pinned, or has more vCPUs than the host has CPUs, is not pinned otherwise.
        let can_be = |policy: &&str| {
            (scene.cooperates || *policy != DYNAMIC)
                && scenario.plans(Some(&[(*policy).to_owned()])).is_ok()
        };
        let policies: Vec<&str> = ASKED.into_iter().filter(can_be).collect();
        write(&self.file, |mut file| file.write_all(text(&policies).as_bytes()))?;
        let (n, file) = (captures.len(), quoted(&file));
        Ok(format!("vcoop: wrote {file} and {n} captures; vcoop run {file} says what would help"))
    }
}

/// A scenario has the CPUs that this process may use, which must include those of the vCPUs.
fn may_use_all(here: &ThisHost, subject: &ObservedVm) -> Result<(), Failure> {
    let mut cpus = subject.vcpus.iter().flat_map(|v| affinity(v.tid).unwrap_or_default());
    match cpus.find(|cpu| here.number_of(*cpu).is_none()) {
        Some(cpu) => Err(Failure::usage(format!(
            "--scenario: a vCPU of {} may use CPU {cpu}, which vcoop may not; start it without taskset",
            subject.name
        ))),
        None => Ok(()),
    }
}

/// Policies that a scenario of an observed VM compares, if they are possible.
const ASKED: [&str; 6] = ["vanilla", "wake-boost", DYNAMIC, "static", "pinned", "isolated"];

/// The policy that needs the guest's help.
const DYNAMIC: &str = "dynamic";

/// The VM as a scenario and its plan, with no policy in force.
fn plan(vm: &Vm, subject: &ObservedVm, length: Ns) -> Result<(String, Plan), Failure> {
    let cpus = vcoop_lab::host_facts().cpus;
    let pcpus = cpus.iter().max().map_or(1, |last| *last as usize + 1);
    let living = RunningVm { name: vm.name.clone(), vcpus: subject.vcpus.len().max(1), pcpus };
    let text = living.scenario(&["vanilla".to_owned()]);
    let scenario = Scenario::parse("--", &text, &[], &NoCaptures).map_err(refuse)?;
    let mut plans = scenario.plans(None).map_err(refuse)?;
    let mut plan = plans.swap_remove(0);
    plan.policy_name = AS_IS.to_owned();
    plan.duration_ns = length;
    Ok((text, plan))
}

/// Observes with a trace in a folder. Returns what was observed, and whether the trace could be written.
fn traced<E: Display>(
    dir: &Path,
    length: Ns,
    observe: impl FnOnce(&mut dyn Observer) -> Result<ObservationResult, E>,
) -> Result<(ObservationResult, Result<(), Failure>), Failure> {
    let mut seen = None;
    let written = write(&dir.join(TRACE), |file| {
        let mut trace = Trace::new(BufWriter::new(file), 0, (0, length));
        let observed = observe(&mut trace);
        let failed = observed.as_ref().err().map(ToString::to_string);
        seen = Some(observed);
        failed.map_or_else(|| trace.finish().map(drop), |why| Err(io::Error::other(why)))
    });
    match seen {
        Some(seen) => Ok((seen.map_err(Failure::run)?, written)),
        None => Err(written.expect_err("who does not write does not observe")),
    }
}

/// The command that repeats the observation.
fn command(args: &ObserveArgs) -> String {
    about("vcoop observe", &args.vm, &format!("--for {}", quoted(&args.time)))
}
