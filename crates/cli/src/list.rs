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

/// The policies of this version, and where each runs.
const POLICIES: [(&str, &str); 7] = [
    ("vanilla", "Nothing is done. This is the baseline."),
    (
        "wake-boost",
        "A vCPU is boosted when it wakes, for a bounded run. The guest does not have to help.",
    ),
    (
        "dynamic",
        "A vCPU is boosted when an interrupt is injected and when the guest asks for it, within a budget. The \
         boost ends as soon as nothing urgent is left.",
    ),
    (
        "static",
        "The threads of vCPUs are always real-time, or have a nice value or a short slice, as people set it by \
         hand today.",
    ),
    ("pinned", "Each vCPU has a pCPU of its own. The host's loads can run there, too."),
    ("isolated", "Each vCPU has a pCPU of its own, and the host's loads are kept off it."),
    (
        "ratelimit-auto",
        "Each domain of credit1 has a ratelimit that follows from how it runs and whom it delays.",
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
            ListWhat::Policies => ("Policies that the simulator runs", named_rows(&POLICIES)),
            ListWhat::Published => ("Published", published(full)),
        };
        section(&mut text, heading, rows);
        if what == ListWhat::Policies {
            text.push('\n');
            section(&mut text, GOVERNING, named_rows(&GOVERNORS));
            if full {
                text.push('\n');
                section(&mut text, PATCHES, patches());
                text.push_str("\nHow to apply each policy to a VM that runs\n");
                text.push_str(&applied());
            }
        }
    }
    if args.what.is_none() {
        let more = "`vcoop list policies` also lists patches, and how to apply each policy. `vcoop list \
                    published` also lists tables and claims.";
        text += &format!("\n{}", style().wrap(more, 2));
    }
    print(&text)
}

/// How each policy is applied to a running VM.
fn applied() -> String {
    let mut text = String::new();
    for one in deploy::builtin() {
        let mut name = one.policy.as_str();
        // Whole, so that they can be copied.
        for line in &one.lines {
            text += &format!("  {name:14}  {line}\n");
            name = "";
        }
        let only = one.simulation_only.iter().map(|why| format!("simulation only: {why}"));
        let nothing = one.lines.is_empty() && one.simulation_only.is_empty();
        for said in only.chain(nothing.then(|| "nothing to do".to_owned())) {
            text += &style().wrap(&format!("  {name:14}  {said}"), 18);
            name = "";
        }
    }
    text
}

/// Heading of the governors.
const GOVERNING: &str = "Governors: policies by which a guest uses fewer vCPUs for a while";

/// The governors of this version.
const GOVERNORS: [(&str, &str); 5] = [
    (
        "step",
        "The guest adds or removes one core at a time, by thresholds of steal, as merged in Linux.",
    ),
    ("proportional", "The guest uses as many cores as its steal and its CPU time allow."),
    (
        "entitlement",
        "The guest uses as many vCPUs as it is entitled to while the host's pool is contended, and all of them \
         otherwise.",
    ),
    ("host-hint", "The guest uses as many vCPUs as the host says that it can run."),
    ("hotplug", "This is entitlement by CPU hotplug instead of a mask."),
];

/// Heading of the patches.
const PATCHES: &str =
    "Patches of credit1, which a policy names: base = \"vanilla\", patches = [\"...\"]";

fn section(text: &mut String, heading: &str, rows: Rows) {
    text.push_str(&style().wrap(heading, 2));
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

fn named_rows(all: &[(&str, &str)]) -> Rows {
    all.iter().map(|(name, about)| ((*name).to_owned(), (*about).to_owned())).collect()
}

fn patches() -> Rows {
    let row = |patch: &NamedPatch| {
        let cannot = patch.cannot.map(|why| format!(" The patch cannot work: {why}."));
        (patch.name.to_owned(), format!("{}{}", patch.about, cannot.unwrap_or_default()))
    };
    scenario::patches().iter().map(row).collect()
}

/// Publications; with their content if shown in full.
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
