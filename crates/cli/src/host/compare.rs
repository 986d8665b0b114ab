//! `vcoop compare`: compares policies in turns on a running VM.

use vcoop_daemon::{Request, Response, VmId, could_be, setting_of};
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Backend, Column, PolicyApplier, PolicyOutcome, Vm};
use vcoop_experiment::format;
use vcoop_experiment::runner::Experiment;
use vcoop_model::Note;
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::{Ns, Plan, PolicyPlan};
use vcoop_model::scenario::Scenario;
use vcoop_report::data::Spools;
use vcoop_report::{SLICES, render};
use vcoop_text::about;

use crate::args::host::CompareArgs;
use crate::failure::{Failure, ended};
use crate::folder::Folder;
use crate::host::owner::{self, Owner};
use crate::interrupt::stop_flag;
use crate::options::Calibration;
use crate::output::{note, print, style};
use crate::run::{RunObservers, command_line, measured, refuse_twice};
use crate::scenario::{Overrides, length, refuse};

/// Time before the measurement of each turn: a policy's budgets fill up, and its threads reach the shares of CPU time
/// that it gives them.
const WARMUP: &str = "500ms";

pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    stop_flag();
    refuse_twice(&args.policy)?;
    let policies: Vec<&str> = args.policy.iter().map(String::as_str).collect();
    could_be(&policies, &args.sets).map_err(Failure::usage)?;
    length("--each", &args.each)?;
    if args.rounds == 0 {
        return Err(Failure::usage("--rounds: at least 1"));
    }
    let found = owner::find(&args.vm)?;
    let text = vcoop_daemon::living(&found).scenario(&args.policy);
    let overrides = overrides(&args.sets, &args.each, args.rounds)?;
    let parsed = Scenario::parse(&found.name, &text, &overrides.sets, &NoCaptures);
    let scenario = parsed.map_err(|why| overrides.refuse(why))?;
    let mut plans = scenario.plans(None).map_err(refuse)?;
    for plan in &plans {
        vcoop_daemon::fits(plan).map_err(Failure::usage)?;
        if vcoop_daemon::needs_driver(plan)
            && !vcoop_window::find(found.pid).is_ok_and(|w| w.is_some())
        {
            let why = vcoop_daemon::no_driver(&found.name, &plan.policy_name);
            return Err(Failure::Missing(why.to_string()));
        }
    }
    if args.out.is_some() {
        plans.iter_mut().for_each(|plan| plan.slices = SLICES);
    }
    let folder = args.out.as_deref();
    let folder = folder.map(|dir| Folder::new(dir, &scenario.name, args.force)).transpose()?;
    let owner = Owner::connect_or_be(args.quiet)?;
    let policies: Vec<&PolicyPlan> = plans.iter().map(|plan| &plan.policy).collect();
    let said = vcoop_daemon::notes(&found, &policies);
    let (id, sets) = (VmId::of(&found), args.sets.clone());
    let applies = Applier { owner, vm: id, sets, in_force: false, engine_ns: None };
    let vm = Vm::new(found, Box::new(applies), !args.no_probe, args.exec.clone());
    vm.available().map_err(|missing| Failure::Missing(missing.to_string()))?;
    if !args.quiet {
        announce(args, &plans);
    }
    let columns = [Column::all(&vm, plans.len())];
    let spools = folder.as_ref().map(|folder| Spools::new(folder.path()));
    let eyes = RunObservers::new(&plans, spools.as_ref());
    let experiment = Experiment { plans: &plans, columns: &columns, jobs: 1 };
    let (measured, failure) = measured(&experiment, &eyes, args.quiet)?;
    let about = Metadata {
        title: scenario.title.clone(),
        command: command(args),
        baseline: scenario.baseline.clone(),
        environment: vm.environment(),
        notes: vm
            .notes()
            .into_iter()
            .chain(said.into_iter().map(|said| Note::new(said, None)))
            .collect(),
        limits: args.may_cost.limits(),
        measured_s: plans.first().and_then(|plan| vm.measured_s(plan.duration_ns)),
        ..Metadata::default()
    };
    let result = document(&plans, &measured, about);
    let printed = print(&if args.json { result.to_json() } else { render(&result, style()) });
    if let Some(folder) = folder {
        let samples = spools.as_ref().map(|spools| (spools, &measured));
        folder.write(&result, samples, &plans, &text)?;
        folder.note_written(args.quiet);
    }
    ended(failure, result.interrupted).and(printed)
}

/// What the options change. Errors name those of this command.
fn overrides(sets: &[String], each: &str, rounds: u32) -> Result<Overrides, Failure> {
    let times = [("--duration", &Some(each.to_owned())), ("--warmup", &Some(WARMUP.to_owned()))];
    let repeats = [("--repeats", &Some(rounds.to_string()))];
    let overrides = Overrides::of(sets, &Calibration::default(), &times, &repeats)?;
    Ok(overrides.called("--duration", "--each").called("--repeats", "--rounds"))
}

fn announce(args: &CompareArgs, plans: &[Plan]) {
    let names: Vec<&str> = plans.iter().map(|plan| plan.policy_name.as_str()).collect();
    let rounds: u64 = plans.iter().map(|plan| u64::from(plan.repeats)).sum();
    let each = plans.first().map_or(0, |plan| plan.duration_ns + plan.warmup_ns);
    let seconds = rounds * each / 1_000_000_000;
    note(&format!(
        "vcoop: {} on {} in turns, {}: {seconds} s or more; it keeps running",
        names.join(", "),
        args.vm,
        format::count(args.rounds.into(), "round"),
    ));
}

/// The command that repeats the measurement.
fn command(args: &CompareArgs) -> String {
    let mut words = Vec::new();
    let mut option = |name: &str, value: &str| words.extend([name.to_owned(), value.to_owned()]);
    option("--policy", &args.policy.join(","));
    args.sets.iter().for_each(|set| option("--set", set));
    option("--rounds", &args.rounds.to_string());
    option("--each", &args.each);
    args.exec.iter().for_each(|line| option("--exec", line));
    words.extend(args.may_cost.arguments());
    if args.no_probe {
        words.push("--no-probe".to_owned());
    }
    about("vcoop compare", &args.vm, &command_line(&words))
}

/// Applies policies through their owner.
#[derive(Debug)]
struct Applier {
    owner: Owner,
    vm: VmId,
    sets: Vec<String>,
    in_force: bool,
    /// CPU time of the owner's engine when the policy began.
    engine_ns: Option<Ns>,
}

impl Applier {
    /// CPU time that the owner's engine has taken.
    fn engine(&mut self) -> Option<Ns> {
        match self.owner.ask(&Request::Status { vm: Some(self.vm.clone()) }) {
            Ok(Response::Status(status)) => Some(status.engine_cpu_ns),
            _ => None,
        }
    }
}

impl PolicyApplier for Applier {
    fn apply(&mut self, plan: &Plan) -> Result<(), String> {
        if matches!(plan.policy, PolicyPlan::Vanilla) {
            return Ok(());
        }
        let (vm, policy) = (self.vm.clone(), plan.policy_name.clone());
        // Settings of the other policies are for their own turns.
        let own = |set: &&String| setting_of(&policy, set).is_some();
        let sets = self.sets.iter().filter(own).cloned().collect();
        self.engine_ns = self.engine();
        self.owner.ask(&Request::Attach { vm, policy, sets }).map_err(Failure::text)?;
        self.in_force = true;
        Ok(())
    }

    fn take_back(&mut self) -> Result<PolicyOutcome, String> {
        if !std::mem::take(&mut self.in_force) {
            return Ok(PolicyOutcome::default());
        }
        let before = self.engine_ns.take();
        let engine_ns = self.engine().zip(before).map(|(now, then)| now.saturating_sub(then));
        let detached = self.owner.ask(&Request::Detach { vm: self.vm.clone() });
        let Response::Detached(last) = detached.map_err(Failure::text)? else {
            return Err("the policy was not taken back".to_owned());
        };
        let heard_by = last.hears.clone();
        let mut applied =
            PolicyOutcome { for_ns: last.for_ns, engine_ns, heard_by, ..PolicyOutcome::default() };
        for vcpu in &last.vcpus {
            applied.boosts += vcpu.boosts;
            applied.throttles += vcpu.throttles;
            applied.too_long += vcpu.too_long;
            applied.by_vm += vcpu.by_vm;
            applied.boosted_ns += vcpu.boosted_ns;
        }
        if last.driven().next().is_none() {
            let why = last.vcpus.iter().find_map(|vcpu| vcpu.left_alone.clone());
            return Err(format!("every vCPU was left alone: {}", why.unwrap_or_default()));
        }
        Ok(applied)
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::running_vm::RunningVm;

    use super::{NoCaptures, Scenario, overrides};

    #[test]
    fn errors_name_the_options_of_this_command() {
        let vm = RunningVm { name: "web".to_owned(), vcpus: 1, pcpus: 1 };
        let text = vm.scenario(&["vanilla".to_owned()]);
        let refused = |each: &str, rounds| {
            let given = overrides(&[], each, rounds);
            let given = given.unwrap_or_else(|why| panic!("{}", why.text()));
            given.refuse(Scenario::parse("web", &text, &given.sets, &NoCaptures).unwrap_err())
        };
        assert!(refused("10us", 2).text().contains("--each:1:10: `10us` is too short"));
        let many = refused("1s", 123_456_789).text();
        assert!(many.contains("--rounds:1:9:"), "{many}");
    }
}
