//! Costs of guests: exits by kind, interrupts on their way in, timers, wake-ups.
//!
//! Each measurement has its own VM with the lab's guest, whose task repeats one operation. Its vCPUs are real-time like
//! all measuring threads, and stand still between blocks.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use vcoop_abi::discovery::Features;
use vcoop_guest::layout::{
    self, Control, PORT_FAULT, PORT_PANIC, RING_STRIDE, RINGS, VECTOR_DEVICE, Words,
};
use vcoop_guest::program::{DeviceSpec, Kind, Op, Step, StepOp, TaskSpec};
use vcoop_guest::ring::{Reader, Ring, Sample};
use vcoop_model::plan::Ns;
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::tsc::tsc;
use vcoop_threads::{gettid, run_time};

use super::bench::{BLOCK_NS, Bench, OnDrop};
use super::gaps::{can_interrupt_others, interrupt_others, least};
use super::host::{Lateness, prepare};
use crate::error::{Error, RequestTarget};
use crate::machine::Machine;
use crate::vcpu::{install_handler, interrupt};

/// Time between two interrupts of a measurement: long enough for the vCPU to halt, or to go back to its work.
const PERIOD_NS: Ns = 250_000;

/// `vcoop_abi::Class::Fifo` and `Fair` as numbers.
const FIFO: u64 = 2;
const FAIR: u64 = 1;

/// A guest to measure with.
#[derive(Clone, Copy, Debug)]
struct Setup {
    /// What task 0, on vCPU 0, does.
    op: Op,
    /// Pause between its operations, asleep.
    period_ns: Ns,
    /// An echo task on this vCPU.
    echo: Option<u32>,
    /// A task that never sleeps on this vCPU.
    hog: Option<u32>,
    /// Whether KVM's halt polling stays as the host has it; else it is off.
    polling: bool,
}

impl Setup {
    fn of(op: Op) -> Self {
        Self { op, period_ns: 0, echo: None, hog: None, polling: false }
    }

    fn vcpus(&self) -> u32 {
        [self.echo, self.hog].into_iter().flatten().max().unwrap_or(0) + 1
    }

    /// Tasks in the order of their rings.
    fn fill(&self, control: &mut Control, b: &Bench<'_>) {
        let task = |kind: Kind, vcpu: u32, class: u64| TaskSpec {
            kind: kind as u64,
            vcpu: vcpu.into(),
            class,
            ring: u64::MAX,
            ..TaskSpec::default()
        };
        let operating = TaskSpec {
            op: self.op as u64,
            period_tsc: b.clock.to_cycles(self.period_ns),
            buffer_tsc: least(b),
            ring: 0,
            ..task(Kind::Calibrate, 0, FAIR)
        };
        let mut n = 0;
        let mut add = |spec: TaskSpec| {
            control.task[n] = spec;
            n += 1;
            n as u64
        };
        // `Echo` as the operation: only the host works.
        if self.op != Op::Echo {
            add(operating);
        }
        if let Some(vcpu) = self.echo {
            let spec =
                TaskSpec { op: Op::Echo as u64, ring: 1, ..task(Kind::Calibrate, vcpu, FIFO) };
            let place = add(TaskSpec { prio: 1, ..spec });
            control.device[0] =
                DeviceSpec { wakes: place, vcpu: vcpu.into(), ..DeviceSpec::default() };
        }
        if let Some(vcpu) = self.hog {
            add(TaskSpec { steps: 1, ..task(Kind::Loop, vcpu, FAIR) });
        }
        control.tasks = n as u64;
        control.vcpus = self.vcpus().into();
        control.slice_tsc = b.clock.to_cycles(3_000_000);
        control.start_tsc = tsc();
    }
}

/// Lets vCPUs run for a block and stand still between blocks.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    running: AtomicBool,
    over: AtomicBool,
    inside: AtomicU32,
}

impl Gate {
    /// Waits until the gate is open; false when all is over.
    fn pass(&self) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while !*open && !self.over.load(Ordering::Acquire) {
            open = self.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        !self.over.load(Ordering::Acquire)
    }

    fn set(&self, open: bool) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = open;
        self.running.store(open, Ordering::Release);
        self.changed.notify_all();
    }
}

/// A guest whose vCPUs wait at the gate.
struct Running<'a> {
    machine: &'a Machine,
    gate: &'a Gate,
    tids: &'a [AtomicI32],
    failed: &'a Mutex<Option<Error>>,
}

impl Running<'_> {
    /// Lets the vCPUs run while `during` runs.
    fn block(&self, during: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.gate.set(true);
        let done = during();
        self.gate.set(false);
        self.stop();
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(done, Err)
    }

    /// Makes the vCPUs leave guest mode, and waits until they have.
    fn stop(&self) {
        while self.gate.inside.load(Ordering::Acquire) > 0 {
            self.tids
                .iter()
                .map(|t| t.load(Ordering::Acquire))
                .filter(|t| *t > 0)
                .for_each(interrupt);
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Where the time of an interrupt to a vCPU is noted.
    fn fired(&self, vcpu: usize) -> &AtomicU64 {
        &self.machine.ram.at::<Words>(layout::WORDS).vcpu[vcpu].fired
    }

    fn ring(&self, n: u64) -> &Ring {
        self.machine.ram.at(RINGS + n * RING_STRIDE)
    }

    /// As [`Bench::measure`], with the vCPUs running during each block.
    fn measure(
        &self,
        b: &mut Bench<'_>,
        name: &'static str,
        about: &'static str,
        mut block: impl FnMut(&mut Vec<u64>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        b.measure(name, about, |out| self.block(|| block(out)))
    }

    /// Measures samples of a guest's ring; `time` computes the measured time from a sample.
    fn measure_ring(
        &self,
        b: &mut Bench<'_>,
        name: &'static str,
        about: &'static str,
        ring: u64,
        time: impl Fn(Sample) -> Option<u64>,
    ) -> Result<(), Error> {
        let mut reader = Reader::new();
        self.measure(b, name, about, |out| {
            // Earlier samples are left out: one of them includes the time in which the vCPUs stood still.
            let (from, until) = (tsc(), monotonic() + BLOCK_NS);
            while monotonic() < until {
                sleep_until(monotonic() + 2_000_000);
                read(self.ring(ring), &mut reader, from, |s| out.extend(time(s)));
            }
            Ok(())
        })
    }
}

/// Time from when a sample was due until its task ran.
fn taken(s: Sample) -> Option<u64> {
    s.taken.checked_sub(s.due)
}

/// Time from when a sample was due until the guest's kernel handled its interrupt.
fn handled(s: Sample) -> Option<u64> {
    s.woken.checked_sub(s.due)
}

/// Reads samples of a ring, without those whose times are impossible: a guest's error must not become a number.
fn read(ring: &Ring, reader: &mut Reader, from: u64, mut each: impl FnMut(Sample)) {
    reader.read(ring, |s| {
        if s.due >= from && s.taken >= s.due && s.taken <= tsc() {
            each(s);
        }
    });
}

fn run_vcpu(fd: &mut VcpuFd, n: u32, gate: &Gate) -> Result<(), Error> {
    let whom = RequestTarget::Vcpu("calibration".to_owned(), n);
    let guest = |what: String| Error::Guest { whom: whom.clone(), what };
    while gate.pass() {
        gate.inside.fetch_add(1, Ordering::AcqRel);
        let done = loop {
            if !gate.running.load(Ordering::Acquire) {
                break Ok(());
            }
            match fd.run() {
                Ok(VcpuExit::IoOut(PORT_PANIC, _)) => {
                    break Err(guest("the guest kernel panicked".to_owned()));
                }
                Ok(VcpuExit::IoOut(port, _)) if (PORT_FAULT..PORT_FAULT + 32).contains(&port) => {
                    break Err(guest(format!("exception {}", port - PORT_FAULT)));
                }
                Ok(
                    VcpuExit::IoOut(..)
                    | VcpuExit::X86Wrmsr(_)
                    | VcpuExit::MmioWrite(..)
                    | VcpuExit::Intr
                    | VcpuExit::Hlt,
                ) => {}
                Ok(other) => break Err(guest(format!("unexpected exit: {other:?}"))),
                Err(e) if e.errno() == libc::EINTR || e.errno() == libc::EAGAIN => {}
                Err(e) => break Err(Error::kvm("KVM_RUN", &whom)(e)),
            }
        };
        gate.inside.fetch_sub(1, Ordering::AcqRel);
        done?;
    }
    Ok(())
}

/// Builds the guest, starts its vCPUs on `cpus`, and hands it to `body`.
fn with_guest(
    b: &mut Bench<'_>,
    kvm: &Kvm,
    setup: Setup,
    cpus: &[u32],
    body: impl FnOnce(&mut Bench<'_>, &Running<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    if (b.stop)() {
        return Ok(());
    }
    let vcpus = setup.vcpus();
    let machine = Machine::new(kvm, "calibration", vcpus)?;
    if !setup.polling {
        b.halt_polling_off &= machine.poll_halts(0).is_ok();
    }
    machine.ram.control(|control| setup.fill(control, b));
    machine.ram.write_words(layout::STEPS, &[Step { op: StepOp::Run as u64, arg: 0 }.op, 0]);
    let mut fds = (0..vcpus)
        .map(|n| machine.vcpu(kvm, n, Features::default(), false))
        .collect::<Result<Vec<_>, _>>()?;
    let (gate, failed) = (Gate::default(), Mutex::new(None));
    let tids: Vec<AtomicI32> = fds.iter().map(|_| AtomicI32::new(0)).collect();
    let fifo = b.fifo;
    thread::scope(|s| {
        for (n, fd) in fds.iter_mut().enumerate() {
            let (gate, failed, tid, cpu) = (&gate, &failed, &tids[n], cpus[n % cpus.len()]);
            s.spawn(move || {
                // Below the thread that measures: where both share a CPU, that one must not wait.
                let done = prepare(cpu, fifo, 1);
                tid.store(gettid(), Ordering::Release);
                if let Err(e) = done.and_then(|()| run_vcpu(fd, n as u32, gate)) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                }
            });
        }
        while tids.iter().any(|t| t.load(Ordering::Acquire) == 0) {
            thread::sleep(Duration::from_micros(200));
        }
        let running = Running { machine: &machine, gate: &gate, tids: &tids, failed: &failed };
        let _end = OnDrop(|| {
            gate.over.store(true, Ordering::Release);
            gate.set(false);
            running.stop();
        });
        body(b, &running)
    })
}

/// All of them.
///
/// # Errors
///
/// [`Error::Kernel`], [`Error::Guest`].
pub(crate) fn measure(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    install_handler();
    operations(b, kvm)?;
    host_interrupts(b, kvm)?;
    switched_from(b, kvm)?;
    own_interrupts(b, kvm)?;
    timers(b, kvm)?;
    messages(b, kvm)?;
    between(b, kvm)
}

/// Operations of one vCPU, timed by the guest itself.
fn operations(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    let all = [
        (Op::Clock, "guest-clock", "reading the clock twice, in the guest"),
        (Op::Gate, "guest-gate", "into the guest's ring 0 and back, with nothing done there"),
        (Op::Cpuid, "exit-cpuid", "the same with CPUID: an exit that the kernel handles"),
        (Op::TimerMsr, "exit-timer-msr", "the same with a write of the TSC deadline"),
        (Op::IcrNobody, "exit-icr", "the same with an interrupt to a vCPU that is not there"),
        (Op::Eoi, "exit-eoi", "the same with an end of interrupt that ends nothing"),
        (Op::Port, "exit-user-port", "the same with a port that user space handles"),
        (Op::NotifyMsr, "exit-user-msr", "the same with an MSR that user space handles"),
        (Op::Store, "exit-user-mmio", "a store to read-only memory, which user space handles"),
    ];
    let cpu = [b.cpu];
    for (op, name, about) in all {
        with_guest(b, kvm, Setup::of(op), &cpu, |b, guest| {
            guest.measure_ring(b, name, about, 0, taken)
        })?;
    }
    Ok(())
}

/// An interrupt of the host that is not for the guest: the cost of an exit and entry for nothing.
fn host_interrupts(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    const NAME: &str = "exit-interrupt";
    let Some(other) = b.other.filter(|_| can_interrupt_others()) else {
        b.skip(NAME, "it takes two CPUs and expedited membarrier");
        return Ok(());
    };
    with_guest(b, kvm, Setup::of(Op::Gaps), &[other], |b, guest| {
        let mut reader = Reader::new();
        let about = "the gap that ipi-receive's interrupt makes in a guest that reads the clock";
        guest.measure(b, NAME, about, |out| {
            sleep_until(monotonic() + 3_000_000);
            let (from, until) = (tsc(), monotonic() + BLOCK_NS);
            let mut sent = Vec::new();
            while monotonic() < until {
                let before = tsc();
                interrupt_others();
                sent.push((before, tsc()));
                sleep_until(monotonic() + 100_000);
            }
            read(guest.ring(0), &mut reader, from, |s| {
                // Both are in order of time. Wrong times from a guest only lose samples.
                let ours = sent.partition_point(|(_, after)| *after < s.due);
                if sent.get(ours).is_some_and(|(before, _)| *before <= s.taken) {
                    out.push(s.taken - s.due);
                }
            });
            Ok(())
        })
    })
}

/// A thread of the host that takes the CPU from a vCPU in guest mode.
fn switched_from(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    const NAME: &str = "sleep-late-guest";
    if !b.needs_fifo(NAME) {
        return Ok(());
    }
    let (cpu, late) = ([b.cpu], Lateness::of(b));
    with_guest(b, kvm, Setup::of(Op::Gaps), &cpu, |b, guest| {
        let about = "sleep-late where a vCPU runs in guest mode meanwhile";
        guest.measure(b, NAME, about, |out| {
            late.measure(out);
            Ok(())
        })
    })
}

/// Interrupts that a vCPU sends to itself: delivery and handling without another sender.
fn own_interrupts(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    let cpu = [b.cpu];
    with_guest(b, kvm, Setup::of(Op::SelfInterrupt), &cpu, |b, guest| {
        let about = "an interrupt to itself whose handler does nothing, sent, taken and ended";
        guest.measure_ring(b, "self-interrupt", about, 0, taken)
    })?;
    let setup = Setup { echo: Some(0), ..Setup::of(Op::SelfWake) };
    with_guest(b, kvm, setup, &cpu, |b, guest| {
        let about = "an interrupt to itself whose handler wakes a task, until that task runs";
        guest.measure_ring(b, "self-wake", about, 1, taken)?;
        let (mut own, mut woken) = (Reader::new(), Reader::new());
        let about =
            "from that task's first instruction until it sleeps and who it interrupted goes on";
        guest.measure(b, "guest-sleep-switch", about, |out| {
            let (from, until) = (tsc(), monotonic() + BLOCK_NS);
            while monotonic() < until {
                sleep_until(monotonic() + 2_000_000);
                // Both are in the order of time, and of the same interrupts.
                let mut began = Vec::new();
                read(guest.ring(1), &mut woken, from, |s| began.push((s.due, s.taken)));
                read(guest.ring(0), &mut own, from, |s| {
                    let same = began.binary_search_by_key(&s.due, |(due, _)| *due);
                    out.extend(same.ok().and_then(|i| s.taken.checked_sub(began[i].1)));
                });
            }
            Ok(())
        })
    })
}

/// KVM's own timer, with the vCPU halted and with it busy.
fn timers(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    let all = [
        (None, "timer-halted", "TSC deadline to the handler's first instruction, vCPU halted"),
        (Some(0), "timer-running", "the same, vCPU busy"),
    ];
    let cpu = [b.cpu];
    for (hog, name, about) in all {
        // A task that only sleeps; its wake-up time is when the kernel made it ready.
        let setup = Setup { hog, ..Setup::of(Op::Clock) };
        with_guest(b, kvm, setup, &cpu, |b, guest| {
            let period = b.clock.to_cycles(PERIOD_NS);
            guest.machine.ram.control(|control| {
                control.task[0] = TaskSpec {
                    kind: Kind::Cyclictest as u64,
                    class: FIFO,
                    prio: 1,
                    period_tsc: period,
                    steps: 1,
                    ring: 0,
                    ..TaskSpec::default()
                };
            });
            // It sleeps again from now on: no period is due before.
            guest.measure_ring(b, name, about, 0, |s| handled(s).filter(|late| *late < period))
        })?;
    }
    Ok(())
}

/// Messages from the host: `KVM_SIGNAL_MSI` from another CPU.
fn messages(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    /// Which part of a message is timed.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Part {
        /// The call, on the sender's side.
        Call,
        /// From before the call to the handler's first instruction.
        Delivery,
        /// From the handler's first instruction to that of the task it wakes.
        Task,
        /// CPU time of the vCPU's thread for each message.
        CpuTime,
    }
    let idle = Setup { echo: Some(0), ..Setup::of(Op::Echo) };
    let busy = Setup { hog: Some(0), ..idle };
    let polling = Setup { polling: true, ..idle };
    let all = [
        (idle, Part::Call, "msi-call-halted", "KVM_SIGNAL_MSI to a halted vCPU, for the sender"),
        (busy, Part::Call, "msi-call-running", "the same to a running vCPU"),
        (
            idle,
            Part::Delivery,
            "msi-halted",
            "from before it to the handler's first instruction, vCPU halted",
        ),
        (busy, Part::Delivery, "msi-running", "the same, vCPU running"),
        (
            polling,
            Part::Delivery,
            "msi-halted-polling",
            "vCPU halted, with the host's halt polling",
        ),
        (
            busy,
            Part::Task,
            "guest-wake-switch",
            "from there to the first instruction of the task it wakes",
        ),
        (
            idle,
            Part::CpuTime,
            "halt-cycle-cpu",
            "CPU time of a vCPU's thread to be woken, handle it, and halt again",
        ),
    ];
    let Some(other) = b.other_cpu(&all.map(|(_, _, name, _)| name)) else { return Ok(()) };
    // The vCPU goes elsewhere; this thread sends.
    for (setup, part, name, about) in all {
        with_guest(b, kvm, setup, &[other], |b, guest| {
            let (mut reader, floor) = (Reader::new(), b.floor);
            let clock = b.clock;
            guest.measure(b, name, about, |out| {
                let fired = guest.fired(0);
                let tid = guest.tids[0].load(Ordering::Acquire);
                sleep_until(monotonic() + 3_000_000);
                let (from, until) = (tsc(), monotonic() + BLOCK_NS);
                let (cpu_before, mut sent) = (run_time(tid).ran_ns, 0_u64);
                while monotonic() < until {
                    let before = tsc();
                    fired.store(before, Ordering::Release);
                    guest.machine.signal(0, VECTOR_DEVICE, false)?;
                    let after = tsc();
                    sent += 1;
                    if part == Part::Call {
                        out.push(after - before);
                    }
                    sleep_until(monotonic() + PERIOD_NS);
                }
                read(guest.ring(1), &mut reader, from, |s| match part {
                    Part::Delivery => out.extend(handled(s)),
                    Part::Task => out.extend(s.taken.checked_sub(s.woken)),
                    Part::Call | Part::CpuTime => {}
                });
                if part == Part::CpuTime && sent > 0 {
                    let used = run_time(tid).ran_ns.saturating_sub(cpu_before);
                    out.push(clock.to_cycles(used / sent) + floor);
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Interrupts from one vCPU to another, on different CPUs.
fn between(b: &mut Bench<'_>, kvm: &Kvm) -> Result<(), Error> {
    let from = Setup { period_ns: PERIOD_NS, echo: Some(1), ..Setup::of(Op::Interrupt) };
    let all = [
        (from, "ipi-halted", "an IPI from one vCPU to another that is halted, until its handler"),
        (Setup { hog: Some(1), ..from }, "ipi-running", "the same to one that runs"),
    ];
    let Some(other) = b.other_cpu(&all.map(|(_, name, _)| name)) else { return Ok(()) };
    let cpus = [b.cpu, other];
    for (setup, name, about) in all {
        with_guest(b, kvm, setup, &cpus, |b, guest| {
            guest.measure_ring(b, name, about, 1, handled)
        })?;
    }
    Ok(())
}
