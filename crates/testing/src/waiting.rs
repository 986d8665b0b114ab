//! Threads that do nothing, to be looked at and changed.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use vcoop_threads::gettid;

/// A thread that waits to be let go. Dropping it lets it go.
#[derive(Debug)]
pub struct Waiting {
    /// Its number.
    pub tid: i32,
    leave: Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiting {
    /// Starts one.
    pub fn start() -> Self {
        let (tell, told) = mpsc::channel();
        let (leave, left) = mpsc::channel();
        let thread = thread::spawn(move || {
            tell.send(gettid()).expect("its number is waited for");
            // Nothing is sent: this ends with the other side.
            let _: Result<(), _> = left.recv();
        });
        Self { tid: told.recv().expect("it says its number"), leave, thread }
    }

    /// Lets it go, and waits until it has ended. The kernel may take a moment more to forget it.
    pub fn end(self) {
        drop(self.leave);
        self.thread.join().expect("it does nothing");
    }
}
