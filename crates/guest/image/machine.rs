//! The kernel's port: contexts, timer, hooks, and the entry from the gates.

use core::sync::atomic::{AtomicU64, Ordering};

use vcoop_abi::discovery::{Discovery, Features, MSR_NOTIFY, MSR_REGISTER, REGISTER_ENABLE};
use vcoop_abi::words::Word;
use vcoop_abi::{Header, HostArea, Status};
use vcoop_guest::kernel::{Cause, Kernel, Port};
use vcoop_guest::layout::{
    GATES, IdlePoll, MAX_TASKS, MAX_VCPUS, PORT_MULTICAST, VECTOR_IPI, VECTOR_TIMER, VcpuWords,
    area, gate, task_stack_top,
};
use vcoop_guest::program::{Call, flag};
use vcoop_policy::config::GuestPollConfig;
use vcoop_policy::{GuestEvent, GuestHalf, GuestHaltPoll, Idle};

use crate::instructions::{
    X2APIC_ICR, X2APIC_LVT_TIMER, X2APIC_SPURIOUS, cpuid, out, tsc, work, wrmsr, wrmsr_checked,
};
use crate::memory::{control, guest_area, owner, set_timer, stats, words};

/// Destination shorthand of an ICR write: all but the sender.
const ALL_BUT_SELF: u64 = 0b11 << 18;

/// Interrupts on.
const RFLAGS: u64 = 0x202;

/// Registers of a task that does not run.
#[repr(C, align(16))]
#[derive(Debug)]
pub(crate) struct Context {
    rax: u64,
    pub(crate) rbx: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    rbp: u64,
    r8_to_r14: [u64; 7],
    pub(crate) r15: u64,
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
    /// FXSAVE image.
    pub(crate) fx: [u8; 512],
}

impl Context {
    const fn new() -> Self {
        let mut fx = [0; 512];
        // x87 control word and MXCSR as after reset: all exceptions masked.
        fx[0] = 0x7f;
        fx[1] = 0x03;
        fx[24] = 0x80;
        fx[25] = 0x1f;
        Self {
            rax: 0,
            rbx: 0,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            rbp: 0,
            r8_to_r14: [0; 7],
            r15: 0,
            rip: 0,
            rflags: RFLAGS,
            rsp: 0,
            fx,
        }
    }
}

/// A vCPU.
#[derive(Debug)]
pub(crate) struct Vcpu {
    kernel: Kernel,
    machine: Machine,
    idle: IdleLoop,
}

/// What a vCPU does when idle. Times are TSC cycles; the governor works with them as with nanoseconds.
#[derive(Debug)]
struct IdleLoop {
    governor: GuestHaltPoll,
    always: bool,
    /// TSC at which it halted; 0: it is not halted.
    halted: u64,
}

impl IdleLoop {
    const fn new(poll: IdlePoll) -> Self {
        let governor = GuestHaltPoll::new(GuestPollConfig {
            max_ns: poll.max_tsc,
            grow: poll.grow as u32,
            grow_start_ns: poll.grow_start_tsc,
            shrink: poll.shrink as u32,
            allow_shrink: poll.allow_shrink != 0,
        });
        Self { governor, always: poll.max_tsc == u64::MAX, halted: 0 }
    }

    /// Polls as the governor says; true if an interrupt came.
    fn poll(&mut self, number: u64) -> bool {
        let limit = match self.governor.select() {
            _ if self.always => u64::MAX,
            Idle::Poll(cycles) => cycles,
            Idle::Halt => return false,
        };
        let words = &words().vcpu[number as usize];
        let pending = gate_word(number, gate::PENDING);
        // To the host it runs.
        words.idle.store(0, Ordering::Release);
        let start = tsc();
        while pending.load(Ordering::Relaxed) == 0 && tsc() - start < limit {
            core::hint::spin_loop();
        }
        let won = pending.load(Ordering::Relaxed) != 0;
        self.governor.polled(!won);
        let count = if won { &words.polls_won } else { &words.polls_lost };
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        words.idle.store(u64::from(!won), Ordering::Release);
        won
    }

    /// The kernel was entered: a halt is over.
    fn entered(&mut self) {
        if self.halted != 0 {
            self.governor.halted(tsc() - self.halted);
            self.halted = 0;
        }
    }
}

#[derive(Debug)]
struct Machine {
    number: u64,
    /// Set after registration.
    link: Option<Link>,
    /// A task of this vCPU writes the area itself, so the hooks must not.
    rogue: bool,
    /// Host area with the mask of preferred vCPUs, if the host maintains it.
    mask: Option<&'static HostArea>,
}

/// State of the boost protocol.
#[derive(Debug)]
struct Link {
    half: GuestHalf,
    host: &'static HostArea,
}

static mut VCPUS: [Vcpu; MAX_VCPUS] = [const {
    Vcpu {
        kernel: Kernel::new(),
        machine: Machine { number: 0, link: None, rogue: false, mask: None },
        idle: IdleLoop::new(IdlePoll::NEVER),
    }
}; MAX_VCPUS];

static mut CONTEXTS: [Context; MAX_TASKS] = [const { Context::new() }; MAX_TASKS];

/// Waits a moment for a watching host to end the boost; true if it did. The request is already in the page.
fn given_back(host: &HostArea, words: &VcpuWords) -> bool {
    /// Some tens of microseconds: what the host needs, or what the exit would take.
    const PATIENCE: u64 = 100_000;
    let ticket = host.ticket();
    let until = words.attended_until.load(Ordering::Acquire).min(tsc() + PATIENCE);
    while tsc() < until && host.status() == Status::Boosted {}
    // Taking the boost back may have cost the vCPU its pCPU right here, until the next boost: then
    // there is a new interrupt, whose handler will answer for it.
    host.status() != Status::Boosted || host.ticket() != ticket
}

fn context_of(task: usize) -> *mut Context {
    // SAFETY: only takes an address; the index is one the kernel handed out.
    unsafe { (&raw mut CONTEXTS).cast::<Context>().add(task) }
}

/// A word of a vCPU's gate page.
fn gate_word(vcpu: u64, offset: u64) -> &'static AtomicU64 {
    // SAFETY: an aligned word of memory that is there as long as the guest runs; this program and
    // the gates access it by single instructions only.
    unsafe { &*((GATES + vcpu * 0x1000 + offset) as *const AtomicU64) }
}

impl Port for Machine {
    fn now(&mut self) -> u64 {
        tsc()
    }

    fn wait_until(&mut self, at: u64) {
        while tsc() < at {
            core::hint::spin_loop();
        }
    }

    fn timer_came(&mut self, now: u64, deadline: u64) {
        let words = &words().vcpu[self.number as usize];
        words.took.store(now, Ordering::Relaxed);
        words.took_for.store(deadline, Ordering::Release);
    }

    fn hook(&mut self, event: GuestEvent) {
        if event == GuestEvent::IdleEnter {
            words().vcpu[self.number as usize].idle.store(1, Ordering::Release);
        }
        if let Some(Link { half, host }) = &mut self.link
            && !self.rogue
            && half.run(event, guest_area(self.number), host)
            && !given_back(host, &words().vcpu[self.number as usize])
        {
            wrmsr(MSR_NOTIFY, 0);
        }
    }

    fn set_timer(&mut self, deadline: u64) {
        set_timer(self.number, deadline);
    }

    fn woken(&mut self, task: usize, now: u64, idle: bool) {
        let stats = stats(task);
        stats.woken.store(now, Ordering::Relaxed);
        stats.woken_idle.store(u64::from(idle), Ordering::Relaxed);
    }

    fn work(&mut self, iterations: u64) {
        work(iterations);
    }

    fn wake_remote(&mut self, vcpu: u64, task: usize) {
        let Some(words) = words().vcpu.get(vcpu as usize) else { return };
        words.remote_wakes.fetch_or(1 << task, Ordering::AcqRel);
        wrmsr(X2APIC_ICR, vcpu << 32 | u64::from(VECTOR_IPI));
    }

    fn take_remote(&mut self) -> u64 {
        words().vcpu[self.number as usize].remote_wakes.swap(0, Ordering::AcqRel)
    }

    fn interrupt_others(&mut self, vcpus: u64, task: usize) {
        let control = control();
        let all = (1 << control.vcpus.min(MAX_VCPUS as u64)) - 1;
        // A function for the own vCPU is called in place.
        let others = all & !(1 << self.number);
        let targets = vcpus & others;
        stats(task).acks.store(targets.count_ones().into(), Ordering::Release);
        let each = || (0..MAX_VCPUS as u64).filter(|n| targets >> n & 1 != 0);
        for n in each() {
            words().vcpu[n as usize].calls.fetch_or(1 << task, Ordering::AcqRel);
        }
        if control.shorthand != 0 && targets == others && targets.count_ones() > 1 {
            wrmsr(X2APIC_ICR, ALL_BUT_SELF | u64::from(VECTOR_IPI));
        } else if control.pv_ipi != 0 && targets.count_ones() > 1 {
            words().vcpu[self.number as usize].multicast.store(targets, Ordering::Release);
            out(PORT_MULTICAST, 0);
        } else {
            each().for_each(|n| wrmsr(X2APIC_ICR, n << 32 | u64::from(VECTOR_IPI)));
        }
    }

    fn answer_calls(&mut self) {
        let callers = words().vcpu[self.number as usize].calls.swap(0, Ordering::AcqRel);
        for task in (0..MAX_TASKS).filter(|t| callers >> t & 1 != 0) {
            stats(task).acks.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn preferred(&mut self) -> u64 {
        match self.mask {
            Some(host) if host.hints().preferred_valid => host.preferred[0].load(Ordering::Acquire),
            _ => u64::MAX,
        }
    }

    fn ready(&mut self, vcpu: u64) -> u64 {
        words().vcpu.get(vcpu as usize).map_or(0, |words| words.ready.load(Ordering::Relaxed))
    }

    fn publish(&mut self, ready: u64, pushed: u64) {
        let words = &words().vcpu[self.number as usize];
        words.ready.store(ready, Ordering::Relaxed);
        words.pushed.store(pushed, Ordering::Relaxed);
    }

    fn owner(&mut self, task: usize) -> u64 {
        owner(task)
    }

    fn send(&mut self, vcpu: u64, task: usize) {
        let Some(words) = words().vcpu.get(vcpu as usize) else { return };
        stats(task).owner.store(vcpu + 1, Ordering::Release);
        // Pairs with `take_sent`: who takes the task sees the registers that its vCPU has saved.
        words.sent.fetch_or(1 << task, Ordering::AcqRel);
        words.ready.fetch_add(1, Ordering::Relaxed);
        wrmsr(X2APIC_ICR, vcpu << 32 | u64::from(VECTOR_IPI));
    }

    fn take_sent(&mut self) -> u64 {
        let sent = &words().vcpu[self.number as usize].sent;
        if sent.load(Ordering::Relaxed) == 0 { 0 } else { sent.swap(0, Ordering::AcqRel) }
    }
}

/// Called by the gate of this cause, or with [`gate::NO_CAUSE`]; also handles all causes that came meanwhile. Returns
/// the context to continue with, or null for none.
pub(crate) extern "sysv64" fn interrupted(number: u64, cause: u64) -> *const Context {
    let vcpu = vcpu(number);
    let mut causes = if cause == gate::NO_CAUSE { 0 } else { 1 << cause };
    vcpu.idle.entered();
    loop {
        causes |= gate_word(number, gate::PENDING).swap(0, Ordering::Relaxed);
        if causes == 0 {
            return vcpu.exit(number);
        }
        let next = causes.trailing_zeros().into();
        causes &= causes - 1;
        entered(number);
        vcpu.kernel.interrupt(Cause::from_index(next), &mut vcpu.machine);
    }
}

/// Called by a task.
pub(crate) extern "sysv64" fn called(number: u64, op: u64, arg: u64) -> *const Context {
    let vcpu = vcpu(number);
    entered(number);
    vcpu.kernel.call(Call::from_words(op, arg), &mut vcpu.machine);
    vcpu.exit(number)
}

fn vcpu(number: u64) -> &'static mut Vcpu {
    // SAFETY: each vCPU uses its own entry, and the kernel is not entered twice on a vCPU: while it
    // runs, gates only take notes.
    unsafe { &mut *(&raw mut VCPUS).cast::<Vcpu>().add(number as usize) }
}

/// Counts interrupts for the host, which compares the count with that when it sent one. So each interrupt counts, also
/// those that are handled together.
fn entered(number: u64) {
    let words = &words().vcpu[number as usize];
    if words.idle.load(Ordering::Relaxed) != 0 {
        words.idle.store(0, Ordering::Release);
    }
    words.entries.store(words.entries.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Vcpu {
    /// Prepares the return to the task that the kernel chose.
    fn exit(&mut self, number: u64) -> *const Context {
        let Some(next) = self.kernel.current() else {
            // What ends a poll is pending: `leave` finds it on the way to halt and comes back.
            if !self.idle.poll(number) {
                self.idle.halted = tsc();
            }
            return core::ptr::null();
        };
        let context = context_of(next);
        gate_word(number, gate::CONTEXT).store(context as u64, Ordering::Relaxed);
        context
    }
}

/// Whether KVM says that the vCPUs have their pCPUs to themselves (`KVM_HINTS_REALTIME`; Linux,
/// Documentation/virt/kvm/x86/cpuid.rst).
fn is_dedicated() -> bool {
    const KVM_SIGNATURE: u32 = 0x4000_0000;
    const KVM_FEATURES: u32 = 0x4000_0001;
    let [last, name @ ..] = cpuid(KVM_SIGNATURE);
    let kvm = [*b"KVMK", *b"VMKV", *b"M\0\0\0"].map(u32::from_le_bytes);
    name == kvm && last >= KVM_FEATURES && cpuid(KVM_FEATURES)[3] & 1 != 0
}

/// First instruction of a vCPU.
pub(crate) extern "sysv64" fn boot(number: u64) -> *const Context {
    let number = number.min(MAX_VCPUS as u64 - 1);
    let control = control();
    let vcpu = vcpu(number);
    vcpu.machine.number = number;
    let told = control.poll_if_hinted == 0 || is_dedicated();
    vcpu.idle = IdleLoop::new(if told { control.idle_poll } else { IdlePoll::NEVER });
    let tasks = &control.task[..(control.tasks as usize).min(MAX_TASKS)];
    for (i, spec) in tasks.iter().enumerate().filter(|(_, t)| t.vcpu == number) {
        let context = context_of(i);
        // SAFETY: the task belongs to this vCPU and has not started.
        unsafe {
            (*context).rip = crate::tasks::main as *const () as u64;
            // As if called: the stack is 8 off its alignment.
            (*context).rsp = task_stack_top(i as u64) - 8;
            (*context).rdi = i as u64;
        }
        vcpu.machine.rogue |= spec.flags & flag::OWN_AREA != 0;
    }
    wrmsr(X2APIC_SPURIOUS, 0x1ff);
    const TSC_DEADLINE_MODE: u64 = 2 << 17;
    wrmsr(X2APIC_LVT_TIMER, TSC_DEADLINE_MODE | u64::from(VECTOR_TIMER));
    if (control.register != 0 || control.masked != 0)
        && let Some(host) = Discovery::find(cpuid)
    {
        // SAFETY: the host says that its area is mapped there, readable, for as long as the VM
        // lives; it is made of atomics.
        let host_area = unsafe { &*(host.host_area(number as u32) as *const HostArea) };
        if control.register != 0 {
            guest_area(number).header.store(Header::OURS.to_word(), Ordering::Release);
            // Refused where a task of another vCPU was first to register this area.
            let registered = wrmsr_checked(MSR_REGISTER, area(number) | REGISTER_ENABLE);
            let link = Link { half: GuestHalf::new(), host: host_area };
            vcpu.machine.link = (registered && host_area.is_compatible()).then_some(link);
        }
        let masks = control.masked != 0 && host.features.contains(Features::PREFERRED);
        vcpu.machine.mask = (masks && host_area.is_compatible()).then_some(host_area);
    }
    vcpu.kernel.boot(number, control.slice_tsc, tasks, &control.device);
    vcpu.kernel.set_advance(control.advance_tsc);
    vcpu.kernel.set_moves(control.vcpus, control.tick_tsc);
    vcpu.kernel.start(&mut vcpu.machine);
    vcpu.exit(number)
}
