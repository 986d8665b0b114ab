//! A sweep together with its base scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use vcoop_capture::Loader;
use vcoop_model::builtin::{is_path, named_scenario};
use vcoop_model::diagnostic::{Diagnostic, Diagnostics, nearest};
use vcoop_model::file;
use vcoop_model::plan::Plan;
use vcoop_model::scenario::{Scenario, Set};
use vcoop_model::sweep::{Axis, AxisValue, DesignKind, Place, Sweep, Values, Vary};

use crate::columns::{AxisColumn, Cell, axis_columns, cell};
use crate::columns_kept;
use crate::design::{Design, MAX_SOBOL, MAX_SOBOL_AXES};
use crate::ratio;
use crate::space::variant;

/// Name of an override in diagnostics.
const SET: &str = "--set";

/// A sweep that can run: every point can be requested by number.
#[derive(Debug)]
pub struct Job {
    /// The sweep.
    pub sweep: Sweep,
    /// The base scenario's name, or the path it was read from.
    pub base_name: String,
    /// The base scenario's text.
    pub base_text: String,
    /// Columns of the axes.
    pub columns: Vec<AxisColumn>,
    /// Policies that are compared.
    pub policies: Vec<String>,
    /// Policy that ratios are taken to.
    pub baseline: String,
    /// Files that any point uses (captures, rt-app workloads, profiles): name as in the scenario or the sweep, and
    /// digest of the content.
    pub files: BTreeMap<String, String>,
    /// Most repeats of a point, by `repeats.max` and the budget.
    pub most_repeats: u32,
    design: Design,
}

impl Job {
    /// Reads the base scenario and checks the sweep against it: every axis names a field that accepts its values, and
    /// policies and probes exist.
    ///
    /// # Errors
    ///
    /// All errors that can be found without running anything.
    pub fn new(sweep: Sweep) -> Result<Self, Diagnostics> {
        let (base_name, base_text) = base(&sweep)?;
        Self::with_base(sweep, base_name, base_text)
    }

    /// The same, with the base scenario's text.
    ///
    /// # Errors
    ///
    /// As [`Job::new`].
    pub fn with_base(
        sweep: Sweep,
        base_name: String,
        base_text: String,
    ) -> Result<Self, Diagnostics> {
        let design = Design::new(&sweep);
        let mut job = Self {
            columns: axis_columns(&sweep),
            design,
            base_name,
            base_text,
            policies: Vec::new(),
            baseline: String::new(),
            files: BTreeMap::new(),
            most_repeats: sweep.repeats_max,
            sweep,
        };
        let loader = Loader::default();
        let scenario = job.scenario(&[], &loader).map_err(|e| job.of_own(e))?;
        let mut found: Vec<Diagnostic> = Vec::new();
        if !scenario.axes.is_empty() {
            let message = format!("{} has a [matrix] of its own", job.sweep.scenario);
            let help = "copy it without the matrix, and vary those fields in [axes]".to_owned();
            found.push(job.sweep.place(Place::Scenario, message, Some(help)));
        }
        let sobol = job.sweep.design == DesignKind::Sobol;
        if sobol && (job.design.len() > MAX_SOBOL || job.sweep.axes.len() > MAX_SOBOL_AXES) {
            let message = format!("sobol has {MAX_SOBOL} points and {MAX_SOBOL_AXES} axes at most");
            let help = "take design = \"latin-hypercube\"".to_owned();
            found.push(job.sweep.place(Place::Axis(0), message, Some(help)));
        }
        let asked = job.sweep.policies.clone();
        job.policies = if asked.is_empty() { scenario.compared.clone() } else { asked };
        let plans = scenario.plans(Some(&job.policies)).map_err(|e| {
            let at = |d: &Diagnostic| {
                job.sweep.place(Place::Policies, d.message.clone(), d.help.clone())
            };
            let own = !job.sweep.policies.is_empty();
            if own { Diagnostics(e.0.iter().map(at).collect()) } else { e }
        })?;
        job.baseline = match job.policies.contains(&scenario.baseline) {
            true => scenario.baseline.clone(),
            false => job.policies.first().cloned().unwrap_or_default(),
        };
        found.extend(job.wrong_probes(&plans));
        found.extend(columns_kept::wrong(&job.sweep, &job.base_name, &plans));
        for axis in 0..job.sweep.axes.len() {
            found.extend(job.wrong_values(axis, &loader));
        }
        if !found.is_empty() {
            return Err(Diagnostics(found));
        }
        if let Some(runs) = job.sweep.runs {
            let each = u64::from(job.design.len()) * job.policies.len().max(1) as u64;
            let share = u32::try_from(runs / each.max(1)).unwrap_or(u32::MAX);
            job.most_repeats = share.clamp(job.sweep.repeats_min, job.sweep.repeats_max);
        }
        job.files = job.used(&loader)?;
        Ok(job)
    }

    /// Digest of the files that points use: equal on another machine with the same files.
    pub fn fingerprint(&self) -> String {
        fnv(serde_json::to_string(&self.files).unwrap_or_default().as_bytes())
    }

    /// Number of points.
    pub fn points(&self) -> u32 {
        self.design.len()
    }

    /// Checks that a point is possible, without running it.
    ///
    /// # Errors
    ///
    /// What is wrong with its scenario.
    pub fn check(&self, point: u32, loader: &Loader) -> Result<(), Diagnostics> {
        let sets = self.sets(point, loader)?;
        self.scenario(&sets, loader)?.plans(Some(&self.policies)).map(drop)
    }

    /// The values of a point, axis by axis.
    pub fn values(&self, point: u32) -> Vec<AxisValue> {
        self.design.point(&self.sweep, point)
    }

    /// The values of a point, in the types of the dataset.
    pub fn cells(&self, point: u32) -> Vec<Cell> {
        self.columns.iter().zip(self.values(point)).map(|(column, v)| cell(column, &v)).collect()
    }

    /// The changes that make the base scenario a point.
    ///
    /// # Errors
    ///
    /// A ratio that no number of its field comes near.
    pub fn sets(&self, point: u32, loader: &Loader) -> Result<Vec<Set>, Diagnostics> {
        let values = self.values(point);
        let pairs = || self.sweep.axes.iter().zip(&values);
        let mut sets: Vec<Set> = pairs().flat_map(|(axis, value)| axis.sets(value)).collect();
        for (axis, value) in pairs() {
            if let Vary::Ratio(by) = &axis.vary {
                let size = |n: i64| {
                    let all = [sets.as_slice(), &[Set::of(by, &n.to_string())]].concat();
                    let size = self.size(&all, loader);
                    size.map_err(|found| match self.size(&sets, loader) {
                        // Only this number causes the error.
                        Ok(_) => ratio::refused(by, n, found),
                        Err(_) => found,
                    })
                };
                let n = ratio::reach(by, &value.text, size)?;
                sets.push(Set::of(by, &n.to_string()));
            }
        }
        Ok(sets)
    }

    /// vCPUs and pCPUs of the base scenario with changes.
    fn size(&self, sets: &[Set], loader: &Loader) -> Result<(u32, u32), Diagnostics> {
        let plans = self.scenario(sets, loader)?.plans(None)?;
        Ok(plans.first().map_or((0, 0), ratio::size))
    }

    /// The base scenario with the sweep's changes and further ones. Its number of repeats is the one with which a point
    /// begins.
    ///
    /// # Errors
    ///
    /// What is wrong with the result.
    pub fn scenario(&self, sets: &[Set], loader: &Loader) -> Result<Scenario, Diagnostics> {
        let mut all = self.sweep.sets.clone();
        all.extend(self.sweep.policies.iter().flat_map(|policy| variant(policy)));
        all.push(Set::of("repeats", &self.sweep.repeats_min.to_string()));
        all.extend_from_slice(sets);
        Scenario::parse(&self.base_name, &self.base_text, &all, loader)
    }

    /// Values of an axis that the base scenario accepts neither alone nor with others of the sweep.
    fn wrong_values(&self, axis: usize, loader: &Loader) -> Vec<Diagnostic> {
        let own = &self.sweep.axes[axis];
        if let Vary::Ratio(by) = &own.vary {
            return self.wrong_ratios(axis, by, loader);
        }
        let mut found: Vec<Diagnostic> = Vec::new();
        for value in ends(&own.values) {
            let sets = own.sets(&value);
            let Some(errors) = self.about(&sets, &sets, loader) else { continue };
            let fits = |point: Result<Vec<Set>, Diagnostics>| {
                point.is_ok_and(|point| self.about(&point, &sets, loader).is_none())
            };
            if self.some_points(axis, &value, loader).any(fits) {
                continue;
            }
            for error in errors {
                let place = Place::Axis(axis);
                let message = format!("{}: {}", error.snippet, error.message);
                let at = self.sweep.place(place, message, error.help.clone());
                if !found.iter().any(|f| f.help == at.help && f.line == at.line) {
                    found.push(at);
                }
            }
        }
        found
    }

    /// Ratios that none of a few points reaches, or whose field cannot reach any.
    fn wrong_ratios(&self, axis: usize, by: &str, loader: &Loader) -> Vec<Diagnostic> {
        let own = &self.sweep.axes[axis];
        let set = [Set::of(by, "1")];
        let at =
            |e: &Diagnostic| self.sweep.place(Place::Axis(axis), e.message.clone(), e.help.clone());
        // A scenario that one pCPU does not fit may still be right: only what is about the path.
        let wrong = self.about(&set, &set, loader).unwrap_or_default();
        let path = |e: &&Diagnostic| e.message.contains('`');
        let found: Vec<Diagnostic> = wrong.iter().filter(path).map(at).collect();
        if !found.is_empty() {
            return found;
        }
        let mut found = Vec::new();
        for value in ends(&own.values) {
            let mut why = None;
            let mut reached = |point: Result<Vec<Set>, Diagnostics>| match point {
                Ok(_) => true,
                Err(e) => {
                    why = why.take().or_else(|| e.0.into_iter().next());
                    false
                }
            };
            if !self.some_points(axis, &value, loader).any(&mut reached) {
                let why = why.iter().map(at).filter(|why| !found.contains(why));
                found.extend(why.collect::<Vec<_>>());
            }
        }
        found
    }

    /// Errors about `sets` that concern `own`; `None` if there are none.
    fn about(&self, sets: &[Set], own: &[Set], loader: &Loader) -> Option<Vec<Diagnostic>> {
        let mut errors = self.scenario(sets, loader).err()?.0;
        errors.retain(|e| e.file == SET && own.iter().any(|set| set.text() == e.snippet));
        (!errors.is_empty()).then_some(errors)
    }

    /// Changes of a few points with a value, from all over the sweep.
    fn some_points(
        &self,
        axis: usize,
        value: &AxisValue,
        loader: &Loader,
    ) -> impl Iterator<Item = Result<Vec<Set>, Diagnostics>> {
        const LOOKED_AT: usize = 2000;
        const TRIED: usize = 16;
        let step = (self.points() as usize / LOOKED_AT).max(1) | 1;
        let has = |point: &u32| self.values(*point).get(axis) == Some(value);
        let points: Vec<u32> = (0..self.points()).step_by(step).filter(has).collect();
        // Neighbours differ in the last axes only.
        let apart = points.len().div_ceil(TRIED).max(1);
        points.into_iter().step_by(apart).map(|point| self.sets(point, loader))
    }

    fn wrong_probes(&self, plans: &[Plan]) -> Vec<Diagnostic> {
        let Some(stop) = &self.sweep.stop else { return Vec::new() };
        let mut known: Vec<&str> =
            plans.iter().flat_map(|p| p.probes.iter().map(|probe| &*probe.probe)).collect();
        known.sort_unstable();
        known.dedup();
        let wrong = stop.probes.iter().enumerate().filter(|(_, p)| !known.contains(&p.as_str()));
        wrong
            .map(|(i, probe)| {
                let message = format!("{} has no latency probe `{probe}`", self.base_name);
                let help = nearest(probe, "probes", &known);
                self.sweep.place(Place::StopProbe(i), message, Some(help))
            })
            .collect()
    }

    /// Translates diagnostics about `[set]` and about means of policies to places in the sweep file.
    fn of_own(&self, mut errors: Diagnostics) -> Diagnostics {
        let variants: Vec<Set> = self.sweep.policies.iter().flat_map(|p| variant(p)).collect();
        for error in errors.0.iter_mut().filter(|e| e.file == SET) {
            if variants.iter().any(|set| set.text() == error.snippet) {
                let message = format!("{}: {}", error.snippet, error.message);
                *error = self.sweep.place(Place::Policies, message, error.help.take());
            } else {
                error.file = format!("{} [set]", self.sweep.file);
            }
        }
        errors
    }

    /// Reads the files that any point uses. Numbers name no files: among points with the same texts, the first possible
    /// one is checked.
    fn used(&self, loader: &Loader) -> Result<BTreeMap<String, String>, Diagnostics> {
        let texts: Vec<(usize, &[AxisValue])> = (self.sweep.axes.iter().enumerate())
            .filter_map(|(i, axis)| match &axis.values {
                Values::List(values) if names_files(axis, values) => Some((i, values.as_slice())),
                _ => None,
            })
            .collect();
        let kinds = texts.iter().fold(1_usize, |n, (_, values)| n.saturating_mul(values.len()));
        let (mut seen, mut paths) = (BTreeSet::new(), BTreeSet::new());
        // Files that were read until here belong to no point.
        loader.take_asked();
        for point in 0..self.points() {
            if seen.len() == kinds {
                break;
            }
            let values = self.values(point);
            let kind: Vec<String> = texts.iter().map(|(i, _)| values[*i].toml.clone()).collect();
            if seen.contains(&kind) {
                continue;
            }
            let sets = self.sets(point, loader);
            if sets.and_then(|sets| self.scenario(&sets, loader)).is_ok() {
                seen.insert(kind);
            }
            paths.append(&mut loader.take_asked().files);
        }
        let mut files = BTreeMap::new();
        for path in paths {
            let digest = self.digest(&path)?;
            let name = Some(self.named(&path)).filter(|name| !files.contains_key(name));
            // Beside the scenario and where the sweep is started, two may have one name.
            files.insert(name.unwrap_or(path), digest);
        }
        Ok(files)
    }

    /// A file's name as in the scenario or the sweep, so that folders have the same name for it wherever the sweep is
    /// started.
    fn named(&self, path: &str) -> String {
        let dir = Path::new(&self.base_name).parent();
        let within = dir.and_then(|dir| Path::new(path).strip_prefix(dir).ok());
        within.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
    }

    fn digest(&self, path: &str) -> Result<String, Diagnostics> {
        let digest = file::open(Path::new(path)).and_then(|file| fnv_of(BufReader::new(file)));
        digest.map_err(|e| {
            let message = format!("cannot read {path}, which a point uses: {e}");
            let help = file::remedy(&e).map(str::to_owned);
            self.sweep.place(Place::Scenario, message, help).into()
        })
    }
}

/// The values of a list, or the ends of a range.
fn ends(values: &Values) -> Vec<AxisValue> {
    match values {
        Values::List(values) => values.clone(),
        Values::Range(range) => vec![range.at(0.0), range.at(1.0)],
    }
}

/// Whether a value of an axis can name a file: it sets a text.
fn names_files(axis: &Axis, values: &[AxisValue]) -> bool {
    values.iter().flat_map(|value| axis.sets(value)).any(|set| set.text().contains(['"', '\'']))
}

/// FNV-1a, 64 bits, as hexadecimal digits: distinguishes texts, without security.
pub fn fnv(bytes: &[u8]) -> String {
    // Reading from memory cannot fail.
    fnv_of(bytes).unwrap_or_default()
}

/// The same of a file.
pub(crate) fn fnv_of(mut input: impl BufRead) -> io::Result<String> {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = 0xcbf2_9ce4_8422_2325;
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(format!("{hash:016x}"));
        }
        hash = bytes.iter().fold(hash, step);
        let read = bytes.len();
        input.consume(read);
    }
}

/// The base scenario's name and text: built-in, or a file beside the sweep's.
fn base(sweep: &Sweep) -> Result<(String, String), Diagnostics> {
    let name = &sweep.scenario;
    let path = Path::new(&sweep.file).parent().unwrap_or(Path::new("")).join(name);
    let text = named_scenario(name, &path)
        .map_err(|(message, help)| sweep.place(Place::Scenario, message, help))?;
    let name = if is_path(name) { path.display().to_string() } else { name.clone() };
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use super::fnv;

    #[test]
    fn fnv_known_answers() {
        assert_eq!(fnv(b""), "cbf29ce484222325");
        assert_eq!(fnv(b"foobar"), "85944171f73967e8");
    }
}
