//! Attributes the time of latency samples.
//!
//! A *track* follows one host thread (a vCPU, or a host thread that measures) through the states
//! in which it can be; it is in exactly one of them at any time, and keeps the time spent in each.
//! A *sampler* follows one measuring task from the moment it is due to its first instruction: it
//! remembers the track's times at the start and takes the difference at the end, so that its
//! parts add up to the sample exactly, by construction. A guest task changes tracks when it
//! changes vCPUs.
//!
//! A round trip begins with the call and changes tracks with the message: that of the caller while it is sent, that of
//! the vCPU that takes the interrupt, that of the server, and all the way back. Its [`RoundTripStage`] decides what a state means
//! to it.

mod meaning;

use vcoop_model::recording::{Part, Parts};

use self::meaning::{Phase, RUNNABLE, STATES};
pub(crate) use self::meaning::{RoundTripStage, State};
use crate::queue::Ns;

/// No track, sampler, or thread.
pub(crate) const NONE: u32 = u32::MAX;

/// The history of one thread. See the [module](self).
#[derive(Clone, Debug)]
struct Track {
    state: State,
    since: Ns,
    spent: [Ns; STATES],
    /// Samplers on this track that wait for their due time.
    armed: Vec<u32>,
    /// Earliest due time among `armed`.
    next_due: Ns,
    /// Time that others ran while this thread waited, by label, up to `ran_mark`.
    ran_instead: Box<[Ns]>,
    /// Times that each label had run on the pCPU where this thread waits, when it began to.
    ran_mark: Box<[Ns]>,
    /// The pCPU where this thread waits, or [`NONE`].
    waits_on: u32,
}

/// Running times on one pCPU, by label.
#[derive(Clone, Debug)]
struct Occupancy {
    /// Label that runs now, and since when.
    label: u16,
    since: Ns,
    /// Time that each label ran, up to `since`.
    ran: Box<[Ns]>,
}

impl Occupancy {
    fn charge(&mut self, now: Ns) {
        self.ran[usize::from(self.label)] += now - self.since;
        self.since = now;
    }
}

/// The open sample of a measuring task.
#[derive(Clone, Debug)]
struct Sampler {
    due: Ns,
    /// Armed: from when on time counts. Not the due time if time before it has counted already.
    starts: Ns,
    /// Its phase from then on.
    then: Phase,
    phase: Phase,
    track: u32,
    snapshot: [Ns; STATES],
    parts: Parts,
    ran_snapshot: Box<[Ns]>,
    ran_instead: Box<[Ns]>,
}

/// A moment on a track.
#[derive(Debug)]
pub(crate) struct TrackPosition<'a> {
    tracks: &'a mut Tracks,
    track: u32,
    now: Ns,
}

impl TrackPosition<'_> {
    /// Begins a round trip; see [`Tracks::call`].
    pub(crate) fn call(&mut self, sampler: u32) {
        self.tracks.call(sampler, self.track, self.now);
    }

    /// Moves a round trip to another leg; see [`Tracks::leg`].
    pub(crate) fn leg(&mut self, sampler: u32, leg: RoundTripStage) {
        self.tracks.leg(sampler, leg, self.track, self.now);
    }
}

/// A finished sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    /// When it was due.
    pub(crate) due: Ns,
    /// How late.
    pub(crate) latency: Ns,
    /// Parts; they add up to `latency`.
    pub(crate) parts: &'a Parts,
    /// Time that others ran while it waited, by label.
    pub(crate) ran_instead: &'a [Ns],
}

/// All tracks and samplers of a run, and running times on each pCPU.
#[derive(Clone, Debug)]
pub(crate) struct Tracks {
    tracks: Vec<Track>,
    samplers: Vec<Sampler>,
    pcpus: Vec<Occupancy>,
    labels: usize,
}

impl Tracks {
    /// Without tracks, and with idle pCPUs. `labels`: number of labels of threads that can run instead; the last one is
    /// an idle pCPU.
    pub(crate) fn new(labels: usize, pcpus: u32) -> Self {
        let idle =
            |_| Occupancy { label: labels as u16 - 1, since: 0, ran: vec![0; labels].into() };
        Self {
            tracks: Vec::new(),
            samplers: Vec::new(),
            pcpus: (0..pcpus).map(idle).collect(),
            labels,
        }
    }

    /// This moment on a track.
    #[inline]
    pub(crate) fn on(&mut self, track: u32, now: Ns) -> TrackPosition<'_> {
        TrackPosition { tracks: self, track, now }
    }

    /// A thread with this label runs on a pCPU from now on.
    #[inline]
    pub(crate) fn runs(&mut self, p: u32, label: u16, now: Ns) {
        if self.tracks.is_empty() {
            // Nothing is tracked. The table is large (pCPUs times labels), so it is not touched.
            return;
        }
        let pcpu = &mut self.pcpus[p as usize];
        pcpu.charge(now);
        pcpu.label = label;
    }

    /// A pCPU is idle from now on.
    #[inline]
    pub(crate) fn idles(&mut self, p: u32, now: Ns) {
        self.runs(p, self.labels as u16 - 1, now);
    }

    /// A new track, asleep at time 0.
    pub(crate) fn add_track(&mut self) -> u32 {
        let zero = vec![0; self.labels].into_boxed_slice();
        self.tracks.push(Track {
            state: State::Asleep,
            since: 0,
            spent: [0; STATES],
            armed: Vec::with_capacity(4),
            next_due: Ns::MAX,
            ran_instead: zero.clone(),
            ran_mark: zero,
            waits_on: NONE,
        });
        self.tracks.len() as u32 - 1
    }

    /// A new sampler.
    pub(crate) fn add_sampler(&mut self) -> u32 {
        let zero = vec![0; self.labels].into_boxed_slice();
        self.samplers.push(Sampler {
            due: 0,
            starts: 0,
            then: Phase::BeforeEvent,
            phase: Phase::Idle,
            track: NONE,
            snapshot: [0; STATES],
            parts: Parts::default(),
            ran_snapshot: zero.clone(),
            ran_instead: zero,
        });
        self.samplers.len() as u32 - 1
    }

    /// Whether a thread is tracked, and in this state.
    #[inline]
    pub(crate) fn is(&self, track: u32, state: State) -> bool {
        self.tracks.get(track as usize).is_some_and(|t| t.state == state)
    }

    /// Changes the state. Time never goes back on a track. An untracked thread has [`NONE`].
    #[inline(always)]
    pub(crate) fn set(&mut self, track: u32, state: State, now: Ns) {
        if track != NONE {
            self.change(track, state, now);
        }
    }

    #[inline]
    fn change(&mut self, track: u32, state: State, now: Ns) {
        let t = &mut self.tracks[track as usize];
        if t.state == state {
            return;
        }
        if t.next_due < now {
            self.start_due(track, now);
        }
        let t = &mut self.tracks[track as usize];
        debug_assert!(t.since <= now, "a track's time went back");
        t.spent[t.state as usize] += now - t.since;
        t.state = state;
        t.since = now;
    }

    /// The thread starts to wait on a pCPU.
    #[inline]
    pub(crate) fn wait_begins(&mut self, track: u32, p: u32, now: Ns) {
        let (t, pcpu) = (&mut self.tracks[track as usize], &mut self.pcpus[p as usize]);
        pcpu.charge(now);
        t.ran_mark.copy_from_slice(&pcpu.ran);
        t.waits_on = p;
    }

    /// Whether a thread is tracked, and waits on a pCPU.
    #[inline]
    pub(crate) fn waits(&self, track: u32) -> bool {
        self.tracks.get(track as usize).is_some_and(|t| t.waits_on != NONE)
    }

    /// The wait on a pCPU ends, if there was one: books what ran there since it began.
    #[inline]
    pub(crate) fn wait_ends(&mut self, track: u32, now: Ns) {
        let t = &mut self.tracks[track as usize];
        let p = std::mem::replace(&mut t.waits_on, NONE);
        if p == NONE {
            return;
        }
        if t.next_due < now {
            // The sample was due during this wait: it gets all of the wait now, and its share when it ends.
            self.start_due(track, now);
        }
        let (t, pcpu) = (&mut self.tracks[track as usize], &mut self.pcpus[p as usize]);
        pcpu.charge(now);
        for ((sum, mark), &ran) in t.ran_instead.iter_mut().zip(t.ran_mark.iter()).zip(&pcpu.ran) {
            *sum += ran - *mark;
        }
    }

    /// Books what ran so far on the pCPU where a thread waits, if it does: before a sample begins or ends there.
    #[inline]
    fn settle(&mut self, track: u32, now: Ns) {
        let p = self.tracks[track as usize].waits_on;
        if p != NONE {
            self.wait_moves(track, p, now);
        }
    }

    /// A thread that waits on a pCPU is moved to another one.
    pub(crate) fn wait_moves(&mut self, track: u32, to: u32, now: Ns) {
        self.wait_ends(track, now);
        self.wait_begins(track, to, now);
    }

    /// Samples become due now, in the middle of a wait.
    pub(crate) fn due_while_waiting(&mut self, track: u32, now: Ns) {
        self.settle(track, now);
        self.start_due(track, now);
    }

    /// A sample will be due at `due` on this track, or has been due for a while: that time is the task's own overrun. A
    /// task without a probe has the sampler [`NONE`].
    pub(crate) fn arm(&mut self, sampler: u32, track: u32, due: Ns, now: Ns) {
        if sampler == NONE {
            return;
        }
        self.settle(track, now);
        let s = &mut self.samplers[sampler as usize];
        s.due = due;
        (s.starts, s.then) = (due, Phase::BeforeEvent);
        s.phase = Phase::Armed;
        s.track = track;
        s.parts = Parts::default();
        s.ran_instead.fill(0);
        if due < now {
            s.parts[Part::Overrun as usize] = now - due;
            s.phase = Phase::BeforeEvent;
            return self.follow(sampler, track, now);
        }
        self.wait_for_start(sampler, track);
    }

    /// The sampler is armed, on this track.
    fn wait_for_start(&mut self, sampler: u32, track: u32) {
        let s = &mut self.samplers[sampler as usize];
        s.track = track;
        let t = &mut self.tracks[track as usize];
        t.armed.push(sampler);
        t.next_due = t.next_due.min(s.starts);
    }

    /// The task has come to its first instruction, and works until `ns` from now. This time does not count: the sample
    /// has what came before it, and what comes after it.
    pub(crate) fn works(&mut self, sampler: u32, ns: Ns, now: Ns) {
        let phase = self.samplers.get(sampler as usize).map(|s| s.phase);
        if !matches!(phase, Some(RUNNABLE | Phase::Acting)) {
            return;
        }
        self.flush(sampler, now);
        let s = &mut self.samplers[sampler as usize];
        s.due += ns;
        (s.starts, s.then) = (now + ns, RUNNABLE);
        s.phase = Phase::Armed;
        let track = s.track;
        self.wait_for_start(sampler, track);
    }

    /// Begins a round trip now, on its caller's track; in an action it is a leg of that. A caller without a probe has
    /// the sampler [`NONE`].
    pub(crate) fn call(&mut self, sampler: u32, track: u32, now: Ns) {
        if sampler == NONE {
            return;
        }
        if self.samplers[sampler as usize].phase != Phase::Idle {
            return self.leg(sampler, RoundTripStage::Flight, track, now);
        }
        self.start(sampler, Phase::On(RoundTripStage::Flight), track, now);
    }

    /// A task begins an action, which is measured to its end, on this track.
    pub(crate) fn begin(&mut self, sampler: u32, track: u32, now: Ns) {
        if sampler == NONE {
            return;
        }
        self.start(sampler, Phase::Acting, track, now);
    }

    /// A sample begins now, in this phase.
    fn start(&mut self, sampler: u32, phase: Phase, track: u32, now: Ns) {
        let s = &mut self.samplers[sampler as usize];
        s.due = now;
        s.phase = phase;
        s.parts = Parts::default();
        s.ran_instead.fill(0);
        self.follow(sampler, track, now);
    }

    /// Moves a round trip to another leg, on this track.
    pub(crate) fn leg(&mut self, sampler: u32, leg: RoundTripStage, track: u32, now: Ns) {
        if sampler == NONE {
            return;
        }
        self.flush(sampler, now);
        self.samplers[sampler as usize].phase = Phase::On(leg);
        self.follow(sampler, track, now);
    }

    /// The task of an action gets or loses its (v)CPU, on this track.
    pub(crate) fn acts(&mut self, sampler: u32, works: bool, track: u32, now: Ns) {
        if sampler == NONE {
            return;
        }
        let (from, to) = match works {
            true => (RUNNABLE, Phase::Acting),
            false => (Phase::Acting, RUNNABLE),
        };
        // While a call is under way the task waits for the answer, and does not work.
        if self.samplers[sampler as usize].phase == from {
            self.flush(sampler, now);
            self.samplers[sampler as usize].phase = to;
            self.follow(sampler, track, now);
        }
    }

    /// Starts every sample of the track that is due by `now`.
    #[cold]
    fn start_due(&mut self, track: u32, now: Ns) {
        let t = &mut self.tracks[track as usize];
        let mut next = Ns::MAX;
        let mut i = 0;
        while i < t.armed.len() {
            let s = &mut self.samplers[t.armed[i] as usize];
            if s.starts > now {
                next = next.min(s.starts);
                i += 1;
                continue;
            }
            t.armed.swap_remove(i);
            s.phase = s.then;
            s.snapshot = t.spent;
            // The current state began before the sample was due, or at that moment.
            debug_assert!(s.starts >= t.since, "a sample was due in a state that is over");
            s.snapshot[t.state as usize] += s.starts - t.since;
            s.ran_snapshot.copy_from_slice(&t.ran_instead);
        }
        t.next_due = next;
    }

    /// The event reached the task, which is runnable from now on, on this track.
    pub(crate) fn event(&mut self, sampler: u32, track: u32, now: Ns) {
        if sampler == NONE {
            return;
        }
        let s = &self.samplers[sampler as usize];
        match s.phase {
            Phase::Idle => return,
            Phase::Armed => self.start_due(s.track, now),
            _ => {}
        }
        self.flush(sampler, now);
        self.samplers[sampler as usize].phase = RUNNABLE;
        self.follow(sampler, track, now);
    }

    /// The runnable task moved to another track.
    pub(crate) fn moved(&mut self, sampler: u32, track: u32, now: Ns) {
        self.start_works(sampler, now);
        let s = &self.samplers[sampler as usize];
        let from = s.track;
        if from == track {
            return;
        }
        match s.phase {
            RUNNABLE => {
                self.flush(sampler, now);
                self.follow(sampler, track, now);
            }
            Phase::Armed if s.then == RUNNABLE => {
                self.tracks[from as usize].armed.retain(|&other| other != sampler);
                self.wait_for_start(sampler, track);
            }
            _ => {}
        }
    }

    /// Time counts again, if the task's work by the clock has ended by `now`.
    fn start_works(&mut self, sampler: u32, now: Ns) {
        let s = &self.samplers[sampler as usize];
        if s.phase == Phase::Armed && s.then == RUNNABLE && s.starts <= now {
            self.start_due(s.track, now);
        }
    }

    /// Completes the sample: at the first instruction, or at the end of an action. `None` if there is no open sample.
    #[inline]
    pub(crate) fn sample(&mut self, sampler: u32, now: Ns) -> Option<Sample<'_>> {
        self.start_works(sampler, now);
        let phase = self.samplers[sampler as usize].phase;
        if !matches!(phase, RUNNABLE | Phase::Acting) {
            return None;
        }
        self.flush(sampler, now);
        let s = &mut self.samplers[sampler as usize];
        s.phase = Phase::Idle;
        let latency = now - s.due;
        debug_assert_eq!(s.parts.iter().sum::<Ns>(), latency, "parts add up to the sample");
        // Of a wait that began before the sample was due, only the whole is known: the part that counts is shared out
        // in proportion to what ran in all of it.
        let waited = [Part::WakeToRun, Part::PreemptedToRun, Part::Throttled, Part::CState]
            .iter()
            .map(|p| s.parts[*p as usize])
            .sum::<Ns>();
        let ran = s.ran_instead.iter().sum::<Ns>();
        if ran > waited {
            for r in &mut s.ran_instead {
                *r = (u128::from(*r) * u128::from(waited) / u128::from(ran)) as Ns;
            }
        }
        Some(Sample { due: s.due, latency, parts: &s.parts, ran_instead: &s.ran_instead })
    }

    /// Ends a sample at the end of the run: as much of it as there is. `None` if none is due.
    pub(crate) fn close(&mut self, sampler: u32, now: Ns) -> Option<Sample<'_>> {
        let s = &self.samplers[sampler as usize];
        if s.phase == Phase::Idle || s.due > now || (s.phase == Phase::Armed && s.starts > now) {
            return None;
        }
        if s.phase == Phase::Armed {
            self.start_due(s.track, now);
        }
        // It ends as it stands: what the states mean in its last phase counts.
        self.flush(sampler, now);
        let track = self.samplers[sampler as usize].track;
        self.follow(sampler, track, now);
        self.samplers[sampler as usize].phase = RUNNABLE;
        self.sample(sampler, now)
    }

    /// Adds the time since the snapshot to the parts.
    fn flush(&mut self, sampler: u32, now: Ns) {
        self.settle(self.samplers[sampler as usize].track, now);
        let s = &mut self.samplers[sampler as usize];
        let t = &self.tracks[s.track as usize];
        let meaning = s.phase.meaning();
        for (i, part) in meaning.iter().enumerate() {
            s.parts[*part as usize] += t.spent[i] - s.snapshot[i].min(t.spent[i]);
        }
        // The state in progress: its start may lie before the snapshot, which then already
        // counts part of it.
        let i = t.state as usize;
        let counted = s.snapshot[i].saturating_sub(t.spent[i]);
        s.parts[meaning[i] as usize] += now - t.since - counted;
        for ((sum, snap), &ran) in
            s.ran_instead.iter_mut().zip(s.ran_snapshot.iter()).zip(t.ran_instead.iter())
        {
            *sum += ran - snap;
        }
    }

    fn follow(&mut self, sampler: u32, track: u32, now: Ns) {
        self.settle(track, now);
        let t = &self.tracks[track as usize];
        let s = &mut self.samplers[sampler as usize];
        s.track = track;
        s.snapshot = t.spent;
        s.snapshot[t.state as usize] += now - t.since;
        s.ran_snapshot.copy_from_slice(&t.ran_instead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_states_between_due_and_first_instruction() {
        let mut t = Tracks::new(2, 1);
        let track = t.add_track();
        t.runs(0, 0, 0);
        let s = t.add_sampler();
        t.set(track, State::Run, 5);
        t.set(track, State::Asleep, 10);
        t.arm(s, track, 100, 10);
        t.set(track, State::Preempted, 40); // not due yet: counts from 100 on
        t.wait_begins(track, 0, 40);
        t.idles(0, 40);
        t.set(track, State::Switch, 130);
        t.wait_ends(track, 130);
        t.set(track, State::GuestIrq, 135);
        t.event(s, track, 140);
        t.set(track, State::Run, 140);
        t.set(track, State::GuestSwitch, 150);
        t.set(track, State::Run, 153);
        let sample = t.sample(s, 153).expect("a sample was armed");
        assert_eq!(sample.latency, 53);
        let mut want = Parts::default();
        want[Part::PreemptedToRun as usize] = 30;
        want[Part::HostSwitch as usize] = 5;
        want[Part::GuestIrq as usize] = 5;
        want[Part::GuestWait as usize] = 10;
        want[Part::GuestSwitch as usize] = 3;
        assert_eq!(*sample.parts, want);
        assert_eq!(sample.ran_instead, [0, 30], "no more than the wait");
    }

    #[test]
    fn a_round_trip_takes_its_parts_from_every_track_it_crosses() {
        let mut t = Tracks::new(1, 1);
        let (caller, server) = (t.add_track(), t.add_track());
        let s = t.add_sampler();
        t.set(caller, State::Run, 5);
        t.call(s, caller, 10);
        t.set(caller, State::ExitEntry, 10);
        t.leg(s, RoundTripStage::Queued, server, 14);
        t.set(server, State::Run, 14);
        t.leg(s, RoundTripStage::Served, server, 20);
        t.set(server, State::Preempted, 23);
        t.set(server, State::Run, 30);
        t.leg(s, RoundTripStage::Flight, server, 31);
        t.set(caller, State::Asleep, 14);
        t.leg(s, RoundTripStage::Flight, caller, 33);
        t.event(s, caller, 36);
        t.set(caller, State::WakeToRun, 36);
        let sample = t.sample(s, 40).expect("a call was made");
        assert_eq!((sample.due, sample.latency), (10, 30));
        let mut want = Parts::default();
        want[Part::EntryExit as usize] = 4;
        want[Part::ServiceQueue as usize] = 6;
        want[Part::Service as usize] = 3 + 1;
        want[Part::PreemptedToRun as usize] = 7;
        want[Part::Delivery as usize] = 2 + 3;
        want[Part::WakeToRun as usize] = 4;
        assert_eq!(*sample.parts, want);
    }

    #[test]
    fn a_task_that_moves_takes_its_sample_along() {
        let mut t = Tracks::new(1, 1);
        let (a, b) = (t.add_track(), t.add_track());
        let s = t.add_sampler();
        t.set(b, State::Run, 1);
        t.arm(s, a, 10, 1);
        t.event(s, b, 17);
        t.set(b, State::WakeToRun, 20);
        t.set(b, State::Run, 29);
        let sample = t.sample(s, 29).expect("a sample was armed");
        assert_eq!(sample.latency, 19);
        assert_eq!(sample.parts[Part::TimerSlack as usize], 7);
        assert_eq!(sample.parts[Part::GuestWait as usize], 3);
        assert_eq!(sample.parts[Part::WakeToRun as usize], 9);
    }
}
