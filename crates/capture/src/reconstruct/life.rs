//! Threads start, are renamed and exit.

use crate::CaptureError;
use crate::line::Record;

use super::Reconstruction;
use super::cpu::Current;
use super::thread::{Act, Building, State};

impl Reconstruction {
    pub(super) fn living(&self, tid: i32) -> Option<usize> {
        self.live.get(&tid).map(|&t| t as usize)
    }

    /// The living thread with this id, created if needed; `None` for idle and unknown ones.
    pub(super) fn thread(&mut self, tid: i32) -> Result<Option<usize>, CaptureError> {
        if tid <= 0 {
            return Ok(None);
        }
        match self.living(tid) {
            Some(t) => Ok(Some(t)),
            None => self.born(tid, State::Fresh).map(Some),
        }
    }

    pub(super) fn born(&mut self, tid: i32, state: State) -> Result<usize, CaptureError> {
        if self.threads.len() >= self.limits.max_threads {
            return Err(CaptureError::too_long("threads", "max_threads", self.limits.max_threads));
        }
        let index = self.threads.len();
        self.threads.push(Building::new(tid, state));
        self.live.insert(tid, index as u32);
        Ok(index)
    }

    pub(super) fn fork(
        &mut self,
        r: &Record<'_>,
        child: i32,
        comm: &str,
    ) -> Result<(), CaptureError> {
        if child <= 0 {
            return Ok(());
        }
        self.occupy(r.cpu, r.tid)?;
        // If the id is reused, the exit of its last owner was lost.
        self.end_unseen(child);
        let start = self.start_ns.unwrap_or(self.now);
        let t = self.born(child, State::Asleep { since: start })?;
        let slept = self.now - start;
        match self.waker(r, t) {
            Some(parent) => {
                self.account(r.cpu, self.now);
                self.push(parent, Act::Wake(t as u32));
                self.push(t, Act::Wait { by: parent as u32, slept });
            }
            None => self.push(t, Act::Sleep(slept)),
        }
        self.threads[t].name = comm.chars().take(64).collect();
        self.threads[t].state = State::Runnable { since: self.now };
        Ok(())
    }

    /// If a thread that is not its group's leader execs, it takes the leader's id, and the leader is gone.
    pub(super) fn exec(&mut self, tid: i32, old_tid: i32) {
        if tid == old_tid || tid <= 0 {
            return;
        }
        let Some(t) = self.living(old_tid) else { return };
        self.end_unseen(tid);
        self.live.remove(&old_tid);
        self.live.insert(tid, t as u32);
        self.threads[t].tid = tid;
        if let State::Running { cpu } = self.threads[t].state
            && let Some(Current::Known { tid: current, .. }) =
                self.cpus.get_mut(&cpu).map(|c| &mut c.current)
        {
            *current = tid;
        }
    }

    /// Ends the thread with this id, if it lives; the capture does not show how.
    fn end_unseen(&mut self, tid: i32) {
        let Some(t) = self.living(tid) else { return };
        if let State::Running { cpu } = self.threads[t].state {
            self.lose_current(cpu, None);
        }
        self.end(t);
    }

    pub(super) fn end(&mut self, t: usize) {
        self.threads[t].flush();
        self.threads[t].state = State::Dead;
        self.live.remove(&self.threads[t].tid);
    }
}
