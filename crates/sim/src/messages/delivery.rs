//! Messages on their way between tasks of any level.
//!
//! ```text
//! same level     a wake-up, with an IPI where the other's (v)CPU needs one
//! host -> guest  signal: an interrupt at the other's irq_vcpu, whose handler wakes the task
//! guest -> host  an exit, whose handler wakes the thread
//! guest -> guest an exit, whose handler signals the other VM
//! ```

use vcoop_model::plan::{QueueRoom, Target};
use vcoop_model::profile::CostKey;
use vcoop_policy::Injection;
use vcoop_sched::{EntId, Waker};

use crate::attribution::track::{NONE, RoundTripStage};
use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::machine::{Irq, Wait, vector};
use crate::messages::call::{Calls, Message, ServerState};
use crate::messages::mailbox::{ReceiveResult, SendResult};
use crate::program::Op;
use crate::world::World;

/// Result of an operation of a call.
enum CallStep {
    Sends(Message),
    GoesOn,
    Waits,
}

impl World<'_> {
    /// A host thread reaches an operation of a call; true if it has left the CPU or is busy.
    pub(crate) fn call_op(&mut self, p: u32, t: u32, op: Op) -> bool {
        let work = &self.threads[t as usize].work;
        let (caller, track) = ((work.client, work.server), self.threads[t as usize].track);
        let message = match self.call_step(op, caller, track) {
            CallStep::Sends(message) => message,
            CallStep::GoesOn => return false,
            CallStep::Waits => {
                self.threads[t as usize].work.wait = Wait::Message;
                self.block(p, t, CostKey::Sleep, 0);
                return true;
            }
        };
        if matches!(self.calls.receiver(message), Target::Host(_)) {
            self.deliver_to_host(message);
            return false;
        }
        // What irqfd does for a device's interrupt, without the interrupt itself.
        let [device, timer] =
            [CostKey::DeviceIrq, CostKey::TimerIrq].map(|key| self.costs.constant(key));
        let handling = device.saturating_sub(timer);
        if handling == 0 {
            self.signal(message);
            return false;
        }
        // The signal goes out when the system call has come to it.
        self.threads[t as usize].work.outbox = Some(message);
        self.pcpus[p as usize].extra += handling;
        self.goes_on(p);
        true
    }

    /// A guest task reaches an operation of a call; true if it has left the vCPU.
    pub(crate) fn guest_call_op(&mut self, v: u32, t: u32, op: Op) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let (vm, track) = (vcpu.vm, vcpu.track);
        let task = &self.vms[vm as usize].tasks[t as usize];
        let message = match self.call_step(op, (task.client, task.server), track) {
            CallStep::Sends(message) => message,
            CallStep::GoesOn => return false,
            CallStep::Waits => {
                self.vms[vm as usize].tasks[t as usize].wait = Wait::Message;
                return self.guest_sleep(v, t, None, CostKey::GuestSleep);
            }
        };
        match self.calls.receiver(message) {
            Target::Guest { vm: to, .. } if to == vm => self.deliver_to_guest(v, message),
            _ => self.vcpus[v as usize].exits.push_back(Exit::Send(message)),
        }
        false
    }

    /// The part of an operation of a call that is the same on both levels. `who`: numbers as client and as server.
    fn call_step(&mut self, op: Op, who: (u32, u32), track: u32) -> CallStep {
        let ((client, server), now) = (who, self.clock.now());
        match op {
            Op::Call { server, irq_vcpu } => {
                let server = self.server_at(server);
                let on = self.tracks.on(track, now);
                CallStep::Sends(self.calls.call(client, server, Some(irq_vcpu), on))
            }
            Op::Answer => CallStep::Sends(self.calls.answer(server, self.tracks.on(track, now))),
            Op::Await if self.calls.is_answered(client) => CallStep::GoesOn,
            Op::TakeCall if self.calls.take(server, self.tracks.on(track, now)) => CallStep::GoesOn,
            _ => CallStep::Waits,
        }
    }

    /// The number of the server that a task is.
    pub(crate) fn server_at(&self, at: Target) -> u32 {
        match at {
            Target::Host(t) => self.threads[t as usize].work.server,
            Target::Guest { vm, task } => self.vms[vm as usize].tasks[task as usize].server,
        }
    }

    /// A call to another machine leaves this one.
    pub(crate) fn remote_sent(&mut self, client: u32) {
        let (remote, ns) = self.calls.remote(client);
        let track = match self.calls.client(client) {
            (Target::Host(t), _) => self.threads[t as usize].track,
            (Target::Guest { .. }, v) => self.vcpus[v as usize].track,
        };
        self.clock.set(Event::Remote(remote), self.clock.now() + ns);
        self.leg(Calls::answer_to(client), RoundTripStage::Held, track);
    }

    /// Its answer reaches this machine: an interrupt on the pCPU where its receiver ran last, or on the housekeeping
    /// pCPU as for [`Self::device_fires`].
    pub(crate) fn remote_answers(&mut self, remote: u32) {
        let client = self.calls.remote_client(remote);
        let (track, p) = match self.calls.client(client) {
            (Target::Host(t), _) => (self.threads[t as usize].track, self.host.cpu_of(EntId(t)).0),
            (Target::Guest { .. }, v) => {
                let vcpu = &self.vcpus[v as usize];
                (vcpu.track, vcpu.home)
            }
        };
        self.leg(Calls::answer_to(client), RoundTripStage::Flight, track);
        self.interrupt(self.ticks.timer_cpu(p), Irq::Remote(client));
    }

    /// The host's half of that interrupt is done.
    pub(crate) fn remote_arrived(&mut self, client: u32) {
        self.send(Calls::answer_to(client));
    }

    /// Sends a message from host context.
    pub(crate) fn send(&mut self, m: Message) {
        match self.calls.receiver(m) {
            Target::Host(_) => self.deliver_to_host(m),
            Target::Guest { .. } => self.signal(m),
        }
    }

    /// Interrupts the vCPU of a message's receiver.
    pub(crate) fn signal(&mut self, m: Message) {
        let v = self.calls.irq_vcpu(m);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.messages.push_back(m);
        let track = vcpu.track;
        self.leg(m, RoundTripStage::Flight, track);
        self.inject(v, vector::MESSAGE, Injection::Device);
    }

    /// A message goes on to another leg, on this track.
    fn leg(&mut self, m: Message, leg: RoundTripStage, track: u32) {
        self.calls.leg(m, leg, self.tracks.on(track, self.clock.now()));
    }

    fn deliver_to_host(&mut self, m: Message) {
        let Target::Host(t) = self.calls.receiver(m) else { return };
        if t == NONE {
            return self.build_goes_on(self.calls.builds(m), None);
        }
        let thread = &mut self.threads[t as usize];
        let track = thread.track;
        let waits = thread.work.wait == Wait::Message;
        let sleeps = thread.work.wait == Wait::Timer && self.calls.is_busy(thread.work.server);
        self.calls.received(m, waits);
        if waits {
            thread.work.wait = Wait::No;
            // Wakes a caller with its sample.
            self.wake_thread(t, self.waker());
        }
        let leg = match (m.is_answer(), waits) {
            (true, true) => return,
            (true, false) => RoundTripStage::Arrived,
            (false, true) => RoundTripStage::Served,
            (false, false) if sleeps => RoundTripStage::Behind,
            // On its own track a host thread runs for itself only.
            (false, false) => RoundTripStage::Queued,
        };
        self.leg(m, leg, track);
    }

    /// Delivers a message inside the guest, on vCPU `v`.
    pub(crate) fn deliver_to_guest(&mut self, v: u32, m: Message) {
        let Target::Guest { vm, task: t } = self.calls.receiver(m) else { return };
        if t == NONE {
            return self.build_goes_on(self.calls.builds(m), Some(v));
        }
        let task = &self.vms[vm as usize].tasks[t as usize];
        let (wait, server) = (task.wait, task.server);
        let waits = wait == Wait::Message;
        self.calls.received(m, waits);
        if waits {
            // Takes the samples along.
            return self.guest_wake(v, t);
        }
        let home = &self.vcpus[self.home_of(vm as usize, t) as usize];
        let leg = match m.is_answer() {
            false if wait == Wait::Timer && self.calls.is_busy(server) => RoundTripStage::Behind,
            false if home.current == t => RoundTripStage::Queued,
            _ => RoundTripStage::Arrived,
        };
        self.leg(m, leg, home.track);
    }

    /// A guest's server was woken on a vCPU or moved there, or gets or loses it: changes the leg of its calls.
    pub(crate) fn server_is(&mut self, v: u32, t: u32, runs: bool) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, track) = (vcpu.vm as usize, vcpu.track);
        let server = self.vms[vm].tasks[t as usize].server;
        if server == NONE || track == NONE {
            return;
        }
        // It also waits for a timer before it has started.
        let wait = self.vms[vm].tasks[t as usize].wait;
        let sleeps = wait == Wait::Timer && self.calls.is_busy(server);
        let what = match (runs, sleeps) {
            (true, _) => ServerState::Runs,
            (false, true) => ServerState::Sleeps,
            (false, false) => ServerState::Waits,
        };
        self.calls.server_is(server, what, self.tracks.on(track, self.clock.now()));
    }

    /// A server among the host's threads goes to sleep in the middle of a call, or wakes up.
    pub(crate) fn host_server_sleeps(&mut self, t: u32, sleeps: bool) {
        let thread = &self.threads[t as usize];
        let (server, track) = (thread.work.server, thread.track);
        if server != NONE && track != NONE {
            let what = if sleeps { ServerState::Sleeps } else { ServerState::Runs };
            self.calls.server_is(server, what, self.tracks.on(track, self.clock.now()));
        }
    }

    /// A task gets its vCPU or loses it: its own action continues or stops.
    pub(crate) fn actor_is(&mut self, v: u32, t: u32, runs: bool) {
        let vm = self.vcpus[v as usize].vm as usize;
        let sampler = self.vms[vm].tasks[t as usize].sampler;
        if sampler != NONE {
            // It may have been moved already.
            let track = self.vcpus[self.home_of(vm, t) as usize].track;
            self.tracks.acts(sampler, runs, track, self.clock.now());
        }
    }

    /// A guest task sends a message to task `to`; true if it sleeps for room.
    pub(crate) fn guest_post(&mut self, v: u32, t: u32, to: u32, room: QueueRoom) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let Some(other) = self.vms[vm].tasks.get(to as usize) else { return false };
        let sampler = other.sampler;
        let woken = match self.mail.post(other.mail, t, other.wait == Wait::Mail, room) {
            SendResult::Wakes { sampled, others } => {
                if sampled {
                    let home = self.home_of(vm, to);
                    let (track, now) = (self.vcpus[home as usize].track, self.clock.now());
                    self.tracks.arm(sampler, track, now, now);
                }
                self.guest_wake_up(v, to, wakes_sync(room));
                others
            }
            SendResult::Left(woken) => woken,
            SendResult::Blocks => {
                let work = &mut self.vms[vm].tasks[t as usize];
                work.wait = Wait::Room;
                work.posts_again(to, room);
                return self.guest_sleep(v, t, None, CostKey::Block);
            }
        };
        woken.into_iter().for_each(|poster| self.guest_wake_up(v, poster, true));
        false
    }

    /// A guest task receives a message; true if it sleeps for one.
    pub(crate) fn guest_receive(&mut self, v: u32, t: u32, sample: bool) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let work = &mut self.vms[vm].tasks[t as usize];
        match self.mail.receive(work.mail, sample) {
            ReceiveResult::Message(woken) => {
                woken.into_iter().for_each(|poster| self.guest_wake_up(v, poster, true));
                false
            }
            ReceiveResult::Nothing => {
                work.wait = Wait::Mail;
                self.guest_sleep(v, t, None, CostKey::Block)
            }
        }
    }

    /// A host thread sends a message to thread `to`; true if it sleeps for room.
    pub(crate) fn post(&mut self, p: u32, t: u32, to: u32, room: QueueRoom) -> bool {
        let Some(other) = self.threads.get_mut(to as usize) else { return false };
        let woken = match self.mail.post(other.work.mail, t, other.work.wait == Wait::Mail, room) {
            SendResult::Wakes { sampled, others } => {
                other.work.wait = Wait::No;
                if sampled {
                    let now = self.clock.now();
                    self.tracks.arm(other.work.sampler, other.track, now, now);
                }
                self.wake_thread(to, Waker { sync: wakes_sync(room), ..self.waker() });
                others
            }
            SendResult::Left(woken) => woken,
            SendResult::Blocks => {
                let work = &mut self.threads[t as usize].work;
                work.wait = Wait::Room;
                work.posts_again(to, room);
                self.block(p, t, CostKey::Block, 0);
                return true;
            }
        };
        self.wake_posters(woken);
        false
    }

    /// A host thread receives a message; true if it sleeps for one.
    pub(crate) fn receive(&mut self, p: u32, t: u32, sample: bool) -> bool {
        let work = &mut self.threads[t as usize].work;
        match self.mail.receive(work.mail, sample) {
            ReceiveResult::Message(woken) => {
                self.wake_posters(woken);
                false
            }
            ReceiveResult::Nothing => {
                work.wait = Wait::Mail;
                self.block(p, t, CostKey::Block, 0);
                true
            }
        }
    }

    /// There is room for host threads that wait for it.
    fn wake_posters(&mut self, posters: Vec<u32>) {
        for poster in posters {
            self.threads[poster as usize].work.wait = Wait::No;
            self.wake_thread(poster, Waker { sync: true, ..self.waker() });
        }
    }
}

/// Whether the sender's wake-up says that the sender is about to sleep, as for sockets and pipes.
fn wakes_sync(room: QueueRoom) -> bool {
    room != QueueRoom::List
}
