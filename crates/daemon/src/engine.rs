//! The thread that drives the vCPUs of all VMs.
//!
//! It sleeps until a watched thread has slept or run, a guest has rung, a timer is due, or a command arrives. It alone
//! has the drivers, the journal and the keeper, so nothing needs a lock.

mod engine_thread;
mod link;
mod unload;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use vcoop_abi::window::Doorbell;
use vcoop_bpf::{Rules, Scheduler};
use vcoop_model::plan::Plan;
use vcoop_policy::config::Ns;
use vcoop_policy::thread::Policy;
use vcoop_threads::Attributes;
use vcoop_threads::journal::Journal;
use vcoop_vmm::{Accel, VcpuThread};
use vcoop_window::Window;

use crate::config::USUAL;
use crate::keeper::Keeper;
use crate::policy::kernel_rules;
use crate::protocol::{Refusal, Status, VmId, VmStatus};
use crate::run_folder::RunFolder;
use engine_thread::EngineThread;
#[cfg(test)]
pub(crate) use engine_thread::tests;
use unload::Unloading;

/// Tokens of what woke the engine. Tokens of the source of thread events are numbers of threads, or 0.
const WAKE: u64 = 1 << 32;
const KEEPER: u64 = WAKE + 1;
const PRESSURE: u64 = WAKE + 2;
/// A thread has ended: its number is added to this token.
const ENDS: u64 = 1 << 33;
/// A guest has rung: the number of its VM is added to this token.
const BELL: u64 = 1 << 34;

/// A VM to apply a policy to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The VM.
    pub(crate) vm: VmId,
    /// What executes it.
    pub(crate) accel: Accel,
    /// Its vCPUs, at least one.
    pub(crate) vcpus: Vec<VcpuThread>,
    /// Its policy: a plan with one VM that has as many vCPUs.
    pub(crate) plan: Box<Plan>,
    /// The thread that delivers the VM's timers, if that is no vCPU's thread, and its policy: a plan as above with one
    /// vCPU.
    pub(crate) timers: Option<(VcpuThread, Box<Plan>)>,
    /// What its guest shares with this host, if its policy needs that.
    pub(crate) shares: Option<Shares>,
    /// Notes for who applies it.
    pub(crate) notes: Vec<String>,
}

/// What a guest with a driver shares with this host.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    pub(crate) window: Arc<Window>,
    /// Address of the window in the VMM's memory.
    pub(crate) address: Option<u64>,
    /// Eventfd that the guest rings; `None`: its words are sampled.
    pub(crate) bell: Option<Arc<OwnedFd>>,
    /// Ticks of this host's TSC in a millisecond.
    pub(crate) host_khz: u32,
}

/// Does slow work in a thread of its own, at normal priority. A new thread would inherit the engine's real-time
/// priority.
fn spawn_at_normal_priority(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(|| {
        let _ = Attributes::from_policy(&Policy::Normal { nice: 0, slice_ns: None }).set(0);
        work();
    });
    thread.map(drop)
}

/// A window, and its address in the VMM's memory.
type WindowFound = (Arc<Window>, Option<u64>);

/// The window that a VMM has without having been served one, if its guest's driver has registered there.
/// `guest_memory`: also accepts a window in the guest's memory, which is otherwise refused, and not written to.
pub(crate) fn found_window(pid: u32, guest_memory: bool) -> Result<Option<WindowFound>, Refusal> {
    let Some(window) = vcoop_window::find(pid).ok().flatten() else { return Ok(None) };
    if window.is_lent() && !guest_memory {
        return Err(Refusal::missing(format!(
            "the guest has its window in its own memory, where any user of the guest can put one and have this \
             host write to memory behind it\n  remedy: give the VM a device of at most 8 MiB for the window, or, if \
             you trust all users of your guests, run vcoop daemon with `guest_memory = true` in [windows] of {USUAL}"
        )));
    }
    window.offer(Doorbell::default());
    let address = vcoop_window::address(pid, &window).ok().flatten();
    Ok(Some((Arc::new(window), address)))
}

/// A command to the engine.
#[derive(Debug)]
enum Command {
    Attach(Box<Target>, Option<Box<Scheduler>>, Sender<Result<VmStatus, Refusal>>),
    /// Whether `scx_vcoop` is loaded.
    Schedules(Sender<bool>),
    Detach(VmId, Sender<Option<VmStatus>>),
    BusyPoll(Ns),
    /// Of one VM, or of all.
    Status(Option<VmId>, Sender<Status>),
    End,
}

/// Handle of the engine.
#[derive(Debug)]
pub(crate) struct Engine {
    commands: Sender<Command>,
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Schedulers that were loaded before and are still being unloaded.
    unloading: Unloading,
    /// Why the thread has ended, if known.
    why: Arc<OnceLock<String>>,
}

impl Engine {
    /// Starts the thread, which owns the place's journal and its keeper from here on.
    ///
    /// # Errors
    ///
    /// The keeper, or the thread, does not start.
    pub(crate) fn start(place: RunFolder, journal: Journal) -> io::Result<Self> {
        Self::with(Keeper::start(&place)?, place, journal)
    }

    /// As [`start`](Self::start), with a keeper that is already running.
    pub(crate) fn with(keeper: Keeper, place: RunFolder, journal: Journal) -> io::Result<Self> {
        let (commands, orders) = mpsc::channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&poll, keeper.ends(), EventData::new_u64(KEEPER), EventFlags::IN)?;
        let why = Arc::new(OnceLock::new());
        let inside = EngineThread::new(orders, poll, keeper, journal, place, why.clone());
        let unloading = inside.unloading.clone();
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || inside.live())?;
        Ok(Self { commands, wake, thread: Mutex::new(Some(thread)), unloading, why })
    }

    /// Gives everything back, and ends the thread.
    pub(crate) fn end(&self) {
        self.order(Command::End);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // If it has panicked, the keeper gives everything back.
            let _ = thread.join();
        }
    }

    /// Whether the thread still runs.
    pub(crate) fn is_alive(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// How the thread has ended, in words.
    pub(crate) fn end_of(&self) -> String {
        match self.why.get() {
            Some(why) => format!("the engine has ended: {why}"),
            None => "the engine has ended; the keeper gives everything back".to_owned(),
        }
    }

    fn dead(&self) -> Refusal {
        Refusal::from(self.end_of())
    }

    fn order(&self, command: Command) -> bool {
        let told = self.commands.send(command).is_ok();
        // This fails if the counter is full, and then the engine wakes up anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        told
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = mpsc::channel();
        if !self.order(command(answer)) {
            return None;
        }
        answered.recv().ok()
    }

    /// Applies a policy to a VM, in place of the one in force. One call at a time: a host has one `scx_vcoop`.
    ///
    /// # Errors
    ///
    /// Why not, in words. The VM has what it had before any policy.
    pub(crate) fn attach(&self, target: Target) -> Result<VmStatus, Refusal> {
        let Some(rules) = kernel_rules(&target.plan.policy) else {
            return self.apply(target, None);
        };
        // First, because the scheduler would be unloaded together with the policy that is replaced.
        self.detach(target.vm.clone());
        if matches!(rules, Rules::Dynamic(_)) {
            Scheduler::answers_guests().map_err(Refusal::missing)?;
        }
        let loaded = self.ask(Command::Schedules).ok_or_else(|| self.dead())?;
        // A scheduler that the kernel has ended may still be unloading.
        self.unloading.wait();
        // Loaded here: the kernel takes a while to verify it, and the engine's thread has other VMs to drive.
        let scheduler = (!loaded).then(Scheduler::load).transpose();
        self.apply(target, scheduler.map_err(Refusal::missing)?)
    }

    fn apply(&self, target: Target, scheduler: Option<Scheduler>) -> Result<VmStatus, Refusal> {
        self.ask(|answer| Command::Attach(Box::new(target), scheduler.map(Box::new), answer))
            .unwrap_or_else(|| Err(self.dead()))
    }

    /// Takes a policy back, and returns the status until then; `None`: there was none. If no other VM needs
    /// `scx_vcoop`, it is unloaded.
    pub(crate) fn detach(&self, vm: VmId) -> Option<VmStatus> {
        let last = self.ask(|answer| Command::Detach(vm, answer)).flatten();
        self.unloading.wait();
        last
    }

    /// Polls for so long for the next event from now on, before the thread sleeps.
    pub(crate) fn busy_poll(&self, time: Ns) {
        self.order(Command::BusyPoll(time));
    }

    /// What is in force on a VM, or on all.
    ///
    /// # Errors
    ///
    /// The engine has ended.
    pub(crate) fn status(&self, of: Option<VmId>) -> Result<Status, Refusal> {
        self.ask(|answer| Command::Status(of, answer)).ok_or_else(|| self.dead())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}
