//! VMs of this host by name, and the owner that applies policies to them.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use vcoop_daemon::{
    Client, Refusal, Request, Response, RunFolder, RunFolderError, Service, VmStatus,
};
use vcoop_model::Note;
use vcoop_service::FolderError;
use vcoop_threads::journal::Journal;
use vcoop_vmm::{Proc, Scan, Vm};

use crate::failure::Failure;
use crate::output::note;

/// The VMs of this host.
pub(crate) fn scan() -> Result<Scan, Failure> {
    Proc::default().scan().map_err(|why| unlisted(Path::new("/proc"), &why))
}

/// The processes in a folder like `/proc` cannot be listed.
pub(crate) fn unlisted(root: &Path, why: &io::Error) -> Failure {
    let root = root.display();
    let remedy = match Errno::from_io_error(why) {
        Some(Errno::MFILE) => "allow more open files (ulimit -n)".to_owned(),
        Some(Errno::NFILE) => "allow more open files on this host (sysctl fs.file-max)".to_owned(),
        Some(Errno::NOMEM) => "free memory".to_owned(),
        _ => format!("mount -t proc proc {root}"),
    };
    Failure::Missing(format!("{root}: {why}\n  remedy: {remedy}"))
}

/// The VM with a name or a process id.
pub(crate) fn find(name: &str) -> Result<Vm, Failure> {
    let scan = scan()?;
    let pid = name.parse::<u32>().ok();
    let (named, others): (Vec<Vm>, Vec<Vm>) =
        scan.vms.into_iter().partition(|vm| vm.name == name || Some(vm.pid) == pid);
    let mut named = named.into_iter();
    match (named.next(), named.next()) {
        (Some(vm), None) => Ok(vm),
        (Some(one), Some(other)) => {
            let mut pids = vec![one.pid, other.pid];
            pids.extend(named.map(|vm| vm.pid));
            Err(several(name, &pids))
        }
        (None, _) => {
            let names: Vec<&str> = others.iter().map(|vm| vm.name.as_str()).collect();
            let there = match names.as_slice() {
                [] => "no VM was found on this host; `vcoop vms` says what hides one".to_owned(),
                names => format!("VMs on this host: {}", names.join(", ")),
            };
            Err(Failure::usage(format!("no VM `{name}`\n  {there}")))
        }
    }
}

/// A name is that of several VMs, with these process ids.
pub(crate) fn several(name: &str, pids: &[u32]) -> Failure {
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    let list = list.join(", ");
    Failure::usage(format!(
        "several VMs are called {name}\n  remedy: give the process id of one: {list}"
    ))
}

/// A connection to the owner of this host's vCPU threads.
#[derive(Debug)]
pub(crate) struct Owner {
    client: Client,
    /// This process as the owner, if there was no other. Dropped after the connection.
    _own: Option<Service>,
}

impl Owner {
    /// Connects to the daemon, or becomes the owner if there is none.
    pub(crate) fn connect_or_be(quiet: bool) -> Result<Self, Failure> {
        let dir = RunFolder::usual();
        if let Some(client) = connect(&dir)? {
            return Ok(Self { client, _own: None });
        }
        let (own, left) = match Service::start(&dir) {
            Ok(started) => started,
            // Another process became the owner first.
            Err(RunFolderError::Folder(FolderError::Busy(..))) => {
                std::thread::sleep(Duration::from_millis(200));
                let why = "another vcoop is starting or ending\n  remedy: try it again".to_owned();
                let client = connect(&dir)?.ok_or(Failure::Run(why))?;
                return Ok(Self { client, _own: None });
            }
            Err(why) => return Err(failure(why)),
        };
        if !quiet {
            said(&left).iter().for_each(|line| note(&format!("vcoop: {line}")));
        }
        let client = connect(&dir)?.ok_or_else(|| Failure::run("the owner does not listen"))?;
        Ok(Self { client, _own: Some(own) })
    }

    /// Sends a request.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Response, Failure> {
        answer(&mut self.client, request)
    }
}

/// The VMs with a policy; none if there is no owner.
///
/// # Errors
///
/// There is an owner that does not say.
pub(crate) fn policies() -> Result<Vec<VmStatus>, Note> {
    match ask_owner(&Request::Status { vm: None }) {
        Ok(Some(Response::Status(status))) => Ok(status.vms),
        Ok(_) => Ok(Vec::new()),
        Err(failure) => {
            let text = failure.text();
            let (why, remedy) = text.split_once("\n  remedy: ").unzip();
            let why = why.unwrap_or(&text);
            Err(Note::new(format!("which policies vcoop applies is not known: {why}"), remedy))
        }
    }
}

/// Whether an owner and its keeper were killed, and left a journal of the threads that they had changed.
pub(crate) fn is_something_left() -> bool {
    let dir = RunFolder::usual();
    Journal::path_in(&dir).exists() && matches!(connect(&dir), Ok(None))
}

/// Sends a request to the owner, if there is one.
pub(crate) fn ask_owner(request: &Request) -> Result<Option<Response>, Failure> {
    let client = connect(&RunFolder::usual())?;
    client.map(|mut client| answer(&mut client, request)).transpose()
}

fn connect(dir: &Path) -> Result<Option<Client>, Failure> {
    Client::connect(dir).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => {
            let dir = dir.display();
            Failure::Missing(format!("{dir}: {e}\n  remedy: run it as root"))
        }
        _ => Failure::Run(format!("{}: {e}", dir.display())),
    })
}

fn answer(client: &mut Client, request: &Request) -> Result<Response, Failure> {
    let gone = |e| Failure::Run(format!("the vcoop that applies policies does not answer: {e}"));
    match client.ask(request).map_err(gone)? {
        Response::Refused(Refusal { why, missing: true, .. }) => Err(Failure::Missing(why)),
        Response::Refused(Refusal { why, usage: true, .. }) => Err(Failure::Usage(why)),
        Response::Refused(Refusal { why, .. }) => Err(Failure::Run(why)),
        response => Ok(response),
    }
}

/// The exit code for a folder or socket that cannot be used.
pub(crate) fn failure(why: RunFolderError) -> Failure {
    match &why {
        RunFolderError::Folder(folder) if folder.is_denied() => Failure::Missing(why.to_string()),
        _ => Failure::run(why),
    }
}

/// A message about leftovers of an owner that had died.
pub(crate) fn said(left: &vcoop_daemon::RestoreReport) -> Vec<String> {
    let mut lines = Vec::new();
    let threads = |n: usize| if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") };
    if !left.restored.is_empty() {
        let list: Vec<String> = left.restored.iter().map(i32::to_string).collect();
        let (n, list) = (threads(left.restored.len()), list.join(", "));
        lines.push(format!("gave {n} back what an earlier vcoop had left changed: {list}"));
    }
    if !left.gone.is_empty() {
        lines.push(format!(
            "{} that an earlier vcoop had changed ended since",
            threads(left.gone.len())
        ));
    }
    lines.extend(left.failed.iter().map(|why| format!("not given back: {why}")));
    if left.damaged > 0 {
        let n = left.damaged;
        lines.push(format!("{n} damaged lines of the journal could not be read"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Failure, FolderError, RunFolderError, failure};

    #[test]
    fn a_folder_of_root_is_a_missing_permission() {
        let roots = RunFolderError::Folder(FolderError::Roots("/run/vcoop".into()));
        assert!(matches!(failure(roots), Failure::Missing(_)));
        let busy = RunFolderError::Folder(FolderError::Busy("71".to_owned(), "stop it"));
        assert!(matches!(failure(busy), Failure::Run(_)));
    }
}
