//! Scenario files: reading, checking, and turning into plans.
//!
//! A text goes through four steps, each in its modules: a tree with positions (`toml_read`), overrides and matrix cells
//! on the tree (`set`, `matrix`), typed tables (`keys`), and plans (`resolve`, `host`, `expand` and others). An error
//! of any step names the place in the text, or in the `--set`, that it is about. Errors of one step are reported
//! together. A step begins only if the one before found none, so that one mistake does not cause ten messages.

mod calls;
mod captures;
mod credit1;
mod deadline;
mod effect;
mod expand;
mod group;
mod host;
mod keys;
mod matrix;
mod misfit;
mod pinning;
mod policies;
mod powervm;
mod resolve;
mod schema;
mod set;
mod storm;
#[cfg(test)]
mod tests;
mod timeline;
mod virt;

use std::collections::BTreeMap;
use std::mem;

use crate::capture::CaptureLoader;
use crate::diagnostic::{Collector, Diagnostic, Diagnostics, Sources, Span, nearest};
use crate::kind::Kind;
use crate::limits::MAX_MATRIX_TASKS;
use crate::plan::{HostSched, Plan, PolicyPlan};
use crate::profile::Profile;
use crate::toml_read::Node;
use crate::toml_read::node::parse_document;
use crate::toml_read::table::{NamedTables, read_table};

pub use crate::toml_read::units::{duration, show as duration_text};
pub use keys::sched::fair_name;
/// Names of the built-in policies, in the order of lists: governors come last.
pub use policies::NAMES as POLICIES;
pub(crate) use schema::section;
pub use schema::{reference, schema};
pub use set::Set;
/// The patches that a policy's `patches` can name.
pub use vcoop_credit1::{NamedPatch, patches};

/// Whether a key of a policy's table says how VMs are virtualised, as a VM's own does.
pub fn is_of_virtualisation(key: &str) -> bool {
    keys::virt::VirtKeys::has(key)
}

use captures::Captures;
use effect::Effects;
use keys::{PolicyKeys, ScenarioKeys};
use matrix::Axis;
use misfit::PolicyMisfit;
use resolve::{ResolveContext, Resolved};
use set::Path;

/// A scenario: checked, with every cell of its matrix resolved.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name, as results show it.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// What the experiment is.
    pub about: String,
    /// Assumptions about what is neither published nor measured.
    pub assumptions: Vec<String>,
    /// Names of the compared policies, in the order of the report.
    pub compared: Vec<String>,
    /// The policy that ratios are taken to; one of `compared`.
    pub baseline: String,
    /// Paths that its matrix varies, as written, in order; for paths that change together, the first.
    pub axes: Vec<String>,
    cells: Vec<Resolved>,
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// `name` is the path of the file, or the name of a built-in scenario: diagnostics show it, and paths of captures
    /// are relative to it. `overrides` are applied to the text in their order, before the matrix is expanded. `loader`
    /// reads captures and other files that it names.
    ///
    /// # Errors
    ///
    /// All errors in the text and the overrides that can be found at once.
    pub fn parse(
        name: &str,
        text: &str,
        overrides: &[Set],
        loader: &dyn CaptureLoader,
    ) -> Result<Self, Diagnostics> {
        let mut sources = Sources::default();
        let file = sources.add(name, text);
        let mut tree = parse_document(&sources, file, text)?;
        Kind::Scenario.expect(name, tree.keys())?;
        let places: Vec<usize> = overrides.iter().map(|set| set.add_to(&mut sources)).collect();
        let policies_source = sources.add("built-in policies", policies::BUILTIN);
        let builtin_policies = builtin_policies(&sources, policies_source)?;

        let errors = Collector::new(&sources);
        for (set, place) in overrides.iter().zip(&places) {
            set.apply(*place, &mut tree, &errors);
        }
        errors.finish(Some(()))?;
        let keys = read(&tree, &sources)?;

        let mut captures = Captures::new(loader, name);
        let mut profiles: BTreeMap<String, Profile> = BTreeMap::new();
        let mut outside = ResolveContext {
            captures: &mut captures,
            profiles: &mut profiles,
            builtin_policies: &builtin_policies,
        };
        // The text as it stands must hold, also where the matrix replaces all of it.
        let errors = Collector::new(&sources);
        let base = resolve::resolve(&keys, BTreeMap::new(), &mut outside, &errors);
        let axes = match &keys.matrix {
            Some(matrix) => matrix::axes(&matrix.value, &errors),
            None => Vec::new(),
        };
        let base = errors.finish(base)?;
        let mut effects = Effects::default();
        let mut cells: Vec<Resolved> = Vec::new();
        let mut tasks = 0;
        for cell in matrix::cells(&axes) {
            if axes.is_empty() {
                effects.add(base.effects.clone());
                cells.push(base.clone());
                break;
            }
            let mut cell = resolve_cell(&tree, &axes, &cell, &sources, &mut outside)?;
            tasks += cell.plan.host_tasks.len();
            tasks += cell.plan.vms.iter().map(|vm| vm.tasks.len() + 1).sum::<usize>();
            if tasks > MAX_MATRIX_TASKS {
                let errors = Collector::new(&sources);
                let message = format!("the cells together have more than {MAX_MATRIX_TASKS} tasks");
                errors.error(axes.first().map_or_else(Span::default, |axis| axis.span), message);
                errors.finish(None::<()>)?;
            }
            effects.add(mem::take(&mut cell.effects));
            cells.push(cell);
        }
        let errors = Collector::new(&sources);
        effects.refuse(&errors);
        errors.finish(Some(()))?;
        Ok(Self {
            name: keys.name.value.0,
            title: keys.title.value,
            about: keys.about.value,
            assumptions: keys.assumptions.value.into_iter().map(|a| a.value).collect(),
            compared: base.compared,
            baseline: base.baseline,
            axes: axes.iter().flat_map(Axis::told_by).cloned().collect(),
            cells,
        })
    }

    /// The plans, cell by cell, and in each cell policy by policy: the compared ones, or `policies`.
    ///
    /// # Errors
    ///
    /// One of `policies` is not in the scenario.
    pub fn plans(&self, policies: Option<&[String]>) -> Result<Vec<Plan>, Diagnostics> {
        let mut plans = Vec::new();
        for cell in &self.cells {
            for name in policies.unwrap_or(&self.compared) {
                let Some(policy) = cell.policies.get(name) else {
                    return Err(self.no_policy(name).into());
                };
                let mut plan = cell.plan.clone();
                plan.policy_name.clone_from(name);
                plan.policy = policy.plan.clone();
                for vm in &mut plan.vms {
                    policy.virt.apply(&mut vm.virt);
                }
                policy.pinning.apply(name, &mut plan).map_err(
                    |PolicyMisfit { message, help }| {
                        Diagnostic::whole("--policy", message, Some(help))
                    },
                )?;
                if let HostSched::Credit1(credit1) = &mut plan.host.sched {
                    if let Some(patches) = cell.patches.get(name) {
                        credit1.patches = *patches;
                    }
                    if let PolicyPlan::RatelimitAuto(config) = &mut plan.policy {
                        config.max_ns = config.max_ns.min(credit1.tslice_ns);
                        config.min_ns = config.min_ns.min(config.max_ns);
                        credit1.short_run_ns = config.brief_ns;
                    }
                }
                plans.push(plan);
            }
        }
        Ok(plans)
    }

    /// Every policy of the scenario: the built-in ones, and its own.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.cells.first().into_iter().flat_map(|cell| cell.policies.keys().map(String::as_str))
    }

    fn no_policy(&self, name: &str) -> Diagnostic {
        let message = format!("scenario {} has no policy `{name}`", self.name);
        let unfit = self.cells.iter().find_map(|cell| cell.unfit.get(name));
        let (message, help) = match unfit {
            Some(PolicyMisfit { message, help }) => (message.clone(), help.clone()),
            None => (message, nearest(name, "policies", self.policies())),
        };
        Diagnostic::whole("--policy", message, Some(help))
    }
}

fn read(tree: &Node, sources: &Sources) -> Result<ScenarioKeys, Diagnostics> {
    let errors = Collector::new(sources);
    let keys = read_table(tree, &errors);
    errors.finish(keys)
}

fn builtin_policies(
    sources: &Sources,
    source: usize,
) -> Result<NamedTables<PolicyKeys>, Diagnostics> {
    let tree = parse_document(sources, source, policies::BUILTIN)?;
    let errors = Collector::new(sources);
    let file: Option<policies::PolicyFile> = read_table(&tree, &errors);
    errors.finish(file).map(|file| file.policy)
}

fn resolve_cell(
    tree: &Node,
    axes: &[Axis],
    cell: &[usize],
    sources: &Sources,
    outside: &mut ResolveContext<'_, '_>,
) -> Result<Resolved, Diagnostics> {
    let errors = Collector::new(sources);
    let mut tree = tree.clone();
    let mut params = BTreeMap::new();
    for (axis, index) in axes.iter().zip(cell) {
        let of = |at: usize| axis.value(*index, at);
        let told = axis.told_by().iter().enumerate();
        params.extend(told.map(|(at, path)| (path.clone(), of(at).text())));
        for (at, path) in axis.paths.iter().enumerate() {
            Path::at(path, axis.span).set(&mut tree, of(at).clone(), &errors);
        }
    }
    errors.finish(Some(()))?;
    let keys = read(&tree, sources)?;
    let errors = Collector::new(sources);
    let resolved = resolve::resolve(&keys, params, outside, &errors);
    errors.finish(resolved)
}
