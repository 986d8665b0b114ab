//! `vcoop attach`, `vcoop detach`, `vcoop restore`: applies policies to running VMs, and takes them back.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use vcoop_daemon::{Request, Response, RunFolder, VcpuStatus, VmId, VmStatus};
use vcoop_experiment::format;
use vcoop_text::about;

use crate::args::host::{AttachArgs, DetachArgs, RestoreArgs};
use crate::failure::Failure;
use crate::host::owner::{self, Owner};
use crate::interrupt::end_flag;
use crate::output::{json, log, print, print_at_end};
use crate::scenario::length;

/// Time between two checks that the policy is still in force.
const LOOK: Duration = Duration::from_millis(100);

/// The document of `vcoop attach --json`.
#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    /// Why it ended: `interrupted`, `time`, `detached` or `ended`.
    end: &'static str,
    #[serde(flatten)]
    vm: VmStatus,
}

pub(crate) fn attach(args: &AttachArgs) -> Result<(), Failure> {
    let stop = end_flag();
    let lasts = args.time.as_ref().map(|text| length("--for", text)).transpose()?;
    let length = lasts.map(Duration::from_nanos);
    vcoop_daemon::could_be(&[&args.policy], &args.sets).map_err(Failure::usage)?;
    let vm = owner::find(&args.vm)?;
    let id = VmId::of(&vm);
    let mut owner = Owner::connect_or_be(args.quiet)?;
    let (policy, sets) = (args.policy.clone(), args.sets.clone());
    let attached = owner.ask(&Request::Attach { vm: id.clone(), policy, sets })?;
    let Response::Attached(mut last) = attached else { return Err(unexpected()) };
    let began = Instant::now();
    if !args.quiet {
        announce(&last, vm.unplaced, length);
    }
    let end = loop {
        if stop.load(Ordering::Relaxed) {
            break "interrupted";
        }
        if length.is_some_and(|length| began.elapsed() >= length) {
            break "time";
        }
        let left = length.map_or(LOOK, |length| length.saturating_sub(began.elapsed()).min(LOOK));
        thread::sleep(left);
        let Response::Status(status) = owner.ask(&Request::Status { vm: Some(id.clone()) })? else {
            return Err(unexpected());
        };
        match status.vms.into_iter().find(|vm| vm.vm == id) {
            Some(now) => *last = now,
            None if owner::find(&id.pid.to_string()).is_ok() => break "detached",
            None => break "ended",
        }
    };
    if let Ok(Response::Detached(vm)) = owner.ask(&Request::Detach { vm: id }) {
        last = vm;
    }
    drop(owner);
    if args.json {
        let (schema, version) = ("vcoop.attach/1", env!("CARGO_PKG_VERSION"));
        let document = Document { schema, version, end, vm: *last };
        return print(&json(&document)?);
    }
    print(&summary(&last, end))
}

fn unexpected() -> Failure {
    Failure::run("the vcoop that applies policies answered something else than was asked")
}

/// While the policy is in force: a reader of stderr that does not read must not keep it there.
fn announce(vm: &VmStatus, unplaced: Option<usize>, length: Option<Duration>) {
    let (name, policy) = (&vm.vm.name, &vm.policy);
    let end = match length {
        Some(length) => format!("for {}", format::time(length.as_nanos() as f64 / 1e3)),
        None => format!("until Ctrl-C or `{}`", about("vcoop detach", name, "")),
    };
    log(&format!("vcoop: {policy} on {} of {name} {end}", vm.extent()));
    for vcpu in &vm.vcpus {
        if let Some(why) = &vcpu.left_alone {
            log(&format!("vcoop: vCPU {} is left alone: {why}", vcpu.index));
        }
    }
    for said in &vm.notes {
        log(&format!("vcoop: {said}"));
    }
    if let Some(n @ 1..) = unplaced {
        log(&format!("vcoop: {n} vCPUs are left alone: their threads are not known (`vcoop vms`)"));
    }
}

/// The actions of a policy, as text.
fn summary(vm: &VmStatus, end: &str) -> String {
    let VmStatus { vm: id, policy, for_ns, vcpus, timers, hears, interrupts, rests, asked, .. } =
        vm;
    let shown = |ns: u64| format::time(ns as f64 / 1e3);
    let why = match end {
        "detached" => " (detached by another command)",
        "ended" => " (the VM has ended)",
        _ => "",
    };
    let mut text = format!("{}: {policy} for {}{why}\n", id.name, shown(*for_ns));
    let row = |cells: [String; 6]| {
        let [index, boosts, boosted, share, throttled, denied] = cells;
        format!(
            "  {index:<4}  {boosts:>9}  {boosted:>9}  {share:>7}  {throttled:>9}  {denied:>7}\n"
        )
    };
    let heads = ["vCPU", "boosts", "boosted", "share", "throttled", "denied"].map(str::to_owned);
    text += &row(heads);
    let mut add = |who: String, v: &VcpuStatus| {
        let VcpuStatus { left_alone, boosts, boosted_ns, throttles, denied, .. } = v;
        if let Some(why) = left_alone {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {who:<4}  left alone: {why}");
            return;
        }
        if v.budget_left_ns.is_none() {
            let _ = writeln!(text, "  {who:<4}  all the time");
            return;
        }
        let share = *boosted_ns as f64 * 100.0 / (*for_ns).max(1) as f64;
        let share = format!("{share:.1} %");
        let (boosts, throttles, denied) =
            (boosts.to_string(), throttles.to_string(), denied.to_string());
        text += &row([who, boosts, shown(*boosted_ns), share, throttles, denied]);
    };
    vcpus.iter().for_each(|v| add(v.index.to_string(), v));
    // QEMU's main thread, which delivers the timers of an emulated guest.
    timers.iter().for_each(|v| add("main".to_owned(), v));
    let heard = |v: &&VcpuStatus| v.heard.is_some();
    for v in vcpus.iter().filter(heard) {
        let (index, deadlines, notified) = (v.index, v.deadlines, v.notified);
        let silent = if v.heard == Some(true) { "" } else { "; its driver has gone" };
        let _ = writeln!(
            text,
            "  vCPU {index}: {deadlines} deadlines met ahead of time, {notified} boosts ended by the \
             guest{silent}"
        );
    }
    for v in vcpus {
        let reasons = [
            (v.too_long, "because boosts lasted longer than longest_boost allows"),
            (v.by_vm, "by the budget of the VM"),
        ];
        for (times, why) in reasons.into_iter().filter(|(times, _)| *times > 0) {
            let (index, throttles) = (v.index, v.throttles);
            let _ = writeln!(text, "  vCPU {index}: {times} of {throttles} times throttled {why}");
        }
    }
    if let Some(of) = interrupts {
        // Not known where the kernel decides, and where nothing was boosted.
        let reaction = match of.reaction_max_ns {
            0 => String::new(),
            max => format!(
                "; reaction p50 {}, p99 {}, max {}",
                shown(of.reaction_p50_ns),
                shown(of.reaction_p99_ns),
                shown(max)
            ),
        };
        let _ = writeln!(
            text,
            "  interrupts: {} heard, {} coalesced, {} lost, {} boosted{reaction}",
            of.heard, of.coalesced, of.lost, of.boosted
        );
    }
    if !hears.is_empty() {
        let _ = writeln!(text, "  heard by {}", hears.join(" and "));
    }
    if let Some(asked) = asked {
        let _ = writeln!(text, "  its guest was last asked to use {asked} of its vCPUs");
    }
    if *rests {
        text += "  at rest: hardly any thread of the host waits for a CPU\n";
    }
    for why in &vm.not_given_back {
        let _ = writeln!(text, "  not given back: {why}; `vcoop restore` tries again");
    }
    if vm.not_given_back.is_empty() {
        text += "every thread has what it had before\n";
    }
    text
}

pub(crate) fn detach(args: &DetachArgs) -> Result<(), Failure> {
    let Some(response) = owner::ask_owner(&Request::Status { vm: None })? else {
        return Err(Failure::run("no policy is applied to any VM"));
    };
    let Response::Status(status) = response else { return Err(unexpected()) };
    // What one VM or stdout refuses is no reason to leave the others with their policies.
    let (mut text, mut end) = (String::new(), Ok(()));
    for vm in chosen(&status.vms, args.vm.as_deref())? {
        match owner::ask_owner(&Request::Detach { vm: vm.clone() }) {
            Ok(Some(Response::Detached(last))) => text += &summary(&last, ""),
            Ok(_) => {}
            Err(why) => end = end.and(Err(why)),
        }
    }
    print_at_end(&text, end)
}

/// The VMs to detach, of those with a policy: that with a name or a process id, or all.
fn chosen<'a>(vms: &'a [VmStatus], name: Option<&str>) -> Result<Vec<&'a VmId>, Failure> {
    let ids = vms.iter().map(|vm| &vm.vm);
    let Some(name) = name else { return Ok(ids.collect()) };
    let is_it = |id: &&VmId| id.name == name || id.pid.to_string() == name;
    let chosen: Vec<&VmId> = ids.clone().filter(is_it).collect();
    let named = chosen.iter().filter(|id| id.name == name);
    let pids: Vec<u32> = named.map(|id| id.pid).collect();
    if pids.len() > 1 {
        return Err(owner::several(name, &pids));
    }
    if chosen.is_empty() {
        let names: Vec<&str> = ids.map(|id| id.name.as_str()).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Failure::run(format!(
            "{name}: no policy is applied to it\n  VMs with a policy: {there}"
        )));
    }
    Ok(chosen)
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let left = vcoop_daemon::restore(&RunFolder::usual()).map_err(owner::failure)?;
    let mut text = owner::said(&left).join("\n");
    if text.is_empty() && !args.quiet {
        "nothing was left changed".clone_into(&mut text);
    }
    if !text.is_empty() {
        text.push('\n');
    }
    let end = if left.failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::run("some threads do not have what they had; they stay in the journal"))
    };
    print_at_end(&text, end)
}

#[cfg(test)]
mod tests {
    use super::{VmId, VmStatus, chosen, summary};

    #[test]
    fn a_reaction_is_told_only_where_it_was_measured() {
        let of = |boosted, max| {
            let mut vm = VmStatus { interrupts: Some(Default::default()), ..VmStatus::default() };
            let interrupts = vm.interrupts.as_mut().unwrap();
            (interrupts.heard, interrupts.boosted, interrupts.reaction_max_ns) = (7, boosted, max);
            summary(&vm, "")
        };
        assert!(of(3, 5_000).contains("3 boosted; reaction p50 0 us, p99 0 us, max 5.00 us\n"));
        assert!(of(0, 0).contains("  interrupts: 7 heard, 0 coalesced, 0 lost, 0 boosted\n"));
    }

    #[test]
    fn a_name_that_several_vms_have_detaches_none() {
        let vm = |pid: u32, name: &str| {
            let vm = VmId { pid, start_ticks: 1, name: name.to_owned() };
            VmStatus { vm, ..VmStatus::default() }
        };
        let vms = [vm(7, "web"), vm(8, "db"), vm(9, "web"), vm(10, "pair"), vm(10, "pair#5")];
        let pids = |name| {
            let chosen = chosen(&vms, name).map_err(|why| (why.code(), why.text()))?;
            Ok::<_, (u8, String)>(chosen.iter().map(|id| id.pid).collect::<Vec<_>>())
        };
        let (code, why) = pids(Some("web")).unwrap_err();
        assert!(code == 2 && why.ends_with("process id of one: 7, 9"), "{why}");
        assert_eq!(pids(Some("9")).unwrap(), [9]);
        assert_eq!(pids(Some("10")).unwrap(), [10, 10]);
        assert_eq!(pids(Some("db")).unwrap(), [8]);
        assert_eq!(pids(None).unwrap(), [7, 8, 9, 10, 10]);
        assert_eq!(pids(Some("other")).unwrap_err().0, 1);
    }
}
