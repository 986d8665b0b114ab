//! Calls: requests and answers on their way between tasks of any level.
//!
//! ```text
//! same level     a wake-up, with an IPI where the other's (v)CPU needs one
//! host -> guest  signal: an interrupt at the other's irq_vcpu, whose handler wakes the task
//! guest -> host  an exit, whose handler wakes the thread
//! guest -> guest an exit, whose handler signals the other VM
//! ```
//!
//! A caller has one call out at a time, so a server never has more calls before it than it has
//! callers: its queue does not grow.

use std::collections::VecDeque;

use vcoop_model::plan::{Plan, Program, Target, TaskPlan};
use vcoop_policy::Injection;
use vcoop_sched::EntId;

use crate::attribution::track::{Leg, NONE};
use crate::clock::Event;
use crate::machine::{Exit, Irq, Vm, Wait, vector};
use crate::program::Op;
use crate::queue::Ns;
use crate::world::World;

/// A request or its answer, named by who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    client: u32,
    answer: bool,
}

/// A task that calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    at: Target,
    /// vCPU (over all VMs) that the answer interrupts, if it comes from outside of the VM.
    irq_vcpu: u32,
    /// Server of the call that is out.
    server: u32,
    /// The answer came while it did not wait.
    answered: bool,
    sampler: u32,
    /// The VM of a storm that it builds; [`NONE`] for a task.
    pub(crate) builds: u32,
    /// Calls made.
    pub(crate) calls: u64,
    /// Its number among those who call other machines, and the time of the call that is out.
    remote: (u32, Ns),
}

/// A task that answers calls.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    at: Target,
    /// vCPU (over all VMs) that calls from outside of the VM interrupt.
    irq_vcpu: u32,
    /// Whose call it works on.
    serving: u32,
    /// Whose calls wait.
    queue: VecDeque<u32>,
    /// Calls answered.
    pub(crate) served: u64,
}

/// Everybody who calls or serves.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) clients: Vec<Client>,
    pub(crate) servers: Vec<Server>,
    /// Those who call other machines.
    pub(crate) remotes: Vec<u32>,
}

impl Calls {
    /// Enters a task; its numbers as client and as server. `first` is the first vCPU of its VM.
    pub(crate) fn enter(
        &mut self,
        task: &TaskPlan,
        at: Target,
        first: u32,
        sampler: u32,
    ) -> (u32, u32) {
        let (mut client, mut server) = (NONE, NONE);
        if task.program.servers().next().is_some() || task.program.is_remote() {
            client = self.clients.len() as u32;
            self.clients.push(Client {
                at,
                irq_vcpu: first,
                server: NONE,
                answered: false,
                sampler,
                builds: NONE,
                calls: 0,
                remote: (self.remotes.len() as u32, 0),
            });
            if task.program.is_remote() {
                self.remotes.push(client);
            }
        }
        if let Program::Serve { irq_vcpu, .. } = task.program {
            server = self.servers.len() as u32;
            self.servers.push(Server {
                at,
                irq_vcpu: first + irq_vcpu,
                serving: NONE,
                queue: VecDeque::new(),
                served: 0,
            });
        }
        (client, server)
    }

    /// Enters who builds a VM of a storm, beside the task `at` on whose level the answers are to come.
    pub(crate) fn enter_builder(&mut self, builds: u32, at: Target, first: u32) -> u32 {
        let at = match at {
            Target::Host(_) => Target::Host(NONE),
            Target::Guest { vm, .. } => Target::Guest { vm, task: NONE },
        };
        self.clients.push(Client {
            at,
            irq_vcpu: first,
            server: NONE,
            answered: false,
            sampler: NONE,
            builds,
            calls: 0,
            remote: (NONE, 0),
        });
        self.clients.len() as u32 - 1
    }

    /// Whether a server works on a call.
    fn is_busy(&self, server: u32) -> bool {
        self.servers.get(server as usize).is_some_and(|s| s.serving != NONE)
    }

    /// Room for what usually comes at once.
    pub(crate) fn room(&self) -> usize {
        self.clients.len().min(64)
    }

    /// Gives the servers that room.
    pub(crate) fn reserve(&mut self) {
        let room = self.room();
        self.servers.iter_mut().for_each(|s| s.queue.reserve_exact(room));
    }
}

/// The task of a plan.
fn task(plan: &Plan, at: Target) -> &TaskPlan {
    match at {
        Target::Host(i) => &plan.host_tasks[i as usize],
        Target::Guest { vm, task } => &plan.vms[vm as usize].tasks[task as usize],
    }
}

/// Those who serve somebody whose round trips are probed: their tracks are needed.
pub(crate) fn probed_servers(plan: &Plan) -> Vec<Target> {
    let servers = plan.probes.iter().flat_map(|probe| task(plan, probe.target).program.servers());
    let mut distinct = Vec::new();
    for server in servers {
        if !distinct.contains(&server) {
            distinct.push(server);
        }
    }
    distinct
}

impl Client {
    /// vCPU of its VM that answers interrupt; 0 on the host.
    pub(crate) fn irq_vcpu(&self, vms: &[Vm]) -> u32 {
        match self.at {
            Target::Host(_) => 0,
            Target::Guest { vm, .. } => self.irq_vcpu - vms[vm as usize].first,
        }
    }

    /// Its task.
    pub(crate) fn probe(&self, plan: &Plan) -> String {
        name(plan, self.at)
    }
}

impl Server {
    /// Its task.
    pub(crate) fn probe(&self, plan: &Plan) -> String {
        name(plan, self.at)
    }
}

/// How scalars name a task: by its label.
fn name(plan: &Plan, at: Target) -> String {
    let label = &task(plan, at).label;
    match at {
        Target::Host(_) => format!("host.{label}"),
        Target::Guest { vm, .. } => format!("{}.{label}", plan.vms[vm as usize].label),
    }
}

impl World<'_> {
    /// A host thread comes to an operation of a call; true when it has left the CPU or is busy.
    pub(crate) fn call_op(&mut self, p: u32, t: u32, op: Op) -> bool {
        let work = &self.threads[t as usize].work;
        let (client, server, track) = (work.client, work.server, self.threads[t as usize].track);
        let message = match op {
            Op::Call { server, irq_vcpu } => self.call(client, server, irq_vcpu, track),
            Op::Answer => self.answer(server, track),
            _ => {
                if self.goes_on_at_once(op, client, server, track) {
                    return false;
                }
                self.threads[t as usize].work.wait = Wait::Message;
                self.block(p, t, 0);
                return true;
            }
        };
        if matches!(self.receiver(message), Target::Host(_)) {
            self.deliver_to_host(message);
            return false;
        }
        if self.costs.handle_hypercall_ns == 0 {
            self.signal(message);
            return false;
        }
        // The signal goes out when the system call has come to it.
        self.threads[t as usize].work.outbox = Some(message);
        self.pcpus[p as usize].extra += self.costs.handle_hypercall_ns;
        self.goes_on(p);
        true
    }

    /// A guest task comes to an operation of a call; true when it has left the vCPU.
    pub(crate) fn guest_call_op(&mut self, v: u32, t: u32, op: Op) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let (vm, track) = (vcpu.vm, vcpu.track);
        let work = &self.vms[vm as usize].tasks[t as usize];
        let (client, server) = (work.client, work.server);
        let message = match op {
            Op::Call { server, irq_vcpu } => self.call(client, server, irq_vcpu, track),
            Op::Answer => self.answer(server, track),
            _ => {
                if self.goes_on_at_once(op, client, server, track) {
                    return false;
                }
                self.vms[vm as usize].tasks[t as usize].wait = Wait::Message;
                return self.guest_sleep(v, t, None);
            }
        };
        match self.receiver(message) {
            Target::Guest { vm: to, .. } if to == vm => self.deliver_to_guest(v, message),
            _ => self.vcpus[v as usize].exits.push_back(Exit::Send(message)),
        }
        false
    }

    /// A call begins.
    pub(crate) fn call(
        &mut self,
        client: u32,
        server: Target,
        irq_vcpu: u32,
        track: u32,
    ) -> Message {
        let index = match server {
            Target::Host(t) => self.threads[t as usize].work.server,
            Target::Guest { vm, task } => self.vms[vm as usize].tasks[task as usize].server,
        };
        let c = &mut self.calls.clients[client as usize];
        if let Target::Guest { vm, .. } = c.at {
            c.irq_vcpu = self.vms[vm as usize].first + irq_vcpu;
        }
        c.server = index;
        c.calls += 1;
        self.tracks.call(c.sampler, track, self.clock.now());
        Message { client, answer: false }
    }

    /// A call to another machine begins.
    pub(crate) fn remote_call(&mut self, client: u32, ns: Ns, irq_vcpu: u32, track: u32) {
        let c = &mut self.calls.clients[client as usize];
        if let Target::Guest { vm, .. } = c.at {
            c.irq_vcpu = self.vms[vm as usize].first + irq_vcpu;
        }
        c.remote.1 = ns;
        c.calls += 1;
        self.tracks.call(c.sampler, track, self.clock.now());
    }

    /// It has left this machine.
    pub(crate) fn remote_sent(&mut self, client: u32) {
        let c = &self.calls.clients[client as usize];
        let (remote, ns) = c.remote;
        let track = match c.at {
            Target::Host(t) => self.threads[t as usize].track,
            Target::Guest { .. } => self.vcpus[c.irq_vcpu as usize].track,
        };
        self.clock.set(Event::Remote(remote), self.clock.now() + ns);
        self.leg(client, Leg::Held, track);
    }

    /// Its answer reaches this machine: an interrupt where who takes it ran last.
    pub(crate) fn remote_answers(&mut self, remote: u32) {
        let client = self.calls.remotes[remote as usize];
        let c = &self.calls.clients[client as usize];
        let (track, p) = match c.at {
            Target::Host(t) => (self.threads[t as usize].track, self.host.cpu_of(EntId(t)).0),
            Target::Guest { .. } => {
                let vcpu = &self.vcpus[c.irq_vcpu as usize];
                (vcpu.track, vcpu.home)
            }
        };
        self.leg(client, Leg::Flight, track);
        self.interrupt(p, Irq::Remote(client));
    }

    /// The host's half of that interrupt is done.
    pub(crate) fn remote_arrived(&mut self, client: u32) {
        self.send(Message { client, answer: true });
    }

    /// The call that a server has worked on is answered.
    fn answer(&mut self, server: u32, track: u32) -> Message {
        let s = &mut self.calls.servers[server as usize];
        let client = std::mem::replace(&mut s.serving, NONE);
        s.served += 1;
        self.leg(client, Leg::Flight, track);
        Message { client, answer: true }
    }

    /// Whether who waits for an answer, or for a call, need not.
    fn goes_on_at_once(&mut self, op: Op, client: u32, server: u32, track: u32) -> bool {
        if op == Op::Await {
            return std::mem::take(&mut self.calls.clients[client as usize].answered);
        }
        let s = &mut self.calls.servers[server as usize];
        if s.serving != NONE {
            // Handed over with the wake-up.
            return true;
        }
        let Some(next) = s.queue.pop_front() else { return false };
        s.serving = next;
        self.leg(next, Leg::Served, track);
        true
    }

    pub(crate) fn receiver(&self, m: Message) -> Target {
        let client = &self.calls.clients[m.client as usize];
        if m.answer { client.at } else { self.calls.servers[client.server as usize].at }
    }

    /// Sends a message from host context.
    pub(crate) fn send(&mut self, m: Message) {
        match self.receiver(m) {
            Target::Host(_) => self.deliver_to_host(m),
            Target::Guest { .. } => self.signal(m),
        }
    }

    /// Interrupts the vCPU behind which a message's receiver is.
    pub(crate) fn signal(&mut self, m: Message) {
        let client = &self.calls.clients[m.client as usize];
        let v = match m.answer {
            true => client.irq_vcpu,
            false => self.calls.servers[client.server as usize].irq_vcpu,
        };
        self.settle_wait(v);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.messages.push_back(m);
        let track = vcpu.track;
        self.leg(m.client, Leg::Flight, track);
        self.inject(v, vector::MESSAGE, Injection::Device);
    }

    fn deliver_to_host(&mut self, m: Message) {
        let Target::Host(t) = self.receiver(m) else { return };
        if t == NONE {
            return self.build_goes_on(self.calls.clients[m.client as usize].builds, None);
        }
        let (waits, sleeps, track) = {
            let thread = &mut self.threads[t as usize];
            let waits = thread.work.wait == Wait::Message;
            let busy = self.calls.is_busy(thread.work.server);
            let sleeps = thread.work.wait == Wait::Timer && busy;
            if waits {
                thread.work.wait = Wait::No;
            }
            (waits, sleeps, thread.track)
        };
        self.received(m, waits);
        if waits {
            // Wakes a caller with its sample.
            self.wake_thread(t, self.waker());
        } else {
            self.settle_thread(t);
        }
        match (m.answer, waits) {
            (true, true) => {}
            (true, false) => self.leg(m.client, Leg::Arrived, track),
            (false, true) => self.leg(m.client, Leg::Served, track),
            (false, false) if sleeps => self.leg(m.client, Leg::Behind, track),
            // On its own track a host thread runs for nobody but itself.
            (false, false) => self.leg(m.client, Leg::Queued, track),
        }
    }

    /// The guest's half of a message's way, on vCPU `v`.
    pub(crate) fn deliver_to_guest(&mut self, v: u32, m: Message) {
        let Target::Guest { vm, task: t } = self.receiver(m) else { return };
        if t == NONE {
            return self.build_goes_on(self.calls.clients[m.client as usize].builds, Some(v));
        }
        let wait = self.vms[vm as usize].tasks[t as usize].wait;
        let waits = wait == Wait::Message;
        self.received(m, waits);
        if waits {
            // Takes the samples along.
            return self.guest_wake(v, t);
        }
        let vm = &self.vms[vm as usize];
        let home = vm.first + vm.level.cpu_of(EntId(t)).0;
        let runs = self.vcpus[home as usize].current == t;
        let server = vm.tasks[t as usize].server;
        let leg = match m.answer {
            false if wait == Wait::Timer && self.calls.is_busy(server) => Leg::Behind,
            false if runs => Leg::Queued,
            _ => Leg::Arrived,
        };
        self.settle_wait(home);
        self.leg(m.client, leg, self.vcpus[home as usize].track);
    }

    /// Books a message at its receiver, which waits for it or not.
    fn received(&mut self, m: Message, waits: bool) {
        let client = &mut self.calls.clients[m.client as usize];
        if m.answer {
            client.answered = !waits;
            return;
        }
        let server = &mut self.calls.servers[client.server as usize];
        if waits {
            server.serving = m.client;
        } else {
            server.queue.push_back(m.client);
        }
    }

    /// A guest's server was woken on a vCPU or moved there, or gets it, or loses it: what the calls
    /// before it wait for is something else from now on.
    pub(crate) fn server_is(&mut self, v: u32, t: u32, runs: bool) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, track) = (vcpu.vm as usize, vcpu.track);
        let server = self.vms[vm].tasks[t as usize].server;
        if server == NONE || track == NONE {
            return;
        }
        if !runs {
            self.settle_wait(v);
        }
        // Before it has started it waits for a timer, too.
        let wait = self.vms[vm].tasks[t as usize].wait;
        let sleeps = wait == Wait::Timer && self.calls.is_busy(server);
        let (served, queued) = match (runs, sleeps) {
            (true, _) => (Leg::Served, Leg::Queued),
            (false, true) => (Leg::Held, Leg::Behind),
            (false, false) => (Leg::Arrived, Leg::Arrived),
        };
        self.legs(server, served, queued, track);
    }

    /// A server among the host's threads goes to sleep in the middle of a call, or wakes up.
    pub(crate) fn host_server_sleeps(&mut self, t: u32, sleeps: bool) {
        let thread = &self.threads[t as usize];
        let (server, track) = (thread.work.server, thread.track);
        if server != NONE && track != NONE {
            let (served, queued) =
                if sleeps { (Leg::Held, Leg::Behind) } else { (Leg::Served, Leg::Queued) };
            self.legs(server, served, queued, track);
        }
    }

    /// The call that a server works on, and those behind it, come to other legs.
    fn legs(&mut self, server: u32, served: Leg, queued: Leg, track: u32) {
        let s = &self.calls.servers[server as usize];
        let sampler = |c: u32| self.calls.clients[c as usize].sampler;
        if s.serving != NONE {
            self.tracks.leg(sampler(s.serving), served, track, self.clock.now());
        }
        for &client in &s.queue {
            self.tracks.leg(sampler(client), queued, track, self.clock.now());
        }
    }

    /// A task gets its vCPU or loses it: an action of its own goes on or stops.
    pub(crate) fn actor_is(&mut self, v: u32, t: u32, runs: bool) {
        let vcpu = &self.vcpus[v as usize];
        let vm = &self.vms[vcpu.vm as usize];
        let sampler = vm.tasks[t as usize].sampler;
        if sampler == NONE {
            return;
        }
        // It may have been moved already.
        let home = vm.first + vm.level.cpu_of(EntId(t)).0;
        if home != v {
            self.settle_wait(home);
        }
        let track = self.vcpus[home as usize].track;
        self.tracks.acts(sampler, runs, track, self.clock.now());
    }

    fn leg(&mut self, client: u32, leg: Leg, track: u32) {
        let sampler = self.calls.clients[client as usize].sampler;
        self.tracks.leg(sampler, leg, track, self.clock.now());
    }
}
