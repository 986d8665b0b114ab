//! What a state of a thread means to a sample.
//!
//! One state can mean two things. While the task still sleeps (*waiting for the event*), a vCPU that runs other guest
//! code is late in taking the interrupt; once the task is runnable (*waiting for the CPU*), the same state is a wait in
//! the guest's run queue.

use vcoop_model::recording::Part;

/// State of a tracked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Blocked (a vCPU: halted) and nothing is on its way.
    Asleep,
    /// Its pCPU is leaving an idle state for it.
    IdleExit,
    /// A host interrupt handler runs in its way.
    HostIrq,
    /// Queued since a wake-up.
    WakeToRun,
    /// Queued since a preemption.
    Preempted,
    /// Queued, and its class is throttled.
    Throttled,
    /// Being switched to, or its pCPU does scheduler work.
    Switch,
    /// In a VM exit or entry.
    ExitEntry,
    /// In guest mode: interrupt or softirq handler.
    GuestIrq,
    /// In guest mode: guest scheduler and switch.
    GuestSwitch,
    /// Running its own work (a vCPU: in guest mode, a guest task).
    Run,
    /// In guest mode: spinning for a lock; or halted for it.
    Spin,
    /// In guest mode: spinning until other vCPUs have called a function.
    CallWait,
}

/// Number of states.
pub(super) const STATES: usize = 13;

const fn parts(asleep: Part, run: Part, [spin, call]: [Part; 2]) -> [Part; STATES] {
    [
        asleep,
        Part::CState,
        Part::HostIrq,
        Part::WakeToRun,
        Part::PreemptedToRun,
        Part::Throttled,
        Part::HostSwitch,
        Part::EntryExit,
        Part::GuestIrq,
        Part::GuestSwitch,
        run,
        spin,
        call,
    ]
}

/// Spinning keeps a task from its own work, or keeps another task from the vCPU.
const SPINS: [Part; 2] = [Part::LockWait, Part::CallWait];
/// Parts by state while the sampled task waits for its event.
const BEFORE_EVENT: [Part; STATES] = parts(Part::TimerSlack, Part::Delivery, [Part::Delivery; 2]);
/// Parts by state once the task is runnable: a halted vCPU has an IPI on its way.
const AFTER_EVENT: [Part; STATES] = parts(Part::Delivery, Part::GuestWait, SPINS);
/// Parts by state for a message on its way.
const FLIGHT: [Part; STATES] = parts(Part::Delivery, Part::Delivery, [Part::Delivery; 2]);
/// Parts by state for a call that waits for earlier calls of a running server.
const QUEUED: [Part; STATES] = parts(Part::Delivery, Part::ServiceQueue, [Part::ServiceQueue; 2]);
/// Parts by state for the call that a running server works on, and for an action whose task runs.
const SERVED: [Part; STATES] = parts(Part::Delivery, Part::Service, SPINS);
/// Parts for the call that is served while its server waits for a device: all of it is service.
const HELD: [Part; STATES] = [Part::Service; STATES];
/// Parts for the calls behind that one.
const BEHIND: [Part; STATES] = [Part::ServiceQueue; STATES];

/// Stage of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundTripStage {
    /// The request or the answer is being sent or is on its way; the track is the sender's, then that of the vCPU that
    /// it interrupts.
    Flight,
    /// It has arrived at a task that does not have its (v)CPU.
    Arrived,
    /// It waits at a server that has its (v)CPU, behind other calls.
    Queued,
    /// A server that has its (v)CPU works on it.
    Served,
    /// Its server waits for a device.
    Held,
    /// It waits at a server that waits for a device.
    Behind,
}

/// Stage of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No open sample.
    Idle,
    /// The due time is in the future.
    Armed,
    /// Due; the event has not reached the task.
    BeforeEvent,
    /// On a leg of a round trip. A task that has its event, whichever, has [`RoundTripStage::Arrived`].
    On(RoundTripStage),
    /// Action: the task has its (v)CPU and works.
    Acting,
}

/// The task is runnable.
pub(super) const RUNNABLE: Phase = Phase::On(RoundTripStage::Arrived);

impl Phase {
    /// Parts by state in this stage.
    pub(super) fn meaning(self) -> &'static [Part; STATES] {
        match self {
            Self::Idle | Self::Armed | Self::BeforeEvent => &BEFORE_EVENT,
            Self::On(RoundTripStage::Arrived) => &AFTER_EVENT,
            Self::On(RoundTripStage::Flight) => &FLIGHT,
            Self::On(RoundTripStage::Queued) => &QUEUED,
            Self::On(RoundTripStage::Served) | Self::Acting => &SERVED,
            Self::On(RoundTripStage::Held) => &HELD,
            Self::On(RoundTripStage::Behind) => &BEHIND,
        }
    }
}
