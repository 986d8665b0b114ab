//! Avoids CPUs by taking them offline.

use std::thread;
use std::time::{Duration, Instant};

use super::cpuset;
use crate::change::{Change, Changes, Target, UndoReport, give_back, is_gone};
use crate::contents::Contents;
use crate::cpus::Cpus;
use crate::error::{FoldError, ROOT};
use crate::files::{Roots, may_write, read};

/// Longest wait for a CPU that came online.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) fn check(roots: &Roots, write: bool) -> Result<(), FoldError> {
    if cpuset::is_legacy(roots) {
        return Err(FoldError::Missing {
            what: "a cpuset of cgroup v1 loses a CPU that goes offline for good: nothing would give it back"
                .to_owned(),
            remedy: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)",
        });
    }
    let path = roots.cpus();
    let files = std::fs::read_dir(&path).map_err(FoldError::io(&path))?;
    let mut files = files.flatten().map(|entry| entry.path().join("online"));
    let Some(file) = files.find(|file| file.is_file()) else {
        return Err(FoldError::Missing {
            what: format!("{}: no CPU can be taken offline", path.display()),
            remedy: "a kernel with CONFIG_HOTPLUG_CPU, or --by cpuset",
        });
    };
    if write {
        may_write(&file).map_err(|e| FoldError::Missing {
            what: format!("{}: {e}", file.display()),
            remedy: ROOT,
        })?;
    }
    Ok(())
}

pub(super) fn changes(roots: &Roots, contents: &Contents, avoided: &Cpus) -> Changes {
    let mut all = Changes::default();
    let change = |cpu: u32, from: &str, to: &str| Change {
        target: Target::Cpu(cpu),
        from: from.to_owned(),
        to: to.to_owned(),
        before: "1".to_owned(),
        instead: None,
    };
    for cpu in &contents.cpus {
        match read(&roots.online(*cpu)) {
            Ok(now) if now != "0" => all.foreign.push((Target::Cpu(*cpu), now)),
            Ok(_) if avoided.contains(cpu) => {}
            Ok(_) => all.changes.push(change(*cpu, "0", "1")),
            Err(e) if is_gone(&e) => all.gone.push(Target::Cpu(*cpu)),
            // It is tried again.
            Err(_) => {}
        }
    }
    for cpu in avoided - &contents.cpus {
        let target = Target::Cpu(cpu);
        match read(&roots.online(cpu)) {
            _ if cpu == 0 => all.left.push((target, "CPU 0 stays online".to_owned())),
            Ok(now) if now == "1" => all.changes.push(change(cpu, "1", "0")),
            Ok(_) => {}
            Err(e) => all.left.push((target, e.to_string())),
        }
    }
    all
}

pub(super) fn undo(roots: &Roots, contents: &mut Contents, undone: &mut UndoReport) {
    let offline = contents.cpus.clone();
    for cpu in &offline {
        let target = Target::Cpu(*cpu);
        if give_back(roots, &target, |now| now == "0", "1", None, undone) {
            contents.forget(&target);
        }
    }
    await_cpusets(roots, &(&offline - &contents.cpus));
}

/// Waits until the root cgroup has CPUs that were brought online. Up to about Linux 6.9 it gets them a moment later,
/// and until then the layout looks as if a partition had them.
pub(super) fn await_cpusets(roots: &Roots, online: &Cpus) {
    let began = Instant::now();
    let lacks = || roots.shared().is_some_and(|shared| !online.is_subset(&shared));
    while lacks() && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
}
