//! Conversations over QMP with peers other than QEMU.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::Tree;
use vcoop_vmm::qmp::{Qmp, QmpError};
use vcoop_vmm::{Accel, Proc, Source};

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": ["oob"]}}"#;
const EVENT: &str = r#"{"timestamp": {"seconds": 1}, "event": "STOP"}"#;

/// Longer than any host takes for a conversation.
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket with one client, served by `serve`.
struct Server {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(test: &str, serve: impl FnOnce(UnixStream) + Send + 'static) -> Self {
        let socket = std::env::temp_dir().join(format!("vcoop-qmp-{}-{test}", std::process::id()));
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = thread::spawn(move || serve(listener.accept().unwrap().0));
        Self { socket, thread: Some(thread) }
    }

    /// A server that answers each request with one of `lines`, after the greeting.
    fn saying(test: &str, lines: &[&str]) -> Self {
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        Self::new(test, move |mut stream| {
            let mut asked = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = stream.write_all(format!("{GREETING}\n").as_bytes());
            for line in ["{\"return\": {}}\n"].into_iter().chain(lines.iter().map(|l| &l[..])) {
                if asked.next().is_none() || stream.write_all(line.as_bytes()).is_err() {
                    return;
                }
            }
            // Until the peer hangs up.
            asked.for_each(drop);
        })
    }

    fn connect(&self) -> Result<Qmp<vcoop_vmm::qmp::DeadlineStream>, QmpError> {
        Qmp::connect(&self.socket, PATIENCE)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn an_answer_is_read_past_events() {
    let cpus = r#"{"return": [{"thread-id": 8, "cpu-index": 1, "target": "x86_64"},
                              {"thread-id": 7, "cpu-index": 0, "props": {}}]}"#;
    let cpus = format!("{EVENT}\n{EVENT}\n{}", cpus.replace('\n', " "));
    let server = Server::saying(
        "answer",
        &[&cpus, r#"{"return": {"name": "a\u001b"}}"#, r#"{"return": {"enabled": false}}"#],
    );
    let mut qmp = server.connect().unwrap();
    let cpus: Vec<_> = qmp.cpus().unwrap().iter().map(|c| (c.index, c.tid)).collect();
    assert_eq!(cpus, [(0, 7), (1, 8)]);
    assert_eq!(qmp.name().unwrap().as_deref(), Some("a\\u{1b}"));
    assert_eq!(qmp.kvm().unwrap(), Accel::Tcg);
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    for (n, (line, expected)) in [
        ("{}", "this is not QMP: neither an answer nor an event"),
        ("nonsense", "this is not QMP: expected"),
        (r#"{"return": []}"#, "this is not QMP: vCPUs missing"),
        (r#"{"return": [{"cpu-index": 0}]}"#, "missing field `thread-id`"),
        (r#"{"return": [{"cpu-index": 0, "thread-id": -1}]}"#, "invalid value"),
        (
            r#"{"return": [{"cpu-index": 0, "thread-id": 1}, {"cpu-index": 0, "thread-id": 2}]}"#,
            "more than there can be",
        ),
        (
            "{\"error\": {\"class\": \"X\", \"desc\": \"no\\u001b[2J\"}}",
            "QEMU refused `query-cpus-fast`: no\\u{1b}[2J",
        ),
        (&"[".repeat(10_000), "this is not QMP"),
    ]
    .into_iter()
    .enumerate()
    {
        let server = Server::saying(&format!("nonsense-{n}"), &[line]);
        let error = server.connect().unwrap().cpus().unwrap_err().to_string();
        assert!(error.contains(expected), "{line:.40}: {error}");
    }
}

#[test]
fn nothing_is_said_to_a_socket_that_does_not_greet() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let server = Server::new("rude", move |mut stream| {
        stream.write_all(b"{\"return\": {}}\n").unwrap();
        sender.send(BufReader::new(stream).lines().count()).unwrap();
    });
    assert!(matches!(server.connect(), Err(QmpError::NotQmp(_))));
    assert_eq!(receiver.recv().unwrap(), 0, "lines sent");
}

#[test]
fn lines_and_conversations_have_an_end() {
    let endless =
        Server::new("endless", |mut stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
    let is_line = |e| matches!(e, QmpError::TooMuch { what: "one line", .. });
    assert!(endless.connect().is_err_and(is_line));

    let chatty = Server::new("chatty", |mut stream| {
        let _ = writeln!(stream, "{GREETING}");
        while writeln!(stream, "{EVENT}").is_ok() {}
    });
    let error = Qmp::connect(&chatty.socket, PATIENCE).unwrap_err();
    assert!(matches!(error, QmpError::TooMuch { what: "all", .. }), "{error}");
}

#[test]
fn a_conversation_ends_in_time() {
    let timeout = Duration::from_millis(200);
    let timely = |socket: &Path| {
        let start = Instant::now();
        let error = Qmp::connect(socket, timeout).unwrap_err();
        assert!(matches!(error, QmpError::Timeout), "{error}");
        // The peer would go on for hours.
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    };
    let silent = Server::new("silent", |stream| BufReader::new(stream).lines().for_each(drop));
    timely(&silent.socket);
    let slow = Server::new("slow", move |mut stream| {
        while stream.write_all(b" ").is_ok() {
            thread::sleep(timeout / 4);
        }
    });
    timely(&slow.socket);

    // A listener that does not accept: the queue fills up, and then connecting itself blocks.
    let busy = std::env::temp_dir().join(format!("vcoop-qmp-{}-busy", std::process::id()));
    let _ = fs::remove_file(&busy);
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&busy).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&busy).unwrap();
    timely(&busy);
    fs::remove_file(&busy).unwrap();
    assert!(matches!(Qmp::connect(&busy, timeout), Err(QmpError::Connect(_))));
}

/// Asks about the VM of a fixture, with these threads as its vCPUs'.
fn ask(test: &str, fixture: &str, tids: &[u32]) -> (vcoop_vmm::Vm, Result<(), QmpError>) {
    let tree = Tree::new(fixture);
    let proc: Proc = tree.proc_alone();
    let mut vm = proc.scan().unwrap().vms.remove(0);
    let cpu = |(i, tid)| format!(r#"{{"cpu-index": {i}, "thread-id": {tid}}}"#);
    let cpus: Vec<_> = tids.iter().enumerate().map(cpu).collect();
    let cpus = format!(r#"{{"return": [{}]}}"#, cpus.join(", "));
    let server = Server::saying(
        test,
        &[&cpus, r#"{"return": {"name": "told"}}"#, r#"{"return": {"enabled": true}}"#],
    );
    let outcome = proc.ask(&mut vm, &server.socket, PATIENCE);
    (vm, outcome)
}

#[test]
fn qemu_says_what_its_threads_names_do_not() {
    let (vm, outcome) = ask("unnamed", "qemu-kvm-unnamed", &[16697, 16698]);
    outcome.unwrap();
    assert_eq!((&vm.name[..], vm.sources.name), ("told", Source::Qmp));
    let vcpus: Vec<_> = vm.vcpus.iter().map(|v| (v.index, v.thread.tid, v.source)).collect();
    assert_eq!(vcpus, [(0, 16697, Source::Qmp), (1, 16698, Source::Qmp)]);
    assert_eq!((vm.unplaced, vm.others.len()), (Some(0), 3));
}

#[test]
fn one_thread_for_all_vcpus_is_one_thread() {
    let (vm, outcome) = ask("single", "qemu-tcg-single", &[17036; 2]);
    outcome.unwrap();
    assert_eq!(vm.vcpus.len(), 1);
    assert_eq!((vm.vcpus[0].index, vm.unplaced), (0, Some(0)));
    // The descriptors are a better source for this.
    assert_eq!((vm.accel, &vm.name[..]), (Accel::Tcg, "foo"));
}

#[test]
fn threads_of_other_processes_are_not_taken_over() {
    let (vm, outcome) = ask("foreign", "qemu-kvm-unnamed", &[16697, 1]);
    assert!(matches!(outcome, Err(QmpError::ForeignThread { tid: 1 })));
    assert_eq!((&vm.name[..], vm.vcpus.len(), vm.unplaced), ("qemu-16693", 0, Some(2)));
}
