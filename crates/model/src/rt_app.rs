//! Reads workloads of rt-app, for tasks of a guest.
//!
//! rt-app (<https://github.com/scheduler-tools/rt-app>, `doc/tutorial.txt`) describes threads in JSON: phases of
//! events, with loops, priorities and affinity. Supported events:
//!
//! ```text
//! run, runtime  CPU time (us); there is one frequency, so that they are the same
//! mem           bytes written: CPU time, at 10 GB/s
//! sleep         us
//! timer         {"ref", "period" (us)}: sleep to the next period; measured
//! lock, unlock  a mutex, by name
//! suspend       sleep until resumed
//! resume        a thread, by name: its first instance
//! loop          of a phase (default 1) or a thread (default -1: for ever)
//! ```
//!
//! A thread may have `instance`, `delay` (us), `cpus`, `policy`, `priority`, `dl-runtime`, `dl-deadline` and
//! `dl-period` (us); a phase `policy` and `priority`. `global` may have `default_policy`; its other keys, and
//! `resources`, do not describe threads. Other keys are refused with their path.

mod json;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use vcoop_sched::config::Policy;

use crate::limits::{MAX_RT_APP_ACTS, MAX_RT_APP_THREADS};
use crate::plan::{Act, Dist, LockKind, Mode, Ns, Phase};
use json::Json;

/// Bytes written in a nanosecond.
const BYTES_PER_NS: f64 = 10.0;
/// Largest time or count that is accepted.
const MAX_NUMBER: f64 = 1e12;
/// Least duration of a round of an endless thread, in nanoseconds.
const MIN_ROUND_NS: Ns = 1_000;

/// A thread.
#[derive(Clone, Debug, PartialEq)]
pub struct AppThread {
    /// Its name; with the number of the instance if there are several (`video-1`).
    pub name: String,
    /// Scheduling policy at its start; `None`: the file does not say.
    pub policy: Option<Policy>,
    /// CPUs it may use; empty = all.
    pub cpus: Vec<u32>,
    /// Time before it starts.
    pub delay_ns: Ns,
    /// What it does. Peers are threads of the file, numbered from 0; locks are numbered likewise.
    pub acts: Vec<Act>,
}

type Found<T> = Result<T, String>;

/// Reads a file.
///
/// # Errors
///
/// One sentence: what is wrong, or what cannot be expressed, and where.
pub fn parse(text: &str) -> Result<Vec<AppThread>, String> {
    let json: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let (mut tasks, mut default) = (None, Sched::default());
    for (key, value) in object(&json, "the file")? {
        match key.as_str() {
            "tasks" => tasks = Some(object(value, "tasks")?),
            "global" => default = default_of(object(value, "global")?)?,
            "resources" => {}
            _ => return Err(format!("`{key}` is not known")),
        }
    }
    let tasks = tasks.ok_or("there are no `tasks`")?;
    let mut first = BTreeMap::new();
    let mut count = 0;
    for (name, task) in tasks {
        let n = instances(task, name)?;
        first.insert(name.as_str(), count as u32);
        count += n;
        if count > MAX_RT_APP_THREADS {
            return Err(format!(
                "more than {MAX_RT_APP_THREADS} threads, with those of `tasks.{name}`"
            ));
        }
    }
    let mut locks = BTreeMap::new();
    let mut threads = Vec::new();
    let mut acts = 0;
    for (name, task) in tasks {
        let mut reader = Reader { first: &first, locks: &mut locks, timers: Vec::new(), ns: 0 };
        let own = object(task, &format!("tasks.{name}"))?;
        let thread = reader.thread(name, own, default.clone())?;
        let n = instances(task, name)?;
        acts += n * thread.acts.len();
        if acts > MAX_RT_APP_ACTS {
            return Err(format!(
                "more than {MAX_RT_APP_ACTS} events, with those of `tasks.{name}`"
            ));
        }
        for i in 0..n {
            let name = if n == 1 { name.clone() } else { format!("{name}-{i}") };
            threads.push(AppThread { name, ..thread.clone() });
        }
    }
    if threads.is_empty() {
        return Err("there are no threads in `tasks`".to_owned());
    }
    Ok(threads)
}

/// What threads have that say nothing about scheduling.
fn default_of(global: &[(String, Json)]) -> Found<Sched> {
    let Some((_, policy)) = global.iter().find(|(key, _)| key == "default_policy") else {
        return Ok(Sched::default());
    };
    let path = "global.default_policy";
    match text(policy, path)? {
        "SCHED_OTHER" => Ok(Sched::default()),
        policy => {
            let default = Sched { policy: Some(policy.to_owned()), ..Sched::default() };
            let resolved = default.resolve(path);
            resolved
                .map_or_else(|_| Err(format!("`{path}` cannot be {policy} here")), |_| Ok(default))
        }
    }
}

fn instances(task: &Json, name: &str) -> Found<usize> {
    let path = format!("tasks.{name}.instance");
    let pairs = object(task, &format!("tasks.{name}"))?;
    match pairs.iter().find(|(key, _)| key == "instance") {
        Some((_, n)) => Ok(number(n, &path)? as usize),
        None => Ok(1),
    }
}

fn object<'j>(json: &'j Json, path: &str) -> Found<&'j [(String, Json)]> {
    match json {
        Json::Object(pairs) => Ok(pairs),
        other => Err(format!("{path} is {}, not an object", other.kind())),
    }
}

/// A number from 0 on.
fn number(json: &Json, path: &str) -> Found<u64> {
    match json {
        Json::Number(n) if (0.0..=MAX_NUMBER).contains(n) => Ok(n.round() as u64),
        Json::Number(n) => Err(format!("`{path}` is {n}: out of range")),
        other => Err(format!("`{path}` is {}, not a number", other.kind())),
    }
}

fn micros(json: &Json, path: &str) -> Found<Ns> {
    number(json, path).map(|us| us * 1_000)
}

fn text<'j>(json: &'j Json, path: &str) -> Found<&'j str> {
    match json {
        Json::Text(text) => Ok(text),
        other => Err(format!("`{path}` is {}, not a text", other.kind())),
    }
}

/// Number of rounds; `None`: without end.
fn rounds(json: &Json, path: &str) -> Found<Option<u32>> {
    if *json == Json::Number(-1.0) {
        return Ok(None);
    }
    match u32::try_from(number(json, path)?) {
        Ok(0) | Err(_) => Err(format!("`{path}` is neither -1 nor at least 1")),
        Ok(n) => Ok(Some(n)),
    }
}

/// Whether a key is an event of this kind: rt-app accepts any key with this beginning, because the keys of an object
/// must differ (`run`, `run2`).
fn is_event(key: &str, kind: &str) -> bool {
    key.strip_prefix(kind).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '_'))
}

struct Reader<'f> {
    first: &'f BTreeMap<&'f str, u32>,
    locks: &'f mut BTreeMap<String, u32>,
    timers: Vec<String>,
    /// Least duration of a round, without loops of phases.
    ns: Ns,
}

/// What a thread or a phase says about scheduling.
#[derive(Clone, Default)]
struct Sched {
    policy: Option<String>,
    priority: Option<i64>,
    runtime_ns: Ns,
    deadline_ns: Ns,
    period_ns: Ns,
}

impl Sched {
    /// Takes a key that is about scheduling.
    fn take(&mut self, key: &str, value: &Json, path: &str) -> Found<bool> {
        match key {
            "policy" => self.policy = Some(text(value, path)?.to_owned()),
            "priority" => match value {
                Json::Number(n) if n.abs() < 1000.0 => self.priority = Some(*n as i64),
                other => return Err(format!("`{path}` is {}, not a priority", other.kind())),
            },
            "dl-runtime" => self.runtime_ns = micros(value, path)?,
            "dl-deadline" => self.deadline_ns = micros(value, path)?,
            "dl-period" => self.period_ns = micros(value, path)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn resolve(&self, path: &str) -> Found<Option<Policy>> {
        if self.policy.is_none() && self.priority.is_none() && self.runtime_ns == 0 {
            return Ok(None);
        }
        let rt = || match self.priority.unwrap_or(10) {
            prio @ 1..=99 => Ok(prio as u8),
            prio => Err(format!("`{path}.priority` is {prio}: 1 to 99 under this policy")),
        };
        let policy = match self.policy.as_deref().unwrap_or("SCHED_OTHER") {
            "SCHED_OTHER" => match self.priority.unwrap_or(0) {
                nice @ -20..=19 => Policy::Normal { nice: nice as i8, slice_ns: None },
                nice => return Err(format!("`{path}.priority` is {nice}: -20 to 19")),
            },
            "SCHED_IDLE" => Policy::Idle,
            "SCHED_FIFO" => Policy::Fifo(rt()?),
            "SCHED_RR" => Policy::Rr(rt()?),
            "SCHED_DEADLINE" => {
                let period_ns = if self.period_ns == 0 { self.deadline_ns } else { self.period_ns };
                let deadline_ns = if self.deadline_ns == 0 { period_ns } else { self.deadline_ns };
                let runtime_ns = self.runtime_ns;
                if vcoop_sched::check_reservation(runtime_ns, deadline_ns, period_ns).is_err() {
                    let help = "dl-runtime <= dl-deadline <= dl-period, 100 us to some seconds";
                    return Err(format!("the reservation of `{path}` cannot be made: {help}"));
                }
                Policy::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            other => return Err(format!("`{path}.policy` is {other}, which is not known here")),
        };
        Ok(Some(policy))
    }
}

impl Reader<'_> {
    fn thread(
        &mut self,
        name: &str,
        pairs: &[(String, Json)],
        mut sched: Sched,
    ) -> Found<AppThread> {
        let path = format!("tasks.{name}");
        let mut thread = AppThread {
            name: name.to_owned(),
            policy: None,
            cpus: Vec::new(),
            delay_ns: 0,
            acts: Vec::new(),
        };
        let mut times = None;
        let mut phases = None;
        let mut events = Vec::new();
        for (key, value) in pairs {
            let at = format!("{path}.{key}");
            match key.as_str() {
                "instance" => {}
                "delay" => thread.delay_ns = micros(value, &at)?,
                "loop" => times = rounds(value, &at)?,
                "cpus" => thread.cpus = cpus(value, &at)?,
                "phases" => phases = Some(object(value, &at)?),
                _ if sched.take(key, value, &at)? => {}
                _ => events.push((key, value)),
            }
        }
        thread.policy = sched.resolve(&path)?;
        match (phases, events.first()) {
            (Some(_), Some((key, _))) => {
                return Err(format!("`{path}.{key}` stands beside `phases`, or is not known"));
            }
            (Some(phases), None) => {
                for (name, phase) in phases {
                    let path = format!("{path}.phases.{name}");
                    self.phase(&mut thread.acts, object(phase, &path)?, &path)?;
                }
            }
            (None, _) => {
                for (key, value) in events {
                    self.event(&mut thread.acts, key, value, &format!("{path}.{key}"))?;
                }
            }
        }
        if thread.acts.is_empty() {
            return Err(format!("`{path}` does nothing"));
        }
        if times.is_none() && self.ns < MIN_ROUND_NS {
            return Err(format!("`{path}` would loop without using time"));
        }
        if let Some(times) = times {
            thread.acts.extend([Act::Loop { to: 0, times }, Act::Exit]);
        }
        Ok(thread)
    }

    fn phase(&mut self, acts: &mut Vec<Act>, pairs: &[(String, Json)], path: &str) -> Found<()> {
        let to = acts.len() as u32;
        let mut sched = Sched::default();
        let mut times = Some(1);
        let mut events = Vec::new();
        for (key, value) in pairs {
            let at = format!("{path}.{key}");
            match key.as_str() {
                "loop" => times = rounds(value, &at)?,
                _ if sched.take(key, value, &at)? => {}
                _ => events.push((key, value, at)),
            }
        }
        acts.extend(sched.resolve(path)?.map(Act::SetPolicy));
        let before = self.ns;
        for (key, value, at) in events {
            self.event(acts, key, value, &at)?;
        }
        match times {
            Some(1) => {}
            None if self.ns - before < MIN_ROUND_NS => {
                return Err(format!("`{path}` would loop without using time"));
            }
            // So many rounds are for ever.
            times => acts.push(Act::Loop { to, times: times.unwrap_or(u32::MAX) }),
        }
        Ok(())
    }

    fn event(&mut self, acts: &mut Vec<Act>, key: &str, value: &Json, path: &str) -> Found<()> {
        let run = |ns| Act::Do(Phase::Run { time: Dist::Const(ns), mode: Mode::User });
        let act = if is_event(key, "run") || is_event(key, "runtime") {
            let ns = micros(value, path)?;
            self.ns = self.ns.saturating_add(ns);
            run(ns)
        } else if is_event(key, "mem") {
            let ns = (number(value, path)? as f64 / BYTES_PER_NS).ceil() as Ns;
            self.ns = self.ns.saturating_add(ns);
            run(ns)
        } else if is_event(key, "sleep") {
            let ns = micros(value, path)?;
            self.ns = self.ns.saturating_add(ns);
            Act::Do(Phase::Sleep { time: Dist::Const(ns) })
        } else if is_event(key, "timer") {
            self.timer(value, path)?
        } else if is_event(key, "lock") {
            let lock = self.lock(text(value, path)?);
            // rt-app uses a mutex of pthreads.
            Act::Acquire { lock, kind: LockKind::Futex }
        } else if is_event(key, "unlock") {
            Act::Release { lock: self.lock(text(value, path)?) }
        } else if is_event(key, "suspend") {
            Act::Suspend
        } else if is_event(key, "resume") {
            let name = text(value, path)?;
            let peer = self.first.get(name);
            let peer = *peer.ok_or_else(|| format!("`{path}`: there is no thread `{name}`"))?;
            Act::Resume { peer }
        } else {
            return Err(format!("`{path}` is not known here, or cannot be expressed"));
        };
        acts.push(act);
        Ok(())
    }

    fn timer(&mut self, value: &Json, path: &str) -> Found<Act> {
        let mut period_ns = 0;
        for (key, value) in object(value, path)? {
            let at = format!("{path}.{key}");
            match key.as_str() {
                "period" => period_ns = micros(value, &at)?,
                "ref" => {
                    let name = text(value, &at)?.to_owned();
                    if self.timers.contains(&name) {
                        return Err(format!("`{at}`: a thread can wait for `{name}` in one place"));
                    }
                    self.timers.push(name);
                }
                "mode" if text(value, &at)? == "absolute" => {}
                _ => return Err(format!("`{at}` is not known here, or cannot be expressed")),
            }
        }
        if period_ns == 0 {
            return Err(format!("`{path}` has no `period`"));
        }
        self.ns = self.ns.saturating_add(period_ns);
        Ok(Act::Timer { period_ns, busy: false, interrupt: false })
    }

    fn lock(&mut self, name: &str) -> u32 {
        let next = self.locks.len() as u32;
        *self.locks.entry(name.to_owned()).or_insert(next)
    }
}

fn cpus(value: &Json, path: &str) -> Found<Vec<u32>> {
    let Json::List(list) = value else {
        return Err(format!("`{path}` is {}, not a list", value.kind()));
    };
    list.iter()
        .map(|cpu| {
            let n = number(cpu, path)?;
            u32::try_from(n).map_err(|_| format!("`{path}`: there is no CPU {n}"))
        })
        .collect()
}
