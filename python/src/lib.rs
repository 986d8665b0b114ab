//! What the Python package is made of. Texts go in, JSON comes out; Python is free to do other
//! things while something runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use vcoop_build_id::BUILD;
use vcoop_capture::Loader;
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Column, Sim};
use vcoop_experiment::result::Limits;
use vcoop_experiment::runner::{Control, Experiment};
use vcoop_model::builtin::{builtin_scenario, builtin_scenarios};
use vcoop_model::file;
use vcoop_model::scenario::{Scenario, Set};
use vcoop_sweep::dataset::{Dataset as Folder, DatasetError};
use vcoop_sweep::engine;
use vcoop_sweep::job::Job;
use vcoop_sweep::point;

pyo3::create_exception!(
    vcoop,
    ScenarioError,
    pyo3::exceptions::PyValueError,
    "A scenario, a sweep or an override is wrong. The message has line, column and help."
);
pyo3::create_exception!(
    vcoop,
    FolderError,
    pyo3::exceptions::PyValueError,
    "The folder is not this sweep's. Nothing in it was changed."
);

/// How often a long call looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// Points done, points that failed, and the number and the error of the first of these.
type SweepOutcome = (u32, u32, Option<(u32, String)>);

fn refused(found: impl std::fmt::Display) -> PyErr {
    ScenarioError::new_err(found.to_string())
}

fn folder(error: DatasetError) -> PyErr {
    match error {
        DatasetError::Refused { .. } | DatasetError::Part { .. } => {
            FolderError::new_err(error.to_string())
        }
        DatasetError::Io { .. } => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Runs something on a thread of its own, without the interpreter's lock, and ends it at Ctrl-C.
fn interruptible<T: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        let handle = scope.spawn(move || {
            // Dropped when it ends, however it ends.
            let _done = done;
            work()
        });
        let ended = Mutex::new(ended);
        let mut raised = None;
        loop {
            let waited = py.detach(|| {
                let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.recv_timeout(LOOK)
            });
            match waited {
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(signal) = py.check_signals() {
                        stop.store(true, Ordering::Relaxed);
                        raised = Some(signal);
                    }
                }
                _ => break,
            }
        }
        let result = py.detach(|| handle.join());
        match (result, raised) {
            (_, Some(signal)) => Err(signal),
            (Ok(value), None) => Ok(value),
            (Err(_), None) => Err(PyRuntimeError::new_err("internal error, please report it")),
        }
    })
}

/// The text of a built-in scenario, if there is one of this name.
#[pyfunction]
fn builtin(name: &str) -> Option<&'static str> {
    builtin_scenario(name)
}

/// Names of the built-in scenarios, as `run` and sweep files take them: a list of texts.
#[pyfunction]
fn scenarios() -> Vec<&'static str> {
    builtin_scenarios().iter().map(|b| b.name).collect()
}

/// The colours that policies have in reports, as `#rrggbb`.
#[pyfunction]
fn colours(policies: Vec<String>, baseline: &str) -> Vec<&'static str> {
    vcoop_report::chart::colours(&policies, baseline)
}

/// The text of a regular file, of a bounded size.
#[pyfunction]
fn read_text(path: PathBuf) -> PyResult<String> {
    file::text(&path, file::MOST_TEXT).map_err(|e| match file::remedy(&e) {
        Some(_) => refused(format!("cannot read {}: {}", path.display(), file::error_text(&e))),
        None => PyErr::from(std::io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    })
}

/// Runs a scenario on the simulator; the result document as JSON.
#[pyfunction]
fn run(
    py: Python<'_>,
    name: String,
    text: String,
    sets: Vec<String>,
    policies: Option<Vec<String>>,
    may_cost: Vec<String>,
    jobs: usize,
) -> PyResult<String> {
    let mut limits = Limits::default();
    may_cost.iter().try_for_each(|text| limits.set(text)).map_err(refused)?;
    let sets: Vec<Set> =
        sets.iter().map(|s| Set::parse(s)).collect::<Result<_, _>>().map_err(refused)?;
    let named = policies.as_deref().unwrap_or_default();
    if let Some((_, twice)) = named.iter().enumerate().find(|(i, p)| named[..*i].contains(p)) {
        return Err(refused(format!("policies names `{twice}` twice")));
    }
    let stop = AtomicBool::new(false);
    let work = || -> Result<String, (bool, String)> {
        let no = |e: vcoop_model::diagnostic::Diagnostics| (true, e.to_string());
        let scenario = Scenario::parse(&name, &text, &sets, &Loader::default()).map_err(no)?;
        let mut plans = scenario.plans(policies.as_deref()).map_err(no)?;
        // Distributions are kept with these.
        plans.iter_mut().for_each(|plan| plan.slices = vcoop_report::SLICES);
        let columns = [Column::all(&Sim, plans.len())];
        let experiment = Experiment { plans: &plans, columns: &columns, jobs };
        let measured = experiment
            .run(Control { stop: &stop, progress: &|_| () })
            .map_err(|e| (false, e.to_string()))?;
        if let Some(failure) = &measured.failure {
            return Err((false, failure.to_string()));
        }
        let about = Metadata {
            title: scenario.title.clone(),
            baseline: scenario.baseline.clone(),
            limits,
            ..Metadata::default()
        };
        Ok(document(&plans, &measured, about).to_json())
    };
    interruptible(py, &stop, work)?
        .map_err(|(bad, why)| if bad { refused(why) } else { PyRuntimeError::new_err(why) })
}

/// A sweep file and its scenario, held against each other.
#[pyclass(frozen)]
struct Sweep {
    job: Arc<Job>,
}

#[pymethods]
impl Sweep {
    /// Reads a sweep. `base` is the name and text of its scenario; without it, it is found.
    #[new]
    #[pyo3(signature = (file, text, base=None))]
    fn new(file: &str, text: &str, base: Option<(String, String)>) -> PyResult<Self> {
        let sweep = vcoop_model::sweep::Sweep::parse(file, text).map_err(refused)?;
        let job = match base {
            Some((name, text)) => Job::with_base(sweep, name, text),
            None => Job::new(sweep),
        };
        Ok(Self { job: Arc::new(job.map_err(refused)?) })
    }

    /// Everything another process needs to make the same: file, text, name and text of the scenario.
    fn parts(&self) -> (String, String, (String, String)) {
        let job = &self.job;
        let base = (job.base_name.clone(), job.base_text.clone());
        (job.sweep.file.clone(), job.sweep.text.clone(), base)
    }

    /// RepeatSummary of the files that points use: equal where another process would run the same.
    fn fingerprint(&self) -> String {
        self.job.fingerprint()
    }

    fn name(&self) -> &str {
        &self.job.sweep.name
    }

    fn __len__(&self) -> usize {
        self.job.points() as usize
    }

    /// The changes that make the scenario a point.
    fn sets(&self, point: u32) -> PyResult<Vec<String>> {
        if point >= self.job.points() {
            return Err(pyo3::exceptions::PyIndexError::new_err("no such point"));
        }
        let sets = self.job.sets(point, &Loader::default()).map_err(refused)?;
        Ok(sets.iter().map(|set| set.text().to_owned()).collect())
    }

    /// Runs points one after the other on this thread; each as JSON.
    fn run_points(&self, py: Python<'_>, points: Vec<u32>) -> PyResult<Vec<String>> {
        let stop = AtomicBool::new(false);
        let job = Arc::clone(&self.job);
        let rows: Result<Vec<String>, DatasetError> = interruptible(py, &stop, || {
            let loader = Loader::default();
            let one = |p: u32| point::run(&job, p, &loader, &stop).transpose();
            let rows = points.into_iter().filter(|p| *p < job.points()).map_while(one);
            rows.map(|rows| Ok(serde_json::to_string(&rows?).unwrap_or_default())).collect()
        })?;
        rows.map_err(folder)
    }
}

/// The folder of a sweep, open for writing.
#[pyclass]
struct Dataset {
    job: Arc<Job>,
    folder: Folder,
}

#[pymethods]
impl Dataset {
    /// Makes the folder, or opens that of the same sweep.
    #[new]
    fn new(dir: PathBuf, sweep: &Sweep) -> PyResult<Self> {
        let job = Arc::clone(&sweep.job);
        let folder = Folder::open(&dir, &job, BUILD).map_err(folder)?;
        Ok(Self { job, folder })
    }

    /// Points that are not there, ascending.
    fn missing(&self) -> Vec<u32> {
        self.folder.missing()
    }

    /// First point of the first part that is not complete.
    fn frontier(&self) -> u32 {
        self.folder.frontier()
    }

    /// Points in a part.
    fn part_points(&self) -> u32 {
        self.folder.manifest().part_points
    }

    /// Adds what `run_points` gave for a point; a point that is there already is left as it is.
    /// The error of a point that failed.
    fn add(&mut self, point: &str) -> PyResult<Option<String>> {
        let rows: vcoop_sweep::row::PointRows = serde_json::from_str(point)
            .map_err(|e| PyRuntimeError::new_err(format!("a point that is none: {e}")))?;
        let error = rows.error().map(str::to_owned);
        self.folder.add(rows, &self.job).map_err(folder)?;
        Ok(error)
    }

    /// Runs what is missing on so many threads of this machine. `progress(done, total)` is called
    /// after each point.
    fn run_here(
        &mut self,
        py: Python<'_>,
        jobs: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<SweepOutcome> {
        let stop = AtomicBool::new(false);
        let (job, folder_) = (Arc::clone(&self.job), &mut self.folder);
        let raised: Mutex<Option<PyErr>> = Mutex::new(None);
        let tell = |p: engine::Progress| {
            let Some(progress) = &progress else { return };
            let told = Python::attach(|py| progress.call1(py, (p.done, p.total)).map(drop));
            if let Err(error) = told {
                stop.store(true, Ordering::Relaxed);
                *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        };
        let control = engine::Control { stop: &stop, progress: &tell };
        let outcome = interruptible(py, &stop, || engine::run(&job, folder_, jobs, control))?;
        if let Some(error) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let outcome = outcome.map_err(folder)?;
        if outcome.interrupted {
            return Err(PyKeyboardInterrupt::new_err(()));
        }
        Ok((outcome.progress.done, outcome.progress.failed, outcome.failure))
    }
}

/// The native half of `vcoop`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("BUILD", BUILD)?;
    module.add("ScenarioError", py.get_type::<ScenarioError>())?;
    module.add("FolderError", py.get_type::<FolderError>())?;
    module.add_class::<Sweep>()?;
    module.add_class::<Dataset>()?;
    module.add_function(wrap_pyfunction!(builtin, module)?)?;
    module.add_function(wrap_pyfunction!(scenarios, module)?)?;
    module.add_function(wrap_pyfunction!(colours, module)?)?;
    module.add_function(wrap_pyfunction!(read_text, module)?)?;
    module.add_function(wrap_pyfunction!(run, module)?)
}
