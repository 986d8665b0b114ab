//! Programs of tasks, in a form that the guest can follow without arithmetic: times are TSC cycles, work is iterations
//! of a counting loop that the host has timed, and random values were drawn by the host.

/// A task. All fields are words, so that there is no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskSpec {
    /// [`Kind`] as a number.
    pub kind: u64,
    /// vCPU it runs on: always, or at first, in a guest that moves its tasks.
    pub vcpu: u64,
    /// vCPUs it may move to, one bit each.
    pub cpus: u64,
    /// Scheduling class: `vcoop_abi::Class` as a number.
    pub class: u64,
    /// Priority as `vcoop_abi::TaskIntent` has it.
    pub prio: u64,
    /// [`flag`]s.
    pub flags: u64,
    /// Cycles after `Control::start_tsc` at which it starts.
    pub start_tsc: u64,
    /// Period (cyclictest, audio).
    pub period_tsc: u64,
    /// Audio: how late a callback may be done. Calibrate: the least gap.
    pub buffer_tsc: u64,
    /// Cyclictest: first due time after the first period.
    pub phase_tsc: u64,
    /// First step: of the loop, or of the amounts of work, which are used in turn.
    pub first_step: u64,
    /// Number of steps, at least 1 for kinds that use steps.
    pub steps: u64,
    /// Sample ring; `u64::MAX` = none.
    pub ring: u64,
    /// Number of the measuring task in the plan, for the sample.
    pub task: u64,
    /// Calibrate: [`Op`] as a number.
    pub op: u64,
    /// First of the lines it calls on (ping) or serves.
    pub first_line: u64,
    /// Server: number of its lines.
    pub lines: u64,
}

/// Bits of [`TaskSpec::flags`].
pub mod flag {
    /// Absolute due times.
    pub const ABSOLUTE: u64 = 1;
    /// Woken by a device, not by a timer.
    pub const DEVICE: u64 = 2;
    /// It writes its own vCPU's area, so that the kernel's hooks must keep off.
    pub const OWN_AREA: u64 = 4;
}

/// Declares an enum that is a number in shared memory, and the variant of all other numbers.
macro_rules! numbered {
    (
        $(#[$about:meta])+
        pub enum $name:ident, else $unknown:ident { $( $(#[$doc:meta])+ $variant:ident = $number:literal ),+ $(,)? }
    ) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        pub enum $name { $( $(#[$doc])+ $variant = $number, )+ }

        impl $name {
            /// From its number.
            pub fn from_word(word: u64) -> Self {
                match word {
                    $( $number => Self::$variant, )+
                    _ => Self::$unknown,
                }
            }
        }
    };
}

numbered! {
    /// What a task is.
    pub enum Kind, else None {
        /// Nothing.
        None = 0,
        /// Sleeps to due times, samples, works.
        Cyclictest = 1,
        /// Follows its steps in a loop.
        Loop = 2,
        /// Audio callback.
        Audio = 3,
        /// Does one [`Op`] again and again, and samples how long it took.
        Calibrate = 4,
        /// Serves its lines.
        Serve = 5,
        /// Calls at a period, samples the round trip, works.
        Ping = 6,
    }
}

numbered! {
    /// What a calibrating task times. A sample's `due` is the time before the operation, its `taken`
    /// the time after, unless the operation says otherwise.
    pub enum Op, else Clock {
        /// Nothing: the cost of reading the clock twice.
        Clock = 0,
        /// Into ring 0 and back: the cost that all the following include.
        Gate = 1,
        /// CPUID: an exit that the kernel handles.
        Cpuid = 2,
        /// The local timer's deadline set far away, so that it never fires.
        TimerMsr = 3,
        /// An interrupt sent to a vCPU that does not exist.
        IcrNobody = 4,
        /// The end of an interrupt that is not in service.
        Eoi = 5,
        /// A byte written to a port that only user space handles.
        Port = 6,
        /// A write to an MSR that only user space handles.
        NotifyMsr = 7,
        /// A store to the read-only host area: an exit to user space.
        Store = 8,
        /// An interrupt to itself, of device 1, which wakes no task.
        SelfInterrupt = 9,
        /// An interrupt to itself, of device 0, which wakes an [`Echo`](Self::Echo) task.
        SelfWake = 10,
        /// Each period, device 0's interrupt sent to vCPU 1. The time is noted in that vCPU's
        /// [`fired`](crate::layout::VcpuWords::fired).
        Interrupt = 11,
        /// Waits for its device, for ever; `due` is the time of its vCPU's `fired`.
        Echo = 12,
        /// Reads the clock for ever; a sample is a gap of more than [`TaskSpec::buffer_tsc`].
        Gaps = 13,
        /// Holds a value in every register, the flags and the red zone, for some microseconds. A
        /// sample's `missed` is 1 if any of them has changed: then an interrupt was not transparent.
        Registers = 14,
    }
}

/// A step: operation and amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// [`StepOp`] as a number.
    pub op: u64,
    /// Iterations or cycles.
    pub arg: u64,
}

numbered! {
    /// What a step does.
    pub enum StepOp, else Run {
        /// Work for so many iterations; 0 = for ever.
        Run = 0,
        /// The same with preemption off.
        RunPreemptOff = 1,
        /// Sleep for so many cycles.
        Sleep = 2,
        /// Sleep to the next multiple of so many cycles after the start.
        Align = 3,
        /// Call on the line of this number, and wait for the answer; a sample begins with it.
        Call = 4,
        /// A sample begins.
        Begin = 5,
        /// A sample ends.
        Sample = 6,
        /// Sleep to the next point of a grid of so many cycles, which begins at the first such step; the lateness is a
        /// sample.
        Timer = 7,
        /// Have the vCPUs in this mask call a function, and spin until all have.
        Interrupt = 8,
        /// A unit of work is done.
        Done = 9,
        /// This and all below are of a hostile kernel. Store this word as the request.
        Request = 10,
        /// Store this word as the intent, and claim to halt if it says idle.
        Intent = 11,
        /// Store this word as the state of critical sections; one with preemption off is a new section.
        Section = 12,
        /// Acknowledge the last interrupt.
        Acknowledge = 13,
        /// Write the notify MSR.
        Notify = 14,
        /// Ring the doorbell.
        Doorbell = 15,
        /// Write this to the registration MSR.
        Register = 16,
        /// Write nonsense over the next vCPU's area for so many cycles.
        Scribble = 17,
        /// Program the timer to fire in so many cycles.
        Deadline = 18,
        /// Lose the interrupt descriptors, and fault.
        Fault = 19,
    }
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
    /// Task that calls, plus 1; 0 = a peer outside of the VM.
    pub caller: u64,
    /// Task that serves, plus 1; 0 = a peer outside of the VM.
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
    /// Wake a task of any vCPU that waits as for a device; if it does not wait, its next wait ends at once.
    Wake(u64),
    /// Have the vCPUs in a mask call a function; the task's [`TaskStats::acks`] counts those that have not done so yet.
    ///
    /// [`TaskStats::acks`]: crate::layout::TaskStats::acks
    Interrupt(u64),
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
            Self::Interrupt(vcpus) => (5, vcpus),
        }
    }

    /// From two registers; an unknown number is a sleep until the TSC in the second.
    pub fn from_words(op: u64, arg: u64) -> Self {
        match op {
            1 => Self::WaitDevice,
            2 => Self::PreemptOff,
            3 => Self::PreemptOn,
            4 => Self::Wake(arg),
            5 => Self::Interrupt(arg),
            _ => Self::SleepUntil(arg),
        }
    }
}

/// Moves `due` beyond `now` by whole periods, and returns how many.
#[inline]
pub fn skip_past(due: &mut u64, period: u64, now: u64) -> u64 {
    if *due > now {
        return 0;
    }
    let periods = (now - *due) / period.max(1) + 1;
    *due += periods * period;
    periods
}
