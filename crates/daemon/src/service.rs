//! The owner: the place, the engine, and the control socket.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vcoop_model::plan::PolicyPlan;
use vcoop_policy::config::Ns;
use vcoop_service::metrics::{Listen, MetricsServer};
use vcoop_service::{FolderError, accepted, bind};
use vcoop_text::about;
use vcoop_threads::tsc::measured_khz;
use vcoop_threads::{Peer, lift_real_time_limit};
use vcoop_vmm::{Proc, Vm};
use vcoop_window::{Offer, Server};

use crate::config::Windows;
use crate::engine::{Engine, Shares, Target, found_window};
use crate::metrics;
use crate::notes::notes;
use crate::policy;
use crate::protocol::{Refusal, Request, Response, VmId, VmStatus};
use crate::run_folder::{RestoreReport, RunFolder, RunFolderError};

/// Longest request.
const MOST_REQUEST: u64 = 64 << 10;
/// Most connections at a time.
const MOST_CONNECTIONS: u64 = 40;
/// With more than these, a client that would stay connected is refused, so that the others can still ask and detach.
const MOST_ATTACHED: u64 = 32;

/// Who decides about the policy of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A client: number of its connection, and its process, which may have no number in this PID namespace.
    Connection { number: u64, pid: Option<NonZeroU32> },
    /// A rule, with this policy and these settings. The policy may have ended by itself.
    Rule(String, Vec<String>),
    /// A client has detached the VM: rules leave it alone.
    Nobody,
}

/// State shared by connections.
#[derive(Debug)]
pub(crate) struct Shared {
    engine: Engine,
    proc: Proc,
    /// Serves windows to VMMs, if configured.
    windows: Mutex<Option<Server>>,
    /// Whether windows in memory of guests are used.
    guest_memory: AtomicBool,
    /// Held while a policy is applied or taken back, so that `owners` agrees with what is in force. `scx_vcoop` is
    /// loaded with it held, because a host has only one.
    changing: Mutex<()>,
    /// Who applied the policy of each VM.
    owners: Mutex<BTreeMap<VmId, Owner>>,
    /// VMs that a client has detached, which rules leave alone from then on.
    detached: Mutex<BTreeSet<VmId>>,
    connections: AtomicU64,
    next: AtomicU64,
    stop: AtomicBool,
}

/// The owner of this host's vCPU threads. Dropping it restores everything.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    socket: PathBuf,
    /// Where clients connect; `accepts` is the thread that accepts them.
    listener: OwnedFd,
    accepts: Option<JoinHandle<()>>,
}

impl Service {
    /// Path of the control socket in a folder.
    pub(crate) fn socket_in(dir: &Path) -> PathBuf {
        dir.join("control.sock")
    }

    /// Becomes the owner of a folder. Also returns what a previous owner had left changed.
    ///
    /// # Errors
    ///
    /// [`RunFolderError`]; [`FolderError::Busy`] if there is an owner.
    pub fn start(dir: &Path) -> Result<(Self, RestoreReport), RunFolderError> {
        // First: the keeper inherits it.
        raise_limits();
        let place = RunFolder::take(dir)?;
        let (journal, left) = place.journal()?;
        let socket = Self::socket_in(dir);
        let at = |e| FolderError::Io(socket.clone(), e);
        let engine = Engine::start(place, journal).map_err(at)?;
        let listener = bind(&socket).map_err(at)?;
        let shared = Arc::new(Shared::new(engine));
        let (clients, own) = (shared.clone(), listener.try_clone().map_err(at)?);
        let named = thread::Builder::new().name("control".to_owned());
        let accepts = named.spawn(move || accept(&clients, &listener)).map_err(at)?;
        Ok((Self { shared, socket, listener: own.into(), accepts: Some(accepts) }, left))
    }

    /// Whether the engine still runs.
    pub fn is_alive(&self) -> bool {
        self.shared.engine.is_alive()
    }

    /// How the engine has ended, in words.
    pub fn end_of_engine(&self) -> String {
        self.shared.engine.end_of()
    }

    /// Serves metrics until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// The listening socket cannot be made.
    pub fn serve_metrics(&self, listen: &Listen) -> io::Result<MetricsServer> {
        let shared = self.shared.clone();
        metrics::serve(listen, move || shared.engine.status(None))
    }

    /// Serves windows to VMMs as long as this lives (see [`Server`]), and sets whether windows in guest memory are
    /// used.
    ///
    /// # Errors
    ///
    /// The listening socket cannot be made.
    pub fn serve_windows(&self, windows: &Windows) -> io::Result<()> {
        let refused = |pid, why: &str| tracing::warn!("process {pid} gets no window: {why}");
        let server = Server::start(&windows.socket, bind(&windows.socket)?, refused)?;
        if let Some(group) = windows.group {
            std::os::unix::fs::chown(&windows.socket, None, Some(group))?;
            fs::set_permissions(&windows.socket, fs::Permissions::from_mode(0o660))?;
        }
        *self.shared.windows() = Some(server);
        self.shared.guest_memory.store(windows.guest_memory, Ordering::Relaxed);
        Ok(())
    }

    /// Has the engine poll for its next event for so long before it sleeps, on a CPU of its own if there is one. Its
    /// reaction does not include a wake-up then, and no fair thread runs on its CPU meanwhile.
    pub fn busy_poll(&self, time: Ns) {
        self.shared.engine.busy_poll(time);
    }

    /// VMs with a policy in force.
    pub(crate) fn in_force(&self) -> BTreeMap<VmId, VmStatus> {
        let vms = self.shared.engine.status(None).map_or_else(|_| Vec::new(), |status| status.vms);
        vms.into_iter().map(|vm| (vm.vm.clone(), vm)).collect()
    }

    /// Who decides about a VM; `None`: no policy was applied.
    pub(crate) fn owner(&self, id: &VmId) -> Option<Owner> {
        let detached = self.shared.detached().contains(id);
        if detached { Some(Owner::Nobody) } else { self.shared.owners().get(id).cloned() }
    }

    /// Applies a rule's policy.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub(crate) fn apply(
        &self,
        vm: &Vm,
        policy: &str,
        sets: &[String],
    ) -> Result<VmStatus, Refusal> {
        let target = self.shared.target(vm, policy, sets)?;
        let id = VmId::of(vm);
        let _one = self.shared.change();
        if matches!(self.owner(&id), Some(Owner::Connection { .. } | Owner::Nobody)) {
            return Err("somebody has just applied another one, or taken it back"
                .to_owned()
                .into());
        }
        let status = self.shared.engine.attach(target)?;
        self.shared.owners().insert(id, Owner::Rule(policy.to_owned(), sets.to_vec()));
        Ok(status)
    }

    /// Takes a rule's policy back. Returns whether there was one.
    pub(crate) fn take_back(&self, id: &VmId) -> bool {
        let _one = self.shared.change();
        if !matches!(self.owner(id), Some(Owner::Rule(..))) {
            return false;
        }
        self.shared.owners().remove(id);
        self.shared.engine.detach(id.clone()).is_some()
    }

    /// A VM has ended, or its process now runs a VM of another name.
    pub(crate) fn ended(&self, id: &VmId) {
        let _one = self.shared.change();
        self.shared.owners().remove(id);
        self.shared.detached().remove(id);
        self.shared.engine.detach(id.clone());
    }

    /// Lets rules apply again to VMs that were detached.
    pub(crate) fn forget_detached(&self) {
        self.shared.detached().clear();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Ends its wait.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = fs::remove_file(&self.socket);
        if let Some(thread) = self.accepts.take() {
            let _ = thread.join();
        }
        self.shared.engine.end();
        // Clients that are still connected, and those of metrics, have the rest.
        drop(self.shared.windows().take());
    }
}

/// Raises the limit of open files. Each vCPU takes some, and the usual limit of 1024 is for programs that call
/// select(2), which this one does not. Lifts that of real-time CPU time: an engine that polls may not sleep for long.
fn raise_limits() {
    // If it stays, a keeper outlives the engine.
    let _ = lift_real_time_limit();
    let limit = getrlimit(Resource::Nofile);
    // If the kernel refuses, files run out earlier, and the message comes then.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let Some(stream) = accepted(stream) else { continue };
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= MOST_CONNECTIONS {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            // The client gets it although nobody reads its request.
            let _ = send_answer(&stream, &Response::Refused(full(MOST_CONNECTIONS)));
            continue;
        }
        let own = shared.clone();
        let serve = move || {
            let number = own.next.fetch_add(1, Ordering::Relaxed);
            let pid = Peer::of(&stream).ok().and_then(|peer| peer.pid);
            let me = Owner::Connection { number, pid };
            own.serve(&stream, &me);
            own.release(&me);
            own.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().name("client".to_owned()).spawn(serve).is_err() {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Sends an answer.
fn send_answer(mut to: &UnixStream, answer: &Response) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    to.write_all(&text)
}

fn full(most: u64) -> Refusal {
    Refusal::from(format!(
        "{most} clients are connected, and each `vcoop attach` is one\n  remedy: end some, or let rules of `vcoop \
         daemon` apply policies"
    ))
}

impl Shared {
    fn new(engine: Engine) -> Self {
        Self {
            engine,
            proc: Proc::default(),
            windows: Mutex::default(),
            guest_memory: AtomicBool::new(false),
            changing: Mutex::default(),
            owners: Mutex::default(),
            detached: Mutex::default(),
            connections: AtomicU64::new(0),
            next: AtomicU64::new(1),
            stop: AtomicBool::new(false),
        }
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows(&self) -> MutexGuard<'_, Option<Server>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<VmId, Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detached(&self) -> MutexGuard<'_, BTreeSet<VmId>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: &UnixStream, me: &Owner) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match reader.by_ref().take(MOST_REQUEST).read_until(b'\n', &mut line) {
                Ok(n) if n > 0 && line.ends_with(b"\n") => {}
                _ => return,
            }
            let request = serde_json::from_slice(&line);
            let request = request.map_err(|why| format!("not understood: {why}").into());
            let answer = request.and_then(|request| self.answer(request, me));
            let answer = answer.unwrap_or_else(Response::Refused);
            if send_answer(stream, &answer).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Request, me: &Owner) -> Result<Response, Refusal> {
        Ok(match request {
            Request::Status { vm } => Response::Status(Box::new(self.engine.status(vm)?)),
            Request::Attach { vm, policy, sets } => {
                Response::Attached(Box::new(self.attach(&vm, &policy, &sets, me)?))
            }
            Request::Detach { vm } => {
                let _one = self.change();
                // If the client that applied a policy detaches it, the VM is left to the rules. If another one does, no
                // rule may apply the policy again. This is noted before the VM is free, because a look at the VM may
                // come at once.
                if self.owners().get(&vm).is_some_and(|owner| owner != me) {
                    self.detached().insert(vm.clone());
                }
                self.owners().remove(&vm);
                let none = || format!("{}: no policy is applied to it", vm.name);
                let status = self.engine.detach(vm.clone()).ok_or_else(none)?;
                Response::Detached(Box::new(status))
            }
        })
    }

    fn attach(
        &self,
        id: &VmId,
        policy: &str,
        sets: &[String],
        me: &Owner,
    ) -> Result<VmStatus, Refusal> {
        let _one = self.change();
        self.is_free_for(id, me)?;
        if self.connections.load(Ordering::Acquire) > MOST_ATTACHED {
            return Err(full(MOST_ATTACHED));
        }
        let scan = self.proc.scan().map_err(|e| format!("/proc: {e}"))?;
        let vm = scan.vms.iter().find(|vm| VmId::of(vm) == *id);
        let vm = vm.ok_or_else(|| format!("{}: it has ended", id.name))?;
        let target = self.target(vm, policy, sets)?;
        let status = self.engine.attach(target)?;
        self.owners().insert(id.clone(), me.clone());
        Ok(status)
    }

    /// Whether `me` may apply a policy to a VM: no other client has one on it.
    fn is_free_for(&self, id: &VmId, me: &Owner) -> Result<(), Refusal> {
        let owner = self.owners().get(id).cloned();
        let Some(Owner::Connection { pid, .. }) = owner.filter(|owner| owner != me) else {
            return Ok(());
        };
        // One that has ended by itself prevents nothing.
        let Some(held) = self.engine.status(Some(id.clone()))?.vms.pop() else {
            return Ok(());
        };
        let who = pid.map_or_else(
            || "a process of another PID namespace".to_owned(),
            |pid| format!("process {pid}"),
        );
        Err(Refusal::from(format!(
            "{}: {who} applies {} to it\n  remedy: end that process, or {}",
            id.name,
            held.policy,
            about("vcoop detach", &id.name, "")
        )))
    }

    /// A connection is closed: its policies are taken back.
    fn release(&self, me: &Owner) {
        let _one = self.change();
        let mine: Vec<VmId> = {
            let mut owners = self.owners();
            let mine = owners.iter().filter(|(_, owner)| *owner == me);
            let mine: Vec<VmId> = mine.map(|(id, _)| id.clone()).collect();
            owners.retain(|_, owner| owner != me);
            mine
        };
        for id in mine {
            let _ = self.engine.detach(id);
        }
    }

    /// What the engine needs to drive a VM.
    fn target(&self, vm: &Vm, policy: &str, sets: &[String]) -> Result<Target, Refusal> {
        if vm.vcpus.is_empty() {
            return Err(Refusal::from(format!(
                "{}: the threads of its vCPUs are not known\n  remedy: `vcoop vms` says what names \
                 them",
                vm.name
            )));
        }
        let plan = policy::policy(&policy::living(vm), policy, sets)?;
        if matches!(plan.policy, PolicyPlan::Vanilla) && plan.governor(0).is_none() {
            return Err(Refusal::usage(format!(
                "{policy} is what a VM has when no policy is applied to it\n  remedy: {}",
                about("vcoop detach", &vm.name, "")
            )));
        }
        let shares =
            if policy::needs_driver(&plan) { Some(self.shares(vm, policy)?) } else { None };
        let timers = policy::timers(vm, &plan).map_err(|e| e.why)?;
        let (id, vcpus, notes) = (VmId::of(vm), vm.vcpus.clone(), notes(vm, &[&plan.policy]));
        let plan = Box::new(plan);
        Ok(Target { vm: id, accel: vm.accel, vcpus, plan, timers, shares, notes })
    }

    /// What a guest with a registered driver shares with this host, for a policy that needs it.
    fn shares(&self, vm: &Vm, policy: &str) -> Result<Shares, Refusal> {
        /// Measuring it takes a while.
        static HOST_KHZ: OnceLock<u32> = OnceLock::new();
        let pid = vm.pid;
        // The guests of several VMs would report on the vCPUs of one.
        if !vm.is_alone {
            return Err(Refusal::missing(format!(
                "{policy} talks with the guest's driver, and process {pid} runs several VMs, whose windows cannot be \
                 told apart\n  remedy: run {} in a process of its own",
                vm.name
            )));
        }
        let none = || policy::no_driver(&vm.name, policy);
        let offer = self.windows().as_ref().and_then(|server| server.offer(pid));
        let (window, address, bell) = match offer {
            Some(Offer { window, bell }) => {
                let address = vcoop_window::address(pid, &window).ok().flatten();
                (window, address, Some(bell))
            }
            None => {
                let is_used = self.guest_memory.load(Ordering::Relaxed);
                let (window, address) = found_window(pid, is_used)?.ok_or_else(none)?;
                (window, address, None)
            }
        };
        let host_khz = *HOST_KHZ.get_or_init(measured_khz);
        let shares = Shares { window, address, bell, host_khz };
        if shares.window.guest_side().is_registered() { Ok(shares) } else { Err(none()) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    use super::{MOST_ATTACHED, MOST_CONNECTIONS, Owner, Shared, accept, raise_limits};
    use crate::client::Client;
    use crate::engine::Engine;
    use crate::engine::tests::{idle, owned, target};
    use crate::protocol::{Request, Response, VmId};
    use crate::service::Service;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use vcoop_threads::gettid;

    #[test]
    fn as_many_files_as_may_be_can_be_opened() {
        let limit = getrlimit(Resource::Nofile);
        let lower = limit.current.map(|files| files - 1);
        setrlimit(Resource::Nofile, Rlimit { current: lower, ..limit }).unwrap();
        raise_limits();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }

    /// An engine in a folder, whose keeper does nothing.
    fn shared(dir: &tempfile::TempDir) -> Shared {
        let (keeper, place, journal) = owned(dir, idle);
        Shared::new(Engine::with(keeper, place, journal).unwrap())
    }

    fn connection(number: u64) -> Owner {
        Owner::Connection { number, pid: NonZeroU32::new(70 + number as u32) }
    }

    #[test]
    fn who_holds_a_vm_keeps_it_until_somebody_detaches_it() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared(&dir);
        let target = target(gettid());
        let vm = target.vm.clone();
        let [first, second] = [1, 2].map(connection);
        let attach = |me| {
            let (policy, sets) = ("static".to_owned(), Vec::new());
            let request = Request::Attach { vm: vm.clone(), policy, sets };
            shared.answer(request, me).unwrap_err().why
        };
        shared.owners().insert(vm.clone(), first.clone());
        let ended = format!("{}: it has ended", vm.name);
        assert_eq!(attach(&second), ended, "what the first applied has ended");
        shared.engine.attach(target).unwrap();
        let held = attach(&second);
        assert!(held.contains("process 71 applies vanilla") && held.contains("vcoop detach web"));
        assert_eq!(attach(&first), ended, "its own may be replaced");
        shared.owners().insert(vm.clone(), Owner::Rule("static".to_owned(), Vec::new()));
        assert_eq!(attach(&second), ended, "a rule's may be replaced");
    }

    #[test]
    fn who_finds_too_many_clients_is_told_so_and_the_last_places_are_for_questions() {
        let dir = tempfile::tempdir().unwrap();
        let shared = Arc::new(shared(&dir));
        let listener = UnixListener::bind(Service::socket_in(dir.path())).unwrap();
        std::thread::spawn(move || accept(&shared, &listener));
        let mut clients = Vec::new();
        let mut ask = |request: &Request| {
            let mut client = Client::connect(dir.path()).unwrap().unwrap();
            let answer = client.ask(request).unwrap();
            clients.push(client);
            match answer {
                Response::Refused(why) => why.why,
                _ => String::new(),
            }
        };
        let vm = VmId { pid: 1, start_ticks: 1, name: "web".to_owned() };
        let (policy, sets) = ("static".to_owned(), Vec::new());
        let attach = Request::Attach { vm, policy, sets };
        for _ in 0..MOST_ATTACHED {
            assert!(ask(&attach).contains("it has ended"));
        }
        assert!(ask(&attach).contains("32 clients are connected"));
        for _ in MOST_ATTACHED + 1..MOST_CONNECTIONS {
            assert_eq!(ask(&Request::Status { vm: None }), "");
        }
        for _ in 0..20 {
            assert!(ask(&Request::Status { vm: None }).contains("40 clients are connected"));
        }
    }

    #[test]
    fn no_window_is_taken_for_that_of_another_vm_of_its_process() {
        let (dir, tree) = (tempfile::tempdir().unwrap(), vcoop_testing::Tree::default());
        let shared = shared(&dir);
        // No process has this number.
        let of = |path: &str| format!("proc/5000000/{path}");
        let stat = "5000000 (qemu-kvm) S 1 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 2 0 500 0";
        tree.put(&of("stat"), stat);
        tree.put(&of("task/5000000/stat"), stat);
        tree.put(&of("cmdline"), "qemu-kvm");
        let link = |path: &str, to| {
            std::fs::create_dir_all(tree.path(&of("fd"))).unwrap();
            std::os::unix::fs::symlink(to, tree.path(&of(path))).unwrap();
        };
        link("exe", "/usr/libexec/qemu-kvm");
        link("fd/7", "anon_inode:kvm-vcpu:0");
        let why = |fd| {
            link(&format!("fd/{fd}"), "anon_inode:kvm-vm");
            tree.put(&format!("debugfs/kvm/5000000-{fd}/vcpu0/pid"), "0");
            let proc = vcoop_vmm::Proc::at(tree.path("proc")).debugfs(tree.path("debugfs"));
            let why = |vm| shared.shares(vm, "dynamic").unwrap_err().why;
            let several = |vm| why(vm).contains("several VMs");
            proc.scan().unwrap().vms.iter().map(several).collect::<Vec<_>>()
        };
        assert_eq!([9, 12].map(why), [vec![false], vec![true; 2]]);
    }

    #[test]
    fn a_vm_that_somebody_else_detaches_is_let_be_whoever_held_it() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared(&dir);
        let vm = VmId { pid: 1, start_ticks: 1, name: "web".to_owned() };
        let rule = Owner::Rule("static".to_owned(), Vec::new());
        let [first, second] = [1, 2].map(connection);
        for (holds, let_be) in [(rule, true), (first.clone(), true), (second.clone(), false)] {
            shared.owners().insert(vm.clone(), holds.clone());
            shared.detached().clear();
            let _ = shared.answer(Request::Detach { vm: vm.clone() }, &second);
            assert_eq!(shared.detached().contains(&vm), let_be, "{holds:?}");
            assert!(shared.owners().is_empty());
        }
        shared.owners().insert(vm.clone(), first.clone());
        shared.release(&first);
        assert!(
            shared.owners().is_empty() && shared.detached().is_empty(),
            "it has ended by itself"
        );
    }
}
