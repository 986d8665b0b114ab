//! The server that an ivshmem device with a doorbell connects to (QEMU, docs/specs/ivshmem-spec).
//!
//! Each connection gets its own window and doorbell: no VM shares memory with another. Nothing is read from the client;
//! the kernel tells its process and user.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use vcoop_abi::window::Doorbell;
use vcoop_threads::Peer;

use crate::map::Window;

/// Size of a window: 127 vCPUs.
const BYTES: u64 = 1 << 20;

/// Most connections at a time.
const MOST: usize = 512;
/// The last connections, this many, are for users who have fewer than this many. Under libvirt all VMs have one user.
const RESERVED: usize = 128;

/// Time limit for a client to read its messages.
const PATIENCE: Duration = Duration::from_secs(1);

/// Wait after an `accept` that failed, for example for lack of file descriptors: the connection is still pending, and
/// an immediate retry would use a whole CPU.
const PAUSE: Duration = Duration::from_millis(100);

/// Version of the protocol.
const VERSION: i64 = 0;
/// The host's number among the peers, and the client's.
const HOST: i64 = 0;
const CLIENT: i64 = 1;

/// The window and doorbell of a VMM.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The window.
    pub window: Arc<Window>,
    /// An eventfd that the guest rings.
    pub bell: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// The connected process, held while it runs: after that its number may be another process's, and another process
    /// may hold its end of the connection.
    process: OwnedFd,
    user: u32,
    offer: Offer,
}

impl Connection {
    /// Whether the client is still there.
    fn lives(&self) -> bool {
        let mut fds = [
            PollFd::new(&self.stream, PollFlags::RDHUP),
            PollFd::new(&self.process, PollFlags::IN),
        ];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Either event means that the client has gone.
        !matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }
}

type Connections = Mutex<BTreeMap<u32, Connection>>;

/// Serves windows. Dropping it closes the socket, and no doorbell is heard any more.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    listener: OwnedFd,
    connections: Arc<Connections>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves those who connect to `listener`, whose path is `socket`. `refused` is told why a client, with this process
    /// id, is given no window: all that the client sees is that its connection ends. It is not told the same reason
    /// twice in a row.
    ///
    /// # Errors
    ///
    /// No thread can be made.
    pub fn start(
        socket: &Path,
        listener: UnixListener,
        refused: impl Fn(u32, &str) + Send + 'static,
    ) -> io::Result<Self> {
        let own = listener.try_clone()?;
        let connections: Arc<Connections> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (all, ends) = (connections.clone(), stop.clone());
        let thread = thread::Builder::new().name("windows".to_owned());
        let thread = thread.spawn(move || accept(&listener, &all, &ends, &refused))?;
        Ok(Self {
            socket: socket.to_owned(),
            listener: own.into(),
            connections,
            stop,
            thread: Some(thread),
        })
    }

    /// The offer to the VMM with this process id; `None`: it is not connected.
    pub fn offer(&self, pid: u32) -> Option<Offer> {
        let mut all = lock(&self.connections);
        if !all.get(&pid)?.lives() {
            all.remove(&pid);
        }
        all.get(&pid).map(|connection| connection.offer.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Ends its wait.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = fs::remove_file(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(connections: &Connections) -> MutexGuard<'_, BTreeMap<u32, Connection>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(
    listener: &UnixListener,
    all: &Connections,
    stop: &AtomicBool,
    refused: &dyn Fn(u32, &str),
) {
    let mut said = None;
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        lock(all).retain(|_, connection| connection.lives());
        // The VMs of a process without a number here are not found here either.
        let Ok(Peer { pid: Some(pid), user }) = Peer::of(&stream) else { continue };
        let pid = pid.get();
        let served = match has_room(lock(all).values().map(|connection| connection.user), user) {
            true => serve(stream, pid, user).map_err(|e| e.to_string()),
            false => Err(format!("too many clients are connected, or too many of user {user}")),
        };
        let why = served.map(|connection| lock(all).insert(pid, connection)).err();
        if let Some(why) = &why
            && said.as_ref() != Some(why)
        {
            refused(pid, why);
        }
        said = why;
    }
}

/// Whether a user may have one more connection, when `users` have one each.
fn has_room(users: impl ExactSizeIterator<Item = u32>, user: u32) -> bool {
    let all = users.len();
    all < MOST && (all < MOST - RESERVED || users.filter(|one| *one == user).count() < RESERVED)
}

/// Gives a client its window and its doorbell.
fn serve(stream: UnixStream, pid: u32, user: u32) -> io::Result<Connection> {
    let number = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    let memory = memory()?;
    memory.set_len(BYTES)?;
    // A client that makes it shorter, or longer, would take it from under us.
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let window = Window::map(&memory, 0)?;
    let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (bell, theirs) = (new()?, new()?);
    stream.set_write_timeout(Some(PATIENCE))?;
    tell(&stream, VERSION, None)?;
    tell(&stream, CLIENT, None)?;
    tell(&stream, -1, Some(memory.as_fd()))?;
    tell(&stream, HOST, Some(bell.as_fd()))?;
    // It is never rung: the guest reads the window at its next event.
    tell(&stream, CLIENT, Some(theirs.as_fd()))?;
    window.offer(Doorbell { valid: true, peer: HOST as u16, vector: 0 });
    let offer = Offer { window: Arc::new(window), bell: Arc::new(bell) };
    Ok(Connection { stream, process, user, offer })
}

/// An empty file in memory that can be sealed. A host may refuse files in memory that could be executed
/// (`vm.memfd_noexec`); kernels before 6.3 do not know the flag.
fn memory() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match memfd_create("vcoop-window", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("vcoop-window", flags),
        made => made,
    };
    Ok(made?.into())
}

fn tell(stream: &UnixStream, message: i64, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = message.to_le_bytes();
    let files = file.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    match sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)? {
        8 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, RESERVED, Server, has_room, lock, serve};
    use crate::map::Window;
    use rustix::io::Errno;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::atomic::Ordering;

    /// One message, as a VMM reads it.
    fn read(stream: &UnixStream) -> (i64, Option<OwnedFd>) {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let read = recvmsg(stream, &mut parts, &mut control, RecvFlags::empty()).unwrap();
        assert_eq!(read.bytes, 8);
        let mut files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files.collect::<Vec<_>>()),
            _ => None,
        });
        (i64::from_le_bytes(bytes), files.next().and_then(|mut files| files.pop()))
    }

    fn started(dir: &tempfile::TempDir) -> Server {
        let socket = dir.path().join("window.sock");
        Server::start(&socket, UnixListener::bind(&socket).unwrap(), |_, why| panic!("{why}"))
            .unwrap()
    }

    #[test]
    fn why_a_client_gets_no_window_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("window.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let connect = || UnixStream::connect(&socket).unwrap();
        // They have gone before they are served.
        (0..3).for_each(|_| drop(connect()));
        let (tell, told) = std::sync::mpsc::channel();
        let refused = move |pid, why: &str| tell.send((pid, why.to_owned())).unwrap();
        let server = Server::start(&socket, listener, refused).unwrap();
        let client = connect();
        assert_eq!(read(&client).0, 0, "it is served after them");
        drop(server);
        let told: Vec<(u32, String)> = told.into_iter().collect();
        assert_eq!(told, [(std::process::id(), Errno::PIPE.to_string())]);
    }

    #[test]
    fn a_client_gets_a_window_that_cannot_shrink_and_a_bell_that_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let server = started(&dir);
        let me = std::process::id();
        assert!(server.offer(me).is_none());
        let client = UnixStream::connect(dir.path().join("window.sock")).unwrap();
        let numbers: Vec<(i64, Option<OwnedFd>)> = (0..5).map(|_| read(&client)).collect();
        let told: Vec<(i64, bool)> = numbers.iter().map(|(n, fd)| (*n, fd.is_some())).collect();
        assert_eq!(told, [(0, false), (1, false), (-1, true), (0, true), (1, true)]);
        let mut files = numbers.into_iter().filter_map(|(_, fd)| fd);
        let memory = File::from(files.next().unwrap());
        assert!(memory.set_len(0).is_err() && memory.set_len(1 << 21).is_err());
        let guest = Window::map(&memory, 0).unwrap();
        let offer = loop {
            match server.offer(me) {
                Some(offer) => break offer,
                None => std::thread::yield_now(),
            }
        };
        offer.window.host(5).unwrap().ticket.store(3, Ordering::Release);
        assert!(guest.has_host() && guest.host(5).unwrap().ticket() == 3);
        rustix::io::write(files.next().unwrap(), &1_u64.to_ne_bytes()).unwrap();
        let mut rung = [0; 8];
        assert_eq!(rustix::io::read(&*offer.bell, &mut rung).unwrap(), 8);
        drop(client);
        // A process that another test has begun to start may have the socket for a moment.
        let began = std::time::Instant::now();
        while server.offer(me).is_some() {
            assert!(began.elapsed().as_secs() < 10, "it is gone");
            std::thread::yield_now();
        }
        drop(server);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_connection_ends_with_the_process_that_made_it_whoever_holds_it_then() {
        let dir = tempfile::tempdir().unwrap();
        let server = started(&dir);
        let mut vmm = std::process::Command::new("cat");
        let mut vmm = vmm.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let connection = serve(ours, vmm.id(), 7).unwrap();
        lock(&server.connections).insert(vmm.id(), connection);
        assert!(server.offer(vmm.id()).is_some());
        vmm.kill().unwrap();
        vmm.wait().unwrap();
        assert!(server.offer(vmm.id()).is_none(), "its number may be another's by now");
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        // A user that takes all that it gets, and others with so many.
        let has_room = |greedy, others| {
            let users = [vec![1; greedy], vec![2; others]].concat();
            [1, 2].map(|user| has_room(users.iter().copied(), user))
        };
        let most = (0..).find(|greedy| !has_room(*greedy, 0)[0]).unwrap();
        assert_eq!(most, MOST - RESERVED);
        assert!((0..RESERVED).all(|others| has_room(most, others) == [false, true]));
        assert_eq!(has_room(most, RESERVED), [false; 2]);
    }
}
