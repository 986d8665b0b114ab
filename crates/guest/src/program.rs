//! What tasks do, in a form the guest can follow without arithmetic of its own: times are TSC
//! cycles, work is iterations of a counting loop that the host has timed, and whatever is random
//! was drawn by the host.

/// A task. All fields are words, so that the layout needs no thought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskSpec {
    /// [`Kind`] as a number.
    pub kind: u64,
    /// vCPU it runs on, always.
    pub vcpu: u64,
    /// Scheduling class: `vcoop_abi::Class` as a number.
    pub class: u64,
    /// Priority as `vcoop_abi::TaskIntent` has it.
    pub prio: u64,
    /// [`flag`]s.
    pub flags: u64,
    /// Cycles after `Control::start_tsc` at which it starts.
    pub start_tsc: u64,
    /// Period (cyclictest, audio), toggle time (rogue).
    pub period_tsc: u64,
    /// Audio: how late a callback may be done.
    pub buffer_tsc: u64,
    /// Cyclictest: first due time after the first period.
    pub phase_tsc: u64,
    /// First step: of the loop, or of the amounts of work, taken in turn.
    pub first_step: u64,
    /// Number of steps, at least 1 for kinds that have some.
    pub steps: u64,
    /// Sample ring; `u64::MAX` = none.
    pub ring: u64,
    /// Number of the measuring task in the plan, for the sample.
    pub task: u64,
    /// First of the lines it calls on (ping) or serves.
    pub first_line: u64,
    /// Server: number of them.
    pub lines: u64,
    /// Zero.
    pub reserved: [u64; 1],
}

/// Bits of [`TaskSpec::flags`].
pub mod flag {
    /// Absolute due times.
    pub const ABSOLUTE: u64 = 1;
    /// Woken by a device, not by a timer.
    pub const DEVICE: u64 = 2;
}

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// Nothing.
    None = 0,
    /// Sleeps to due times, samples, works.
    Cyclictest = 1,
    /// Follows its steps in a loop.
    Loop = 2,
    /// Audio callback.
    Audio = 3,
    /// Asks for a boost for ever.
    RogueForever = 4,
    /// Toggles its preempt-off flag.
    RogueToggle = 5,
    /// Serves its lines.
    Serve = 6,
    /// Calls at a period, samples the round trip, works.
    Ping = 7,
}

impl Kind {
    /// From [`TaskSpec::kind`]; unknown numbers are nothing.
    pub fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Cyclictest,
            2 => Self::Loop,
            3 => Self::Audio,
            4 => Self::RogueForever,
            5 => Self::RogueToggle,
            6 => Self::Serve,
            7 => Self::Ping,
            _ => Self::None,
        }
    }
}

/// A step: what, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// [`StepOp`] as a number.
    pub op: u64,
    /// Iterations or cycles.
    pub arg: u64,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum StepOp {
    /// Work for so many iterations; 0 = for ever.
    Run = 0,
    /// The same with preemption off.
    RunPreemptOff = 1,
    /// Sleep for so many cycles.
    Sleep = 2,
    /// Sleep to the next multiple of so many cycles after the start.
    Align = 3,
    /// Call on the line of this number, and wait for the answer.
    Call = 4,
}

/// A device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceSpec {
    /// Task it wakes, plus 1; 0 = none.
    pub wakes: u64,
    /// Work of its softirq half, in iterations.
    pub softirq: u64,
    /// 1: it interrupts by NMI.
    pub nmi: u64,
    /// vCPU that takes it.
    pub vcpu: u64,
}

/// The ends of a line. One of the two is in this VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LineSpec {
    /// Task that calls, plus 1; 0 = somebody outside.
    pub caller: u64,
    /// Task that serves, plus 1; 0 = somebody outside.
    pub server: u64,
}

/// What a task asks of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sleep until this TSC.
    SleepUntil(u64),
    /// Sleep until the device has interrupted; at once if it has since the last time.
    WaitDevice,
    /// Preemption off.
    PreemptOff,
    /// Preemption on.
    PreemptOn,
    /// Wake a task, on whatever vCPU, that waits as for a device; if it does not, it will not wait
    /// the next time.
    Wake(u64),
}

impl Call {
    /// As two registers.
    pub fn to_words(self) -> (u64, u64) {
        match self {
            Self::SleepUntil(at) => (0, at),
            Self::WaitDevice => (1, 0),
            Self::PreemptOff => (2, 0),
            Self::PreemptOn => (3, 0),
            Self::Wake(task) => (4, task),
        }
    }

    /// From two registers; unknown numbers sleep until the TSC in the second.
    pub fn from_words(op: u64, arg: u64) -> Self {
        match op {
            1 => Self::WaitDevice,
            2 => Self::PreemptOff,
            3 => Self::PreemptOn,
            4 => Self::Wake(arg),
            _ => Self::SleepUntil(arg),
        }
    }
}
