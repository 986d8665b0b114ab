//! Avoids CPUs by `cpuset.cpus` of the cgroups below the root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::change::{Change, Changes, Target, UndoReport, give_back, is_gone, same};
use crate::contents::Contents;
use crate::cpus::{self, Cpus};
use crate::error::{FoldError, ROOT};
use crate::files::{Roots, list, may_write, read};

/// Most cgroups below the root that are looked at.
const MOST_CGROUPS: usize = 4096;

/// A cgroup below the root.
struct Child {
    name: String,
    inode: u64,
    /// `cpuset.cpus`; `None`: the cgroup has no such file.
    cpus: Option<String>,
    is_partition: bool,
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_ascii_whitespace().any(|w| w == word)
}

/// Whether cgroups below the root have cpusets.
pub(super) fn is_enabled(roots: &Roots) -> bool {
    let control = read(&roots.cgroup.join("cgroup.subtree_control"));
    control.is_ok_and(|text| has_word(&text, "cpuset"))
}

/// Whether cgroup v1 has cpusets besides that of its root. The kernel counts the cgroups of each hierarchy; cgroup v2
/// is hierarchy 0.
pub(super) fn is_legacy(roots: &Roots) -> bool {
    let counts = read(&roots.proc.join("cgroups")).unwrap_or_default();
    counts.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, hierarchy, cgroups, ..] = words[..] else { return false };
        name == "cpuset" && hierarchy != "0" && cgroups.parse::<u64>().is_ok_and(|n| n > 1)
    })
}

pub(super) fn check(roots: &Roots, write: bool) -> Result<(), FoldError> {
    let path = roots.cgroup.join("cgroup.controllers");
    let missing = |what| {
        let remedy = if is_legacy(roots) {
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)"
        } else {
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or --by hotplug"
        };
        Err(FoldError::Missing { what, remedy })
    };
    match read(&path) {
        Err(_) => return missing(format!("{}: no cgroup v2 is mounted there", path.display())),
        Ok(there) if !has_word(&there, "cpuset") => {
            return missing(format!("{}: there is no cpuset controller", path.display()));
        }
        Ok(_) => {}
    }
    let not_of_a_root = ["cgroup.type", "cpuset.cpus"].map(|name| roots.cgroup.join(name));
    if let Some(file) = not_of_a_root.iter().find(|file| file.exists()) {
        return Err(FoldError::Missing {
            what: format!(
                "{}: the guest's root cgroup has no such file; this is the one of a container",
                file.display()
            ),
            remedy: "run it in the guest itself, outside of containers",
        });
    }
    if write {
        let control = roots.cgroup.join("cgroup.subtree_control");
        may_write(&control).map_err(|e| FoldError::Missing {
            what: format!("{}: {e}", control.display()),
            remedy: ROOT,
        })?;
    }
    Ok(())
}

/// Whether a cgroup is the root of a partition of CPUs, or is configured to be.
fn is_partition(cgroup: &Path) -> bool {
    let says = read(&cgroup.join("cpuset.cpus.partition")).unwrap_or_default();
    !matches!(says.as_str(), "" | "member")
}

/// Whether a cgroup no longer exists, or another one has its name.
fn is_another(roots: &Roots, target: &Target) -> bool {
    let Target::Cgroup { name, inode } = target else { return false };
    match fs::symlink_metadata(roots.cgroup.join(name)) {
        Ok(meta) => meta.ino() != *inode,
        Err(e) => is_gone(&e),
    }
}

fn children(roots: &Roots) -> Result<Vec<Child>, FoldError> {
    let entries = fs::read_dir(&roots.cgroup).map_err(FoldError::io(&roots.cgroup))?;
    let mut children = Vec::new();
    for entry in entries.flatten().take(MOST_CGROUPS) {
        // A cgroup that was removed meanwhile is left out.
        let Ok(meta) = entry.metadata() else { continue };
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !meta.is_dir() {
            continue;
        }
        let is_partition = is_partition(&entry.path());
        let cpus = read(&entry.path().join("cpuset.cpus")).ok();
        children.push(Child { name, inode: meta.ino(), cpus, is_partition });
    }
    children.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(children)
}

pub(super) fn changes(
    roots: &Roots,
    contents: &Contents,
    used: &Cpus,
    avoided: &Cpus,
) -> Result<Changes, FoldError> {
    let mut all = Changes::default();
    let enabled = is_enabled(roots);
    let unset = unset(roots);
    let children = children(roots)?;
    for (target, _) in contents.targets() {
        if is_another(roots, &target) {
            all.gone.push(target);
        }
    }
    for child in children {
        let target = Target::Cgroup { name: child.name.clone(), inode: child.inode };
        let now = match child.cpus {
            Some(now) => now,
            // It gets a cpuset with the controller.
            None if !enabled => String::new(),
            None => continue,
        };
        let ours = contents.ours(&target);
        if let Some(ours) = ours
            && (child.is_partition || !ours.is_mine(&now))
        {
            all.foreign.push((target, now));
            continue;
        }
        let before = ours.map_or_else(|| now.clone(), |ours| ours.before.clone());
        let to = if child.is_partition {
            all.left.push((target.clone(), "it is a partition with CPUs of its own".to_owned()));
            before.clone()
        } else {
            match wanted(&before, used, avoided) {
                Ok(to) => to,
                Err(why) => {
                    all.left.push((target.clone(), why));
                    before.clone()
                }
            }
        };
        let instead = if to.is_empty() { unset.clone() } else { None };
        let has = |text: &str| same(text, &now);
        let is_done = has(&to) || ours.is_some() && instead.as_deref().is_some_and(has);
        if !is_done {
            all.changes.push(Change { target, from: now, to, before, instead });
        }
    }
    Ok(all)
}

/// The content of `cpuset.cpus` for a cgroup that had `before`; or why it is left alone.
fn wanted(before: &str, used: &Cpus, avoided: &Cpus) -> Result<String, String> {
    let Some(own) = cpus::parse(before) else {
        return Err(format!("{before:?} is no list of CPUs"));
    };
    if avoided.is_empty() || own.is_disjoint(avoided) && !own.is_empty() {
        return Ok(before.to_owned());
    }
    let wanted = if own.is_empty() { used.clone() } else { &own & used };
    if wanted.is_empty() {
        return Err(format!("it was given CPUs {before}, all of which would be left"));
    }
    Ok(cpus::show(&wanted))
}

/// Which of `all` a cgroup may use, if `used` is asked for.
pub(super) fn in_use(
    roots: &Roots,
    contents: &Contents,
    used: &Cpus,
    all: &Cpus,
) -> Result<Cpus, FoldError> {
    let mut in_use = Cpus::new();
    if !is_enabled(roots) {
        return Ok(all.clone());
    }
    for child in children(roots)?.into_iter().filter(|child| !child.is_partition) {
        let Some(now) = child.cpus else { continue };
        let target = Target::Cgroup { name: child.name, inode: child.inode };
        let before = contents.ours(&target).map_or(&now, |ours| &ours.before);
        if wanted(before, used, &(all - used)).is_ok() {
            let own = cpus::parse(&now).filter(|own| !own.is_empty());
            in_use.extend(own.as_ref().unwrap_or(all) & all);
        }
    }
    Ok(if in_use.is_empty() { used.clone() } else { in_use })
}

/// List with the effect of an empty one: all possible CPUs except those of partitions. A list with a partition's CPU
/// would end the partition.
fn unset(roots: &Roots) -> Option<String> {
    let mut all = list(&roots.cpus().join("possible"))?;
    // Of the CPUs that are online, partitions have those that the root lacks, wherever they are.
    let online = list(&roots.cpus().join("online"))?;
    let shared = roots.shared();
    all.retain(|cpu| shared.as_ref().is_none_or(|s| s.contains(cpu) || !online.contains(cpu)));
    // Of those that are offline, what is written down; also for a partition that is not valid now.
    for child in children(roots).ok()?.into_iter().filter(|child| child.is_partition) {
        let folder = roots.cgroup.join(&child.name);
        let lists = ["cpuset.cpus", "cpuset.cpus.exclusive"].map(|name| list(&folder.join(name)));
        all.retain(|cpu| !lists.iter().flatten().any(|list| list.contains(cpu)));
    }
    (!all.is_empty()).then(|| cpus::show(&all))
}

/// Whether others use the cpuset controller below the root.
fn is_used(roots: &Roots, contents: &Contents) -> bool {
    let Ok(children) = children(roots) else { return true };
    children.into_iter().any(|child| {
        let path = roots.cgroup.join(&child.name);
        let says = |name: &str| read(&path.join(name)).unwrap_or_default();
        let ours = contents.ours(&Target::Cgroup { name: child.name, inode: child.inode });
        let has_own = child
            .cpus
            .is_some_and(|now| !now.is_empty() && !ours.is_some_and(|ours| ours.is_mine(&now)));
        // It would lose the CPUs that it had before.
        let had = ours.is_some_and(|ours| !ours.before.is_empty());
        has_own
            || had
            || child.is_partition
            || !says("cpuset.mems").is_empty()
            || has_word(&says("cgroup.subtree_control"), "cpuset")
    })
}

pub(super) fn undo(roots: &Roots, contents: &mut Contents, undone: &mut UndoReport) {
    let mut control = None;
    if std::mem::take(&mut contents.controllers) && is_enabled(roots) {
        let target = Target::Controllers;
        if is_used(roots, contents) {
            undone.foreign.push(format!("{target} keeps cpuset, which others use by now"));
        } else {
            // At once for all cgroups: they have no cpusets then, as before.
            match target.write(roots, "-cpuset") {
                Ok(()) => control = Some(target),
                Err(e) => {
                    contents.controllers = true;
                    undone.failed.push(format!("{target}: {e}"));
                }
            }
        }
    }
    for (target, ours) in contents.targets() {
        let Target::Cgroup { name, .. } = &target else { continue };
        let folder = roots.cgroup.join(name);
        if is_another(roots, &target) {
            undone.gone.push(target.to_string());
        } else if control.is_some() {
            undone.restored.push(target.to_string());
        } else {
            let member = !is_partition(&folder);
            let is_ours = |now: &str| member && ours.is_mine(now);
            let instead = if ours.before.is_empty() { unset(roots) } else { None };
            if !give_back(roots, &target, is_ours, &ours.before, instead, undone) {
                continue;
            }
        }
        contents.forget(&target);
    }
    undone.restored.extend(control.map(|target| target.to_string()));
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::unset;
    use crate::files::Roots;

    /// A list with a CPU of a partition would end the partition.
    #[test]
    fn what_does_the_same_as_an_empty_list_leaves_partitions_alone() {
        let tree = Tree::default();
        let roots = Roots::in_tree(tree.root());
        assert_eq!(unset(&roots), None);
        let cpu =
            |name: &str, list: &str| tree.put(&format!("sys/devices/system/cpu/{name}"), list);
        cpu("possible", "0-7");
        cpu("online", "0-5");
        tree.put("sys/fs/cgroup/cpuset.cpus.effective", "");
        assert_eq!(unset(&roots).as_deref(), Some("0-7"));
        // CPU 1 is in a partition somewhere below; 4 and 6, which is offline, are in one that is not valid.
        tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0,2-5");
        tree.put("sys/fs/cgroup/own.slice/cpuset.cpus", "4,6");
        tree.put("sys/fs/cgroup/own.slice/cpuset.cpus.partition", "root invalid (Cpu list)");
        assert_eq!(unset(&roots).as_deref(), Some("0,2-3,5,7"));
    }
}
