//! The driver's core: what every backend does between a policy and a vCPU's thread.
//!
//! A [`VcpuDriver`] owns the policy of one vCPU and what belongs to it: the captured baseline of its
//! thread, the means, the armed timer, the account of CPU time. The functions of this module feed it
//! and carry out what the policy answers, always in the same order. What differs between the
//! simulator, the micro-VM lab and a daemon is in their [`Port`].
//!
//! The order of one call, which is what [the crate](crate) asks of a driver:
//!
//! 1. The policy is called once, with the time of the [`Port`].
//! 2. Its actions take effect in their order. An interrupt that is to be injected is made visible ([`Port::fire`])
//!    after the ticket and the status, and before the thread is boosted: the boost takes several microseconds on a real
//!    host, in which a running vCPU takes the interrupt.
//! 3. If the host refuses the means, [`Event::Refused`] is fed at once.
//! 4. [`Action::Recheck`] comes last: the guest's words are read anew, and fed.
//!
//! A vCPU has no thread before [`start`] and after [`stop`]. Events fed then change nothing, but an injected interrupt
//! is still made visible.

use vcoop_abi::{GuestWords, Status};

use crate::action::{Action, Actions};
use crate::config::{Means, Ns};
use crate::event::{Event, Injection};
use crate::govern::CpuTime;
use crate::host::HostPolicy;
use crate::stats::PolicyStats;
use crate::thread::{Policy, attributes};
use crate::vm_shared::VmShared;

/// What a backend provides to drive one vCPU.
pub trait Port {
    /// An error of the backend.
    type Error;

    /// Whether anything reads what [`store_budget`](Self::store_budget) publishes; if not, it is not computed.
    const SHOWS_BUDGET: bool = true;

    /// The time, in nanoseconds. It never goes back between two calls for one VM.
    fn now(&mut self) -> Ns;

    /// The vCPU's driver. The calls that are made for one vCPU do not overlap.
    fn driver(&mut self) -> &mut VcpuDriver;

    /// The vCPU's driver, and what the vCPUs of its VM share. `f` only computes: it does no I/O.
    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R;

    /// Publishes an interrupt ticket in the host area.
    fn store_ticket(&mut self, ticket: u64);

    /// Publishes a status in the host area.
    fn store_status(&mut self, status: Status);

    /// Publishes in the host area how much boosted time is left, in nanoseconds.
    fn store_budget(&mut self, left: Ns);

    /// Gives the vCPU's thread this scheduling policy.
    ///
    /// # Errors
    /// [`SetError`]: the thread has what it had before.
    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Self::Error>>;

    /// Calls [`timer`] at this time or later, instead of at the time asked for before; at once if the time has passed.
    /// `None`: not at all.
    fn arm(&mut self, at: Option<Ns>);

    /// Makes the interrupt visible to the guest that [`inject`] is about.
    ///
    /// # Errors
    /// The backend's, if the interrupt cannot be sent.
    fn fire(&mut self) -> Result<(), Self::Error>;

    /// The guest's words, each read once, after a full fence.
    fn words(&mut self) -> GuestWords;

    /// Whether [`called`](Self::called) is to be called.
    fn is_watched(&self) -> bool {
        false
    }

    /// The policy was called and answered with `actions`; its counters were `before`. For traces and
    /// counts by time; the actions are carried out next.
    fn called(&mut self, before: &PolicyStats, actions: &Actions) {
        let _ = (before, actions);
    }
}

/// Why a thread's policy was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError<E> {
    /// The host refuses now, and may accept later: the policy goes on without.
    Refused(E),
    /// The call failed. The policy's other actions are still carried out, so that guest and timer agree with its state;
    /// then the call returns the error.
    Failed(E),
}

impl<E> SetError<E> {
    fn into_inner(self) -> E {
        match self {
            Self::Refused(error) | Self::Failed(error) => error,
        }
    }
}

/// The policy of one vCPU, and what belongs to it on the side of the host.
#[derive(Clone, Debug)]
pub struct VcpuDriver {
    policy: HostPolicy,
    /// What a boost gives; `None` for a policy that never boosts.
    means: Option<Means>,
    /// What the thread has, or is to have, without boosts.
    baseline: Policy,
    /// When the policy wants [`Event::Timer`].
    timer: Option<Ns>,
    has_thread: bool,
    is_halted: bool,
    /// CPU time of the thread at the last account. Time before the first account is not counted.
    accounted: Option<CpuTime>,
}

impl VcpuDriver {
    /// A vCPU without a thread yet. `means`: what `policy` boosts by, if it boosts.
    pub fn new(policy: HostPolicy, means: Option<Means>, baseline: Policy) -> Self {
        Self {
            policy,
            means,
            baseline,
            timer: None,
            has_thread: false,
            is_halted: false,
            accounted: None,
        }
    }

    /// The vCPU's policy.
    pub fn policy(&self) -> &HostPolicy {
        &self.policy
    }

    /// What the policy boosts by; `None` if it never boosts.
    pub fn means(&self) -> Option<Means> {
        self.means
    }

    /// What the thread has, or is to have, without boosts.
    pub fn baseline(&self) -> Policy {
        self.baseline
    }

    /// Sets the thread's real baseline, before [`start`]; [`rebase`] is for later changes.
    pub fn set_baseline(&mut self, baseline: Policy) {
        debug_assert!(!self.has_thread, "a rebase");
        self.baseline = baseline;
    }

    /// When [`timer`] is due.
    pub fn timer(&self) -> Option<Ns> {
        self.timer
    }

    /// Whether the vCPU's last reported state is halted.
    pub fn is_halted(&self) -> bool {
        self.is_halted
    }

    /// Whether a boost would lower the thread, or change nothing.
    pub fn outranks(&self) -> bool {
        self.means.is_some_and(|means| self.baseline.outranks(means))
    }

    /// What a boost gives the thread; `None` if the policy never boosts, or a boost would lower the thread or change
    /// nothing.
    pub fn boosted(&self) -> Option<Policy> {
        let means = self.means.filter(|_| !self.outranks())?;
        Some(self.attributes(Some(means)))
    }

    /// Attributes of the thread when boosted by `means`, or at rest.
    fn attributes(&self, means: Option<Means>) -> Policy {
        attributes(self.baseline, means, self.policy.rest())
    }
}

/// The vCPU's thread exists, at its baseline. `registered`: the guest takes part from the start; a guest that does so
/// later is reported by [`register`].
///
/// # Errors
/// The port's; also the host's refusal of the means of a `static` policy. Such a policy must hold for the whole run, so
/// the run fails.
pub fn start<P: Port>(port: &mut P, registered: bool) -> Result<(), P::Error> {
    let v = port.driver();
    v.has_thread = true;
    v.is_halted = false;
    v.accounted = None;
    let outranks = v.outranks();
    call(port, Event::Baseline { outranks }, false)?;
    // Also if false: the guest may have left while there was no thread.
    call(port, Event::Registered(registered), false)?;
    call(port, Event::Attached(true), false)?;
    let refused = port.with(|v, vm| {
        let wants = matches!(v.policy, HostPolicy::Static { .. }) && vm.is_on() && !outranks;
        (wants && !v.policy.is_boosted()).then(|| v.attributes(v.means))
    });
    match refused {
        Some(policy) => port.set_thread(policy).map_err(SetError::into_inner),
        None => Ok(()),
    }
}

/// The vCPU's thread is about to go, or is no longer to be changed: it gets its baseline back.
///
/// # Errors
/// The port's. The driver has no thread then in either case.
pub fn stop<P: Port>(port: &mut P) -> Result<(), P::Error> {
    let ended = feed(port, Event::Attached(false));
    let had_thread = core::mem::take(&mut port.driver().has_thread);
    if had_thread {
        let baseline = port.driver().baseline;
        port.set_thread(baseline).map_err(SetError::into_inner)?;
    }
    ended
}

/// The switches of the VM may have changed.
///
/// # Errors
/// The port's.
pub fn enable<P: Port>(port: &mut P) -> Result<(), P::Error> {
    feed(port, Event::Enable)
}

/// The guest has registered its area (`true`), or taken it away.
///
/// # Errors
/// The port's.
pub fn register<P: Port>(port: &mut P, on: bool) -> Result<(), P::Error> {
    feed(port, Event::Registered(on))
}

/// Injects an interrupt: [`Port::fire`] is called once, at the right moment. `asked`: it is an IPI whose sender asks
/// for a boost of the receiver, and the policy [hears](HostPolicy::hears_senders) senders; see [`Event::Asked`].
///
/// # Errors
/// The port's.
#[inline]
pub fn inject<P: Port>(port: &mut P, kind: Injection, asked: bool) -> Result<(), P::Error> {
    let (has_thread, hears) = {
        let v = port.driver();
        (v.has_thread, v.policy.hears_senders())
    };
    if !has_thread {
        return port.fire();
    }
    let event = if asked && hears { Event::Asked } else { Event::Injected(kind) };
    call(port, event, true)
}

/// The sender of an IPI asks for a boost of this vCPU, and the IPI itself does not go through the host.
///
/// # Errors
/// The port's.
pub fn asked<P: Port>(port: &mut P) -> Result<(), P::Error> {
    feed(port, Event::Asked)
}

/// The vCPU has left guest mode, for any reason but a halt.
///
/// # Errors
/// The port's.
#[inline]
pub fn exit<P: Port>(port: &mut P) -> Result<(), P::Error> {
    let words = port.words();
    feed(port, Event::Exit(words))
}

/// The guest's words are sampled while the vCPU may be running.
///
/// # Errors
/// The port's.
pub fn sample<P: Port>(port: &mut P) -> Result<(), P::Error> {
    let words = port.words();
    feed(port, Event::Sampled(words))
}

/// The guest has notified. `running`: its vCPU may be running again.
///
/// # Errors
/// The port's.
pub fn notify<P: Port>(port: &mut P, running: bool) -> Result<(), P::Error> {
    let words = port.words();
    feed(port, if running { Event::NotifySampled(words) } else { Event::Notify(words) })
}

/// `halted`: the vCPU has halted, and its thread is about to sleep. Else it was woken.
///
/// # Errors
/// The port's.
#[inline]
pub fn halt<P: Port>(port: &mut P, halted: bool) -> Result<(), P::Error> {
    port.driver().is_halted = halted;
    let event = if halted { Event::Halted(port.words()) } else { Event::Woken };
    feed(port, event)
}

/// Feeds [`Event::Timer`] if the time that the policy asked for has come; else does nothing.
///
/// # Errors
/// The port's.
pub fn timer<P: Port>(port: &mut P) -> Result<(), P::Error> {
    let now = port.now();
    // Read under the port's lock: the timer may have changed since the caller looked.
    if port.driver().timer.take_if(|at| *at <= now).is_some() {
        feed(port, Event::Timer)?;
    }
    Ok(())
}

/// Total CPU time of the vCPU's thread: for a policy that [repays](HostPolicy::repays), when it begins and then every
/// [`ACCOUNT_NS`](crate::repay::ACCOUNT_NS).
///
/// # Errors
/// The port's.
pub fn account<P: Port>(port: &mut P, total: CpuTime) -> Result<(), P::Error> {
    match port.driver().accounted.replace(total) {
        Some(before) => feed(port, Event::Ran(total.since(before))),
        None => Ok(()),
    }
}

/// The baseline of the vCPU's thread was changed from outside, or is to be changed.
///
/// # Errors
/// The port's. A baseline that the host refuses leaves the thread with what it had, as a failed `chrt`
/// does.
pub fn rebase<P: Port>(port: &mut P, baseline: Policy) -> Result<(), P::Error> {
    let v = port.driver();
    v.baseline = baseline;
    let unboosted = v.has_thread && !v.policy.is_boosted();
    let (now, outranks) = (unboosted.then(|| v.attributes(None)), v.outranks());
    if let Some(policy) = now {
        set(port, policy)?;
    }
    feed(port, Event::Baseline { outranks })
}

#[inline]
fn feed<P: Port>(port: &mut P, event: Event) -> Result<(), P::Error> {
    if port.driver().has_thread { call(port, event, false) } else { Ok(()) }
}

/// Sets a thread's policy; false: refused.
fn set<P: Port>(port: &mut P, policy: Policy) -> Result<bool, P::Error> {
    match port.set_thread(policy) {
        Ok(()) => Ok(true),
        Err(SetError::Refused(_)) => Ok(false),
        Err(SetError::Failed(error)) => Err(error),
    }
}

/// One call of the policy, its actions, and what follows from them. `fires`: an interrupt is to be made
/// visible on the way.
#[inline]
fn call<P: Port>(port: &mut P, event: Event, mut fires: bool) -> Result<(), P::Error> {
    let before = if port.is_watched() { Some(port.driver().policy.stats()) } else { None };
    let now = port.now();
    let mut actions = Actions::new();
    port.with(|v, vm| v.policy.answer(now, event, vm, &mut actions));
    if let Some(before) = before {
        port.called(&before, &actions);
    }
    let mut rechecks = false;
    let mut failed = None;
    for &action in &actions {
        let mut done = Ok(());
        match action {
            Action::Ticket(ticket) => port.store_ticket(ticket),
            Action::Status(status) => port.store_status(status),
            Action::Boost(means) => {
                if core::mem::take(&mut fires) {
                    port.fire()?;
                }
                let boosted = port.driver().attributes(Some(means));
                done = match set(port, boosted) {
                    Ok(false) => call(port, Event::Refused, false),
                    done => done.map(drop),
                };
            }
            Action::Rest(_) => {
                let v = port.driver();
                if !v.policy.is_boosted() {
                    let rested = v.attributes(None);
                    done = set(port, rested).map(drop);
                }
            }
            Action::Restore => {
                let rested = port.driver().attributes(None);
                done = match set(port, rested) {
                    // Another thread has its reservation now. It is no longer boosted.
                    Ok(false) => set(port, Policy::NORMAL).map(drop),
                    done => done.map(drop),
                };
            }
            Action::ArmTimer(at) => {
                port.driver().timer = Some(at);
                port.arm(Some(at));
            }
            Action::CancelTimer => {
                port.driver().timer = None;
                port.arm(None);
            }
            Action::Recheck => rechecks = true,
            Action::Denied(_) => {}
        }
        failed = failed.or(done.err());
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if fires {
        port.fire()?;
    }
    if P::SHOWS_BUDGET && port.driver().policy.reads_guest() {
        let left = port.driver().policy.budget_left(now);
        port.store_budget(left);
    }
    if rechecks {
        let words = port.words();
        call(port, Event::Recheck(words), false)?;
    }
    Ok(())
}
