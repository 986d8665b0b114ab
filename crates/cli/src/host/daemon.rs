//! `vcoop daemon`: applies rules to all VMs of this host, until a signal.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use vcoop_daemon::{Config, Follower, RunFolder, Service, config};
use vcoop_experiment::format;
use vcoop_service::Log;
use vcoop_service::metrics::Listen;

use crate::args::host::DaemonArgs;
use crate::failure::Failure;
use crate::host::owner;
use crate::output::{note, print};

/// Time between two checks for signals and VMs.
const LOOK: Duration = Duration::from_millis(250);

pub(crate) fn run(args: &DaemonArgs) -> Result<(), Failure> {
    let config = read(args)?;
    let rules = |config: &Config| format::count(config.rules.len() as u64, "rule");
    if args.check {
        let absent = args.config.is_none() && !Path::new(config::USUAL).exists();
        let what = if absent { format!("there is no {}: ", config::USUAL) } else { String::new() };
        let doubts = config.doubts();
        doubts.iter().for_each(|doubt| note(&format!("vcoop: {doubt}")));
        let nothing = if doubts.is_empty() { "nothing wrong" } else { "nothing else wrong" };
        return print(&format!("{what}{}, {nothing}\n", rules(&config)));
    }
    log();
    let [end, reload] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for (signal, flag) in [(SIGTERM, &end), (SIGINT, &end), (SIGHUP, &reload)] {
        flag::register(signal, flag.clone()).map_err(Failure::run)?;
    }
    let (service, left) = Service::start(&RunFolder::usual()).map_err(owner::failure)?;
    owner::said(&left).iter().for_each(|line| tracing::warn!("{line}"));
    service.busy_poll(config.busy_poll_ns);
    let windows = &config.windows;
    service
        .serve_windows(windows)
        .map_err(|e| Failure::Run(format!("{}: {e}", windows.socket.display())))?;
    let serve = |listen: &Listen| {
        let failed = |e| Failure::Run(format!("metrics on {listen}: {e}"));
        service.serve_metrics(listen).map_err(failed)
    };
    let _metrics = config.metrics.as_ref().map(serve).transpose()?;
    let doubt =
        |config: &Config| config.doubts().iter().for_each(|doubt| tracing::warn!("{doubt}"));
    tracing::info!("{} with {}", vcoop_build_id::BUILD, rules(&config));
    doubt(&config);
    let mut follower = Follower::new(&service, config.clone());
    follower.look();
    notify_systemd(&[NotifyState::Ready]);
    while !end.load(Ordering::Relaxed) {
        if reload.swap(false, Ordering::Relaxed) {
            notify_systemd(&[NotifyState::Reloading]);
            match read(args) {
                Ok(new) => {
                    tracing::info!("{}, read again", rules(&new));
                    doubt(&new);
                    if (&new.metrics, &new.windows) != (&config.metrics, &config.windows) {
                        tracing::warn!("[metrics] and [windows] stay as they were until a restart");
                    }
                    service.busy_poll(new.busy_poll_ns);
                    follower.reload(new);
                }
                Err(why) => tracing::error!("the rules stay as they were: {}", why.text()),
            }
            notify_systemd(&[NotifyState::Ready]);
        }
        follower.look();
        if !service.is_alive() {
            return Err(Failure::run(service.end_of_engine()));
        }
        notify_systemd(&[NotifyState::Watchdog]);
        thread::sleep(LOOK);
    }
    notify_systemd(&[NotifyState::Stopping]);
    drop(service);
    // What its end could not give back is still in the journal.
    if vcoop_daemon::restore(&RunFolder::usual()).is_ok_and(|left| left.failed.is_empty()) {
        tracing::info!("every thread has what it had before");
    }
    Ok(())
}

/// Notifies systemd, if it started this process.
fn notify_systemd(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

fn read(args: &DaemonArgs) -> Result<Config, Failure> {
    let usual = Path::new(config::USUAL);
    match &args.config {
        Some(path) => Config::read(path).map_err(Failure::usage),
        None if usual.exists() => Config::read(usual).map_err(Failure::usage),
        None => Ok(Config::default()),
    }
}

/// Log lines on stderr. The journal adds times, and reads levels from a number at the beginning.
fn log() {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some() && !io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(|| Log).event_format(Lines { journal }).init();
}

struct Lines {
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        if self.journal {
            // sd-daemon(3): 3 is an error, 4 a warning, 6 informational, 7 for debugging.
            let number = match level {
                Level::ERROR => 3,
                Level::WARN => 4,
                Level::INFO => 6,
                _ => 7,
            };
            write!(writer, "<{number}>")?;
        } else if level <= Level::WARN {
            write!(writer, "{}: ", level.to_string().to_lowercase())?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
