//! Finds and reads scenarios.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;

use vcoop_capture::Loader;
use vcoop_experiment::params;
use vcoop_model::builtin::{builtin_scenario, builtin_scenarios, is_path};
use vcoop_model::diagnostic::{Diagnostics, closest};
use vcoop_model::distinct;
use vcoop_model::file;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::profile::Profile;
use vcoop_model::scenario::{Scenario, Set, duration};

use crate::failure::Failure;
use crate::options::{Calibration, Common};
use crate::output::{note, style_of_notes};

/// An option's value in nanoseconds.
pub(crate) fn time(option: &str, text: &str) -> Result<Ns, Failure> {
    let refuse = |why| Failure::usage(format!("{option}: {why}; write it like 500ms or 1.5s"));
    duration(text).map_err(refuse)
}

/// A duration.
pub(crate) fn length(option: &str, text: &str) -> Result<Ns, Failure> {
    match time(option, text)? {
        0 => Err(Failure::usage(format!(
            "{option}: it is no time at all; write it like 500ms or 1.5s"
        ))),
        ns => Ok(ns),
    }
}

/// The text of a scenario, and its source.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path, or name of a built-in scenario.
    pub(crate) name: String,
    /// The file.
    pub(crate) text: String,
}

/// Reads a scenario's text. A name without a slash or `.toml` is a built-in scenario if there is one.
pub(crate) fn source(name: &str) -> Result<Source, Failure> {
    let path_like = is_path(name);
    let builtin = builtin_scenario(name).filter(|_| !path_like);
    let text = match builtin {
        Some(text) => text.to_owned(),
        None if path_like || Path::new(name).exists() => named_text("scenario", Path::new(name))?,
        None => return Err(unknown(name)),
    };
    Ok(Source { name: name.to_owned(), text })
}

/// The text of a file named on the command line; `what` is its kind.
pub(crate) fn named_text(what: &str, path: &Path) -> Result<String, Failure> {
    file::text(path, file::MOST_TEXT).map_err(|e| {
        Failure::usage(format!("cannot read {what} {}: {}", path.display(), file::error_text(&e)))
    })
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = builtin_scenarios().iter().map(|b| b.name).collect();
    let guess = closest(name, &names).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
    let known =
        style_of_notes().wrap(&format!("  {guess}built-in scenarios: {}", names.join(", ")), 4);
    Failure::Usage(format!("no scenario and no file `{name}`\n{}", known.trim_end()))
}

/// Name of `--set` in diagnostics.
const SET: &str = "--set";

/// Overrides: every `--set` in order, then the shortcuts, converted to the same form.
#[derive(Debug)]
pub(crate) struct Overrides {
    /// In the model's form.
    pub(crate) sets: Vec<Set>,
    /// Text of the shortcuts, with the option of each.
    shortcuts: Vec<(String, &'static str)>,
}

impl Overrides {
    /// Reads the options.
    pub(crate) fn new(sets: &[String], common: &Common) -> Result<Self, Failure> {
        let times = [("--duration", &common.duration), ("--warmup", &common.warmup)];
        let numbers = [("--repeats", &common.repeats), ("--seed", &common.seed)];
        Self::of(sets, &common.calibration, &times, &numbers)
    }

    /// Adds options that are times or numbers.
    pub(crate) fn of(
        sets: &[String],
        calibration: &Calibration,
        times: &[(&'static str, &Option<String>)],
        numbers: &[(&'static str, &Option<String>)],
    ) -> Result<Self, Failure> {
        let mut shortcuts = Vec::new();
        for (option, value) in times {
            let key = option.trim_start_matches('-');
            shortcuts.extend(value.as_ref().map(|v| (format!("{key}=\"{v}\""), *option)));
        }
        for (option, value) in numbers {
            let key = option.trim_start_matches('-');
            shortcuts.extend(value.as_ref().map(|v| (format!("{key}={v}"), *option)));
        }
        let texts = sets.iter().chain(shortcuts.iter().map(|(text, _)| text));
        let mut overrides = Self { sets: Vec::new(), shortcuts: Vec::new() };
        let given = texts.map(|text| Set::parse(text)).collect::<Result<Vec<_>, _>>();
        overrides.sets.extend(calibration.set()?);
        overrides.sets.extend(given.map_err(refuse)?);
        overrides.shortcuts = shortcuts;
        Ok(overrides)
    }

    /// This command has an option by another name.
    pub(crate) fn called(mut self, usual: &str, here: &'static str) -> Self {
        for (_, option) in self.shortcuts.iter_mut().filter(|(_, option)| *option == usual) {
            *option = here;
        }
        self
    }

    /// Errors name the option that the user wrote, for example `--duration`.
    pub(crate) fn refuse(&self, mut diagnostics: Diagnostics) -> Failure {
        for diagnostic in diagnostics.0.iter_mut().filter(|d| d.file == SET) {
            let own = self.shortcuts.iter().find(|(text, _)| *text == diagnostic.snippet);
            if let Some((_, option)) = own {
                diagnostic.file = (*option).to_owned();
            }
        }
        refuse(diagnostics)
    }
}

/// Parses a scenario and its captures.
pub(crate) fn parse(
    source: &Source,
    overrides: &Overrides,
    loader: &Loader,
) -> Result<Scenario, Failure> {
    Scenario::parse(&source.name, &source.text, &overrides.sets, loader)
        .map_err(|found| overrides.refuse(found))
}

/// Diagnostics are printed as they are, below a line with their number.
pub(crate) fn refuse(diagnostics: Diagnostics) -> Failure {
    let count = diagnostics.0.len();
    let plural = if count == 1 { "" } else { "s" };
    let width = style_of_notes().width;
    Failure::Usage(format!("{count} error{plural}\n{diagnostics:width$}"))
}

/// Reports losses of captures: briefly if they matter, in full on request.
pub(crate) fn note_losses(loader: &Loader, common: &Common) {
    for (name, capture) in loader.loaded() {
        if common.verbose {
            note(&format!("capture {name}: {}", capture.losses));
        } else if capture.losses.is_lossy() && !common.quiet && !name.starts_with("builtin:") {
            note(&format!("capture {name} has gaps; `vcoop capture {name}` says which"));
        }
    }
}

impl Calibration {
    /// The change to a scenario; `--set` comes before it.
    pub(crate) fn set(&self) -> Result<Option<Set>, Failure> {
        let Some(file) = &self.file else { return Ok(None) };
        let name = file.to_str().filter(|name| !name.contains(['"', '\\']) && !name.is_empty());
        let name = name.ok_or_else(|| {
            Failure::usage(format!("--calibration {}: name a file without quotes", file.display()))
        })?;
        let path = if is_path(name) { name.to_owned() } else { format!("./{name}") };
        Profile::load(&path).map_err(refuse)?;
        Ok(Some(Set::of("host.profile", &format!("\"{path}\""))))
    }

    /// The options that give the same value again.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let file = self.file.iter();
        file.flat_map(|file| ["--calibration".to_owned(), file.display().to_string()]).collect()
    }
}

/// Number of threads to use: as given, or one per CPU.
pub(crate) fn jobs(given: Option<u32>) -> usize {
    given.map_or_else(cpus, |jobs| jobs as usize)
}

/// CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The plans of the selected cells of a matrix: each of `cells` is a field's name (whole, its end, or as in results)
/// and its value.
pub(crate) fn choose(mut plans: Vec<Plan>, cells: &[String]) -> Result<Vec<Plan>, Failure> {
    for text in cells {
        let usage = |why: String| Failure::usage(format!("--cell {text}: {why}"));
        let Some((name, value)) = text.split_once('=') else {
            return Err(usage("a cell is named as NAME=VALUE".to_owned()));
        };
        let (name, value) = (name.trim(), params::typed(value));
        let paths: BTreeSet<&String> = plans.iter().flat_map(|plan| plan.params.keys()).collect();
        let all: Vec<&str> = paths.iter().map(|path| path.as_str()).collect();
        let is_named = |path: &&&String| {
            **path == name
                || path.ends_with(&format!(".{name}"))
                || params::unique_end(path, &all) == name
        };
        let found: Vec<&String> = paths.iter().filter(is_named).copied().collect();
        let [path] = found[..] else {
            let all = all.join(", ");
            return Err(usage(match (paths.is_empty(), found.is_empty()) {
                (true, _) => "the scenario has no matrix".to_owned(),
                (_, true) => format!("the matrix varies {all}"),
                (_, false) => format!("more than one field ends so: {all}"),
            }));
        };
        let path = path.clone();
        let values = distinct(plans.iter().filter_map(|plan| plan.params.get(&path).cloned()));
        plans.retain(|plan| plan.params.get(&path).is_some_and(|own| params::typed(own) == value));
        if plans.is_empty() {
            return Err(usage(format!("{path} has the values {}", values.join(", "))));
        }
    }
    Ok(plans)
}
