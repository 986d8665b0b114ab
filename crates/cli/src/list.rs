//! `vcoop list` and `vcoop schema`.

use vcoop_capture::Loader;
use vcoop_experiment::deploy;
use vcoop_experiment::published::Publication;
use vcoop_model::builtin::builtin_scenarios;
use vcoop_model::profile::Profile;
use vcoop_model::scenario::{self, NamedPatch, Scenario};

use crate::failure::Failure;
use crate::output::{print, style};
use crate::scenario::refuse;

/// What to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListWhat {
    /// Built-in scenarios
    Scenarios,
    /// Built-in machine profiles
    Profiles,
    /// Policies, patches of credit1, and how to have each policy on a running VM
    Policies,
    /// Publications with their tables and claims
    Published,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// What to list in full. Default: the names of all
    #[arg(value_enum)]
    pub(crate) what: Option<ListWhat>,
}

/// The policies of this version, and where they run.
const POLICIES: [(&str, &str); 7] = [
    ("vanilla", "do nothing: the baseline"),
    ("wake-boost", "boost a vCPU when it wakes, without the guest's help, for a bounded run"),
    (
        "dynamic",
        "boost on injected interrupts and on the guest's request, within a budget; unboost at once",
    ),
    (
        "static",
        "vCPU threads permanently real-time (or nice, or a short slice), as people do today",
    ),
    ("pinned", "each vCPU on a pCPU of its own; the host's loads may run there, too"),
    ("isolated", "pinned, and the host's loads kept off the vCPUs' pCPUs"),
    (
        "ratelimit-auto",
        "credit1: a ratelimit for each domain, from how it runs and whom it holds up",
    ),
];

pub(crate) fn run(args: &ListArgs) -> Result<(), Failure> {
    let all = [ListWhat::Scenarios, ListWhat::Profiles, ListWhat::Policies, ListWhat::Published];
    let mut text = String::new();
    for what in all {
        let full = args.what == Some(what);
        if args.what.is_some() && !full {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let (heading, rows) = match what {
            ListWhat::Scenarios => ("Scenarios", scenarios()?),
            ListWhat::Profiles => ("Profiles", profiles()?),
            ListWhat::Policies => ("Policies (backend sim)", told(&POLICIES)),
            ListWhat::Published => ("Published", published(full)),
        };
        section(&mut text, heading, rows);
        if what == ListWhat::Policies {
            text.push('\n');
            section(&mut text, GOVERNING, told(&GOVERNORS));
            if full {
                text.push('\n');
                section(&mut text, PATCHES, patches());
                text.push_str("\nOn VMs that run\n");
                text.push_str(&applied());
            }
        }
    }
    if args.what.is_none() {
        let more = "More: `vcoop list policies` (patches, how to apply each policy) and `vcoop list published` \
                    (tables, claims)";
        text += &format!("\n{}", style().wrap(more, 2));
    }
    print(&text)
}

/// How to have each policy on a running VM.
fn applied() -> String {
    let mut text = String::new();
    for one in deploy::builtin() {
        let only = one.simulation_only.iter().map(|why| format!("simulation only: {why}"));
        let mut said: Vec<String> = one.lines.iter().cloned().chain(only).collect();
        if said.is_empty() {
            said.push("nothing to do".to_owned());
        }
        for (i, line) in said.iter().enumerate() {
            let name = if i == 0 { one.policy.as_str() } else { "" };
            text += &format!("  {name:14}  {line}\n");
        }
    }
    text
}

/// Heading of the governors.
const GOVERNING: &str = "Governors: policies by which a guest uses fewer vCPUs for a while";

/// The governors of this version.
const GOVERNORS: [(&str, &str); 5] = [
    ("step", "one core at a time, by thresholds of steal: as merged in Linux"),
    ("proportional", "as many cores as steal and CPU time show"),
    (
        "entitlement",
        "as many as the VM is entitled to while the host's pool is contended, else all",
    ),
    ("host-hint", "as many as the host says that it can give"),
    ("hotplug", "entitlement, by CPU hotplug instead of a mask"),
];

/// Heading of the patches.
const PATCHES: &str =
    "Patches of credit1, for policies with base = \"vanilla\" and patches = [\"...\"]";

fn section(text: &mut String, heading: &str, rows: Rows) {
    text.push_str(heading);
    text.push('\n');
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, about) in rows {
        text.push_str(&style().wrap(&format!("  {name:width$}  {about}"), width + 4));
    }
}

/// The JSON schema of scenario files.
pub(crate) fn schema() -> String {
    format!("{:#}\n", vcoop_model::scenario::schema())
}

type Rows = Vec<(String, String)>;

fn scenarios() -> Result<Rows, Failure> {
    let loader = Loader::default();
    let row = |builtin: &vcoop_model::builtin::Builtin| {
        let scenario = Scenario::parse(builtin.name, builtin.text, &[], &loader).map_err(refuse)?;
        Ok((builtin.name.to_owned(), scenario.title))
    };
    builtin_scenarios().iter().map(row).collect()
}

fn profiles() -> Result<Rows, Failure> {
    let row = |name: &str| {
        let profile = Profile::load(name).map_err(refuse)?;
        Ok((name.to_owned(), profile.title))
    };
    Profile::builtin_names().map(row).collect()
}

fn told(all: &[(&str, &str)]) -> Rows {
    all.iter().map(|(name, about)| ((*name).to_owned(), (*about).to_owned())).collect()
}

fn patches() -> Rows {
    let row = |patch: &NamedPatch| {
        let cannot = patch.cannot.map(|why| format!(". Cannot work: {why}"));
        (patch.name.to_owned(), format!("{}{}", patch.about, cannot.unwrap_or_default()))
    };
    scenario::patches().iter().map(row).collect()
}

/// Publications; in full with what is in them.
fn published(full: bool) -> Rows {
    let mut rows = Vec::new();
    for publication in Publication::builtin() {
        rows.push((publication.name, publication.title));
        if !full {
            continue;
        }
        let tables = publication.tables.into_iter();
        rows.extend(tables.map(|t| (format!("  {}", t.id), format!("table: {}", t.title))));
        let histograms = publication.histograms.into_iter();
        rows.extend(histograms.map(|h| (format!("  {}", h.id), format!("histogram: {}", h.title))));
        let claims = publication.claims.into_iter();
        rows.extend(claims.map(|c| (format!("  {}", c.id), format!("claim: {}", c.statement))));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_policy_is_told_of() {
        let all = POLICIES.iter().chain(&GOVERNORS).map(|(name, _)| *name);
        assert_eq!(all.collect::<Vec<_>>(), scenario::POLICIES);
    }
}
