//! Calls between clients and servers: queues of the servers, and samples of the callers.
//!
//! ```text
//! client:  calls ----> awaits ----> goes on                 (the answer may come before it awaits)
//! server:  takes a call ----> works ----> answers ----> takes the next, or waits for one
//! ```
//!
//! A client makes one call at a time, so a server never has more calls than it has clients: its queue does not grow.

use std::collections::{BTreeMap, VecDeque};

use vcoop_model::distinct;
use vcoop_model::plan::{Plan, Program, Target, TaskPlan};

use crate::attribution::track::{NONE, RoundTripStage, TrackPosition};
use crate::queue::Ns;

/// A request or its answer, identified by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    client: u32,
    answer: bool,
}

impl Message {
    /// Whether it is the answer.
    pub(crate) fn is_answer(self) -> bool {
        self.answer
    }
}

/// A task that makes calls.
#[derive(Clone, Copy, Debug)]
struct Client {
    at: Target,
    /// The first vCPU of its VM (over all VMs).
    first: u32,
    /// vCPU (over all VMs) that the answer interrupts, if it comes from outside of the VM.
    irq_vcpu: u32,
    /// Server of the present call.
    server: u32,
    /// The answer came while the client did not wait.
    answered: bool,
    sampler: u32,
    /// The VM of a storm that it builds; [`NONE`] for a task.
    builds: u32,
    /// Calls made.
    calls: u64,
    /// Its number among clients of other machines, and the duration of the present call.
    remote: (u32, Ns),
}

/// A task that answers calls.
#[derive(Clone, Debug)]
struct Server {
    at: Target,
    /// vCPU (over all VMs) that calls from outside of the VM interrupt.
    irq_vcpu: u32,
    /// Client of the call that it works on.
    serving: u32,
    /// Clients of waiting calls.
    queue: VecDeque<u32>,
    /// Calls answered.
    served: u64,
}

/// State of a server that has calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// The server has its (v)CPU.
    Runs,
    /// The server waits for its (v)CPU.
    Waits,
    /// The server waits for a device in the middle of a call.
    Sleeps,
}

/// All clients and servers.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    clients: Vec<Client>,
    servers: Vec<Server>,
    /// Clients of other machines.
    remotes: Vec<u32>,
}

impl Calls {
    /// Adds a task. Returns its numbers as client and as server. `first`: the first vCPU of its VM.
    pub(crate) fn enter(
        &mut self,
        task: &TaskPlan,
        at: Target,
        first: u32,
        sampler: u32,
    ) -> (u32, u32) {
        let (mut client, mut server) = (NONE, NONE);
        if task.program.servers().next().is_some() || task.program.is_remote() {
            let remote = self.remotes.len() as u32;
            client = self.add(Client { sampler, remote: (remote, 0), ..Client::new(at, first) });
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

    /// Adds the builder of a VM of a storm. Answers arrive on the level of task `at`, at this vCPU.
    pub(crate) fn enter_builder(&mut self, builds: u32, at: Target, irq_vcpu: u32) -> u32 {
        let at = match at {
            Target::Host(_) => Target::Host(NONE),
            Target::Guest { vm, .. } => Target::Guest { vm, task: NONE },
        };
        self.add(Client { builds, ..Client::new(at, irq_vcpu) })
    }

    fn add(&mut self, client: Client) -> u32 {
        self.clients.push(client);
        self.clients.len() as u32 - 1
    }

    /// Usual number of calls at a time.
    pub(crate) fn room(&self) -> usize {
        self.clients.len().min(64)
    }

    /// Reserves that room for the servers.
    pub(crate) fn reserve(&mut self) {
        let room = self.room();
        self.servers.iter_mut().for_each(|s| s.queue.reserve_exact(room));
    }

    /// Begins a call, on its client's track. The answer interrupts this vCPU of the client's VM, or the one of the last
    /// answer.
    pub(crate) fn call(
        &mut self,
        client: u32,
        server: u32,
        irq_vcpu: Option<u32>,
        mut on: TrackPosition<'_>,
    ) -> Message {
        let c = self.begin(client, irq_vcpu);
        c.server = server;
        on.call(c.sampler);
        Message { client, answer: false }
    }

    /// Begins a call to another machine, which takes `ns`.
    pub(crate) fn call_remote(
        &mut self,
        client: u32,
        ns: Ns,
        irq_vcpu: u32,
        mut on: TrackPosition<'_>,
    ) {
        let c = self.begin(client, Some(irq_vcpu));
        c.remote.1 = ns;
        on.call(c.sampler);
    }

    fn begin(&mut self, client: u32, irq_vcpu: Option<u32>) -> &mut Client {
        let c = &mut self.clients[client as usize];
        if let (Target::Guest { .. }, Some(irq_vcpu)) = (c.at, irq_vcpu) {
            c.irq_vcpu = c.first + irq_vcpu;
        }
        c.calls += 1;
        c
    }

    /// The number of a client among those of other machines, and the duration of its call there.
    pub(crate) fn remote(&self, client: u32) -> (u32, Ns) {
        self.clients[client as usize].remote
    }

    /// The client with a number among those of other machines.
    pub(crate) fn remote_client(&self, remote: u32) -> u32 {
        self.remotes[remote as usize]
    }

    /// The answer to a client.
    pub(crate) fn answer_to(client: u32) -> Message {
        Message { client, answer: true }
    }

    /// The task of a client, and the vCPU that answers interrupt.
    pub(crate) fn client(&self, client: u32) -> (Target, u32) {
        let c = &self.clients[client as usize];
        (c.at, c.irq_vcpu)
    }

    /// Answers the call that a server has worked on.
    pub(crate) fn answer(&mut self, server: u32, on: TrackPosition<'_>) -> Message {
        let s = &mut self.servers[server as usize];
        let client = std::mem::replace(&mut s.serving, NONE);
        s.served += 1;
        let answer = Self::answer_to(client);
        self.leg(answer, RoundTripStage::Flight, on);
        answer
    }

    /// Whether the answer that a client wants to wait for has come.
    pub(crate) fn is_answered(&mut self, client: u32) -> bool {
        std::mem::take(&mut self.clients[client as usize].answered)
    }

    /// A server takes the next call, if there is one.
    pub(crate) fn take(&mut self, server: u32, on: TrackPosition<'_>) -> bool {
        let s = &mut self.servers[server as usize];
        if s.serving != NONE {
            // Handed over with the wake-up.
            return true;
        }
        let Some(next) = s.queue.pop_front() else { return false };
        s.serving = next;
        self.leg(Message { client: next, answer: false }, RoundTripStage::Served, on);
        true
    }

    /// Whether a server works on a call.
    pub(crate) fn is_busy(&self, server: u32) -> bool {
        self.servers.get(server as usize).is_some_and(|s| s.serving != NONE)
    }

    /// The task to which a message goes.
    pub(crate) fn receiver(&self, m: Message) -> Target {
        let client = &self.clients[m.client as usize];
        if m.answer { client.at } else { self.servers[client.server as usize].at }
    }

    /// The vCPU that a message interrupts.
    pub(crate) fn irq_vcpu(&self, m: Message) -> u32 {
        let client = &self.clients[m.client as usize];
        if m.answer { client.irq_vcpu } else { self.servers[client.server as usize].irq_vcpu }
    }

    /// The VM of a storm for which a message's call was made.
    pub(crate) fn builds(&self, m: Message) -> u32 {
        self.clients[m.client as usize].builds
    }

    /// Records a message at its receiver. `waits`: the receiver waits for it.
    pub(crate) fn received(&mut self, m: Message, waits: bool) {
        let client = &mut self.clients[m.client as usize];
        if m.answer {
            client.answered = !waits;
            return;
        }
        let server = &mut self.servers[client.server as usize];
        if waits {
            server.serving = m.client;
        } else {
            server.queue.push_back(m.client);
        }
    }

    /// A server gets or loses its (v)CPU, or sleeps: changes the leg of the call that it works on and of those behind
    /// it.
    pub(crate) fn server_is(&self, server: u32, what: ServerState, mut on: TrackPosition<'_>) {
        let (served, queued) = match what {
            ServerState::Runs => (RoundTripStage::Served, RoundTripStage::Queued),
            ServerState::Waits => (RoundTripStage::Arrived, RoundTripStage::Arrived),
            ServerState::Sleeps => (RoundTripStage::Held, RoundTripStage::Behind),
        };
        let s = &self.servers[server as usize];
        let sampler = |c: u32| self.clients[c as usize].sampler;
        if s.serving != NONE {
            on.leg(sampler(s.serving), served);
        }
        for &client in &s.queue {
            on.leg(sampler(client), queued);
        }
    }

    /// Moves the round trip of a message to another leg, on this track.
    pub(crate) fn leg(&self, m: Message, leg: RoundTripStage, mut on: TrackPosition<'_>) {
        on.leg(self.clients[m.client as usize].sampler, leg);
    }

    /// Calls made so far by each client, and answered by each server.
    pub(crate) fn totals(&self) -> (Vec<u64>, Vec<u64>) {
        let called = self.clients.iter().map(|c| c.calls).collect();
        (called, self.servers.iter().map(|s| s.served).collect())
    }

    /// Counts between two such totals, by task and metric; a task of several VMs counts once.
    pub(crate) fn since(
        &self,
        plan: &Plan,
        start: &(Vec<u64>, Vec<u64>),
        end: &(Vec<u64>, Vec<u64>),
    ) -> BTreeMap<(String, &'static str), u64> {
        let mut sums: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
        let clients = self.clients.iter().zip(start.0.iter().zip(&end.0));
        for (client, (a, b)) in clients.filter(|(client, _)| client.builds == NONE) {
            *sums.entry((name(plan, client.at), "calls")).or_default() += b - a;
        }
        for (server, (a, b)) in self.servers.iter().zip(start.1.iter().zip(&end.1)) {
            *sums.entry((name(plan, server.at), "served")).or_default() += b - a;
        }
        sums
    }
}

impl Client {
    fn new(at: Target, first: u32) -> Self {
        Self {
            at,
            first,
            irq_vcpu: first,
            server: NONE,
            answered: false,
            sampler: NONE,
            builds: NONE,
            calls: 0,
            remote: (NONE, 0),
        }
    }
}

/// Servers of calls whose round trips are probed: their tracks are needed.
pub(crate) fn probed_servers(plan: &Plan) -> Vec<Target> {
    distinct(plan.probes.iter().flat_map(|probe| plan.task(probe.target).program.servers()))
}

/// Name of a task in scalars: its label.
fn name(plan: &Plan, at: Target) -> String {
    let label = &plan.task(at).label;
    match at {
        Target::Host(_) => format!("host.{label}"),
        Target::Guest { vm, .. } => format!("{}.{label}", plan.vms[vm as usize].label),
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::recording::Part;

    use super::*;
    use crate::attribution::track::{State, Tracks};

    const HOST: Target = Target::Host(0);
    const GUEST: Target = Target::Guest { vm: 0, task: 3 };

    /// A client in the guest whose first vCPU is 4 and one on the host, a server there, and the sampler and track
    /// of the first client.
    fn calls(tracks: &mut Tracks) -> (Calls, u32, u32) {
        let (sampler, track) = (tracks.add_sampler(), tracks.add_track());
        let mut calls = Calls::default();
        calls.add(Client { sampler, ..Client::new(GUEST, 4) });
        calls.add(Client::new(Target::Host(1), 0));
        let queue = VecDeque::new();
        calls.servers.push(Server { at: HOST, irq_vcpu: 0, serving: NONE, queue, served: 0 });
        (calls, sampler, track)
    }

    #[test]
    fn a_server_takes_calls_in_their_order_and_answers_who_called() {
        let tracks = &mut Tracks::new(1, 1);
        let (mut calls, _, track) = calls(tracks);
        let first = calls.call(0, 0, Some(2), tracks.on(track, 0));
        let second = calls.call(1, 0, Some(0), tracks.on(track, 0));
        assert_eq!((calls.receiver(first), calls.irq_vcpu(first)), (HOST, 0));
        calls.received(first, true);
        calls.received(second, false);
        assert!(
            calls.is_busy(0) && calls.take(0, tracks.on(track, 1)),
            "handed over when it waited"
        );
        let answer = calls.answer(0, tracks.on(track, 2));
        assert_eq!((calls.receiver(answer), calls.irq_vcpu(answer)), (GUEST, 6));
        calls.received(answer, false);
        assert!(calls.is_answered(0) && !calls.is_answered(0), "it came before it was awaited");
        assert!(calls.take(0, tracks.on(track, 3)));
        let answer = calls.answer(0, tracks.on(track, 4));
        assert_eq!(calls.receiver(answer), Target::Host(1));
        assert!(!calls.take(0, tracks.on(track, 5)), "none is left");
        assert_eq!(calls.totals(), (vec![1, 1], vec![2]));
    }

    #[test]
    fn a_sample_knows_when_its_server_slept() {
        let tracks = &mut Tracks::new(1, 1);
        let (mut calls, sampler, own) = calls(tracks);
        let track = tracks.add_track();
        let call = calls.call(0, 0, Some(0), tracks.on(own, 10));
        calls.received(call, true);
        tracks.set(track, State::Run, 10);
        calls.server_is(0, ServerState::Runs, tracks.on(track, 12));
        calls.server_is(0, ServerState::Sleeps, tracks.on(track, 15));
        tracks.set(track, State::Asleep, 15);
        calls.server_is(0, ServerState::Waits, tracks.on(track, 40));
        tracks.set(track, State::WakeToRun, 40);
        calls.server_is(0, ServerState::Runs, tracks.on(track, 46));
        tracks.set(track, State::Run, 46);
        tracks.event(sampler, own, 47);
        let sample = tracks.sample(sampler, 47).expect("it was called");
        let part = |part: Part| sample.parts[part as usize];
        assert_eq!(sample.latency, 37);
        assert_eq!((part(Part::Service), part(Part::WakeToRun)), (3 + 25 + 1, 6));
    }
}
