//! `vcoop top`: the VMs of this host and their policies, updated continuously.

use std::array;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::iter;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use vcoop_daemon::{Request, VcpuStatus, VmId, VmStatus};
use vcoop_experiment::format;
use vcoop_threads::run_time;

use crate::args::host::TopArgs;
use crate::failure::Failure;
use crate::host::owner::{self, Owner};
use crate::interrupt::end_flag;
use crate::output::{note, print};
use crate::scenario::time;
use crate::watch::{Screen, restore};

/// Columns: heading and width.
const COLUMNS: [(&str, u16); 9] = [
    ("VM", 20),
    ("vCPU", 5),
    ("policy", 12),
    ("ran", 8),
    ("steal", 8),
    ("boosts", 9),
    ("boosted", 8),
    ("budget", 9),
    ("", 24),
];
/// The column of the policy.
const POLICY: usize = 2;
/// Help on keys.
const KEYS: &str = "up/down: choose a VM, w: wake-boost, s: static, d: detach, q: quit and take back what you applied";

/// A vCPU's counters at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    ran_ns: u64,
    waited_ns: u64,
    boosts: u64,
    boosted_ns: u64,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    vm: VmId,
    cells: [String; 9],
}

/// Previous and current measurements.
#[derive(Debug, Default)]
struct TopSampler {
    before: BTreeMap<(VmId, u32), Counts>,
    at: Option<Instant>,
    /// Why it is not known which policies are in force.
    unknown: Option<String>,
}

impl TopSampler {
    /// The table, with rates since the last update.
    fn look(&mut self) -> Result<Vec<Entry>, Failure> {
        let scan = owner::scan()?;
        let policies = owner::policies();
        let since = self.at.replace(Instant::now()).map(|at| at.elapsed());
        let mut now = BTreeMap::new();
        let mut entries = Vec::new();
        for vm in &scan.vms {
            let id = VmId::of(vm);
            let applied = policies.iter().flatten().find(|vm| vm.vm == id);
            for vcpu in &vm.vcpus {
                let tid = vcpu.thread.tid.cast_signed();
                // Not kept open: a host has more vCPUs than a process may have files.
                let total = run_time(tid);
                let driven = applied.and_then(|a| a.vcpus.iter().find(|v| v.tid == tid));
                let counts = Counts {
                    ran_ns: total.ran_ns,
                    waited_ns: total.waited_ns,
                    boosts: driven.map_or(0, |v| v.boosts),
                    boosted_ns: driven.map_or(0, |v| v.boosted_ns),
                };
                let key = (id.clone(), vcpu.index);
                let before = self.before.get(&key).copied();
                let rates = since.zip(before);
                entries.push(entry(&id, vcpu.index, applied, driven, counts, rates));
                now.insert(key, counts);
            }
        }
        self.before = now;
        self.unknown = policies.err().map(|note| note.evidence);
        if self.unknown.is_some() {
            entries.iter_mut().for_each(|entry| entry.cells[POLICY] = "n/a".to_owned());
        }
        Ok(entries)
    }
}

fn entry(
    vm: &VmId,
    index: u32,
    applied: Option<&VmStatus>,
    driven: Option<&VcpuStatus>,
    now: Counts,
    since: Option<(Duration, Counts)>,
) -> Entry {
    let share = |of: fn(&Counts) -> u64| {
        since.map_or_else(String::new, |(time, before)| {
            let grown = of(&now).saturating_sub(of(&before)) as f64;
            format!("{:.1} %", grown * 100.0 / time.as_nanos().max(1) as f64)
        })
    };
    let boosts = since.map_or_else(String::new, |(time, before)| {
        let grown = now.boosts.saturating_sub(before.boosts) as f64;
        format!("{:.0} /s", grown / time.as_secs_f64().max(1e-9))
    });
    let alone = driven.and_then(|v| v.left_alone.clone());
    let rests = applied.is_some_and(|vm| vm.rests).then(|| "at rest".to_owned());
    let at_work = driven.filter(|_| alone.is_none());
    let budget = at_work.and_then(|v| v.budget_left_ns).map(|ns| format::time(ns as f64 / 1e3));
    let only = |text: String| if at_work.is_some() { text } else { String::new() };
    let cells = [
        vm.name.clone(),
        index.to_string(),
        applied.map_or_else(|| "-".to_owned(), |vm| vm.policy.clone()),
        share(|c| c.ran_ns),
        share(|c| c.waited_ns),
        only(boosts),
        only(share(|c| c.boosted_ns)),
        budget.unwrap_or_default(),
        alone.or(rests).unwrap_or_default(),
    ];
    Entry { vm: vm.clone(), cells }
}

/// The time of the update itself must not be shown.
const SHORTEST: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let every = time("--every", &args.every)?;
    let every = Duration::from_nanos(every);
    if every < SHORTEST {
        return Err(Failure::usage("--every: at least 100ms"));
    }
    let mut looker = TopSampler::default();
    if args.once || !io::stderr().is_terminal() {
        looker.look()?;
        thread::sleep(every);
        let table = table(&looker.look()?);
        looker.unknown.iter().for_each(|why| note(&format!("vcoop: {why}")));
        return print(&table);
    }
    let mut screen = Screen::enter().map_err(Failure::run)?;
    let done = screen
        .take_keys()
        .map_err(Failure::run)
        .and_then(|()| live(&mut looker, &mut screen, every));
    restore();
    done
}

/// The table as plain text, each column as wide as its longest text.
fn table(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no VM was found on this host\n".to_owned();
    }
    let heads = COLUMNS.map(|(name, _)| name);
    let cells = entries.iter().map(|entry| entry.cells.each_ref().map(String::as_str));
    let lines: Vec<[&str; 9]> = iter::once(heads).chain(cells).collect();
    let longest = |i: usize| lines.iter().map(|cells| cells[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = array::from_fn(longest);
    let line = |cells: &[&str; 9]| {
        let cells = cells.iter().zip(widths);
        let text: String = cells.map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        text.trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

fn live(looker: &mut TopSampler, screen: &mut Screen, every: Duration) -> Result<(), Failure> {
    let stop = end_flag();
    let mut owner: Option<Owner> = None;
    let (mut chosen, mut said) = (None::<VmId>, String::new());
    let mut entries = looker.look()?;
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) && screen.is_there() {
        let mut vms: Vec<VmId> = entries.iter().map(|entry| entry.vm.clone()).collect();
        vms.dedup();
        // The selection stays with its VM when others come and go.
        let at = vms.iter().position(|vm| Some(vm) == chosen.as_ref()).unwrap_or(0);
        chosen = vms.get(at).cloned();
        let shown = looker.unknown.as_ref().unwrap_or(&said);
        screen
            .paint(|frame| draw(frame, &entries, chosen.as_ref(), shown))
            .map_err(Failure::run)?;
        let left = every.saturating_sub(looked.elapsed());
        let Some(event) = screen.next(left).map_err(Failure::run)? else {
            entries = looker.look()?;
            looked = Instant::now();
            continue;
        };
        let Event::Key(key) = event else { continue };
        if key.kind != KeyEventKind::Press {
            continue;
        }
        let policy = match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
            KeyCode::Up => {
                chosen = vms.get(at.saturating_sub(1)).cloned();
                continue;
            }
            KeyCode::Down => {
                chosen = vms.get(at + 1).cloned().or(chosen);
                continue;
            }
            KeyCode::Char('w') => Some("wake-boost"),
            KeyCode::Char('s') => Some("static"),
            KeyCode::Char('d') => None,
            _ => continue,
        };
        if let Some(vm) = &chosen {
            said = change(&mut owner, vm, policy).unwrap_or_else(Failure::text);
        }
    }
    Ok(())
}

/// Applies a policy to a VM, or takes back the current one.
fn change(owner: &mut Option<Owner>, vm: &VmId, policy: Option<&str>) -> Result<String, Failure> {
    let owner = match owner {
        Some(owner) => owner,
        None => owner.insert(Owner::connect_or_be(true)?),
    };
    let (vm, name) = (vm.clone(), vm.name.clone());
    match policy {
        Some(policy) => {
            let request = Request::Attach { vm, policy: policy.to_owned(), sets: Vec::new() };
            owner.ask(&request)?;
            Ok(format!("{name}: {policy}"))
        }
        None => {
            owner.ask(&Request::Detach { vm })?;
            Ok(format!("{name}: detached"))
        }
    }
}

/// Number of columns that fit a width, with a space between two. The last one, which has no heading, may be cut.
fn shown(width: u16) -> usize {
    let mut used = 0;
    let fits = |(name, column): &&(&str, u16)| {
        used += column + 1;
        name.is_empty() || used <= width + 1
    };
    COLUMNS.iter().take_while(fits).count()
}

fn draw(frame: &mut ratatui::Frame<'_>, entries: &[Entry], chosen: Option<&VmId>, said: &str) {
    let width = frame.area().width;
    let help = vcoop_text::wrap(KEYS.split(' '), "", "", width.into());
    let lines = help.lines().count() as u16;
    let [body, status, keys] =
        Layout::vertical([Constraint::Min(2), Constraint::Length(1), Constraint::Length(lines)])
            .areas(frame.area());
    let shown = shown(width);
    let rows = entries.iter().map(|entry| {
        let row = Row::new(entry.cells[..shown].iter().map(|cell| Cell::from(cell.as_str())));
        if Some(&entry.vm) == chosen { row.style(Style::new().reversed()) } else { row }
    });
    let columns = &COLUMNS[..shown];
    let heads = Row::new(columns.iter().map(|(name, _)| *name)).style(Style::new().bold());
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let is_chosen = |entry: &Entry| Some(&entry.vm) == chosen;
    let rows_of = entries.iter().position(is_chosen).zip(entries.iter().rposition(is_chosen));
    // The headings have a line.
    let room = usize::from(body.height.saturating_sub(1));
    let offset = rows_of.map_or(0, |(first, last)| first.min((last + 1).saturating_sub(room)));
    let mut state = TableState::new().with_offset(offset);
    frame.render_stateful_widget(Table::new(rows, widths).header(heads), body, &mut state);
    let said = if entries.is_empty() { "no VM was found on this host" } else { said };
    frame.render_widget(Paragraph::new(Line::from(said)), status);
    frame.render_widget(Paragraph::new(help).dim(), keys);
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Counts, Entry, draw, entry, table};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;
    use vcoop_daemon::{VcpuStatus, VmId, VmStatus};

    fn vm() -> VmId {
        VmId { pid: 7, start_ticks: 1, name: "web".to_owned() }
    }

    fn applied(policy: &str, rests: bool) -> VmStatus {
        VmStatus { vm: vm(), policy: policy.to_owned(), rests, ..VmStatus::default() }
    }

    fn driven() -> Entry {
        let status = VcpuStatus { budget_left_ns: Some(2_500_000), ..VcpuStatus::default() };
        let before = Counts { ran_ns: 1_000, waited_ns: 0, boosts: 10, boosted_ns: 0 };
        let now = Counts {
            ran_ns: 250_001_000,
            waited_ns: 100_000_000,
            boosts: 110,
            boosted_ns: 5_000_000,
        };
        let since = Some((Duration::from_millis(500), before));
        entry(&vm(), 0, Some(&applied("wake-boost", false)), Some(&status), now, since)
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let cells = driven().cells;
        let want = ["web", "0", "wake-boost", "50.0 %", "20.0 %", "200 /s", "1.0 %", "2.50 ms", ""];
        assert_eq!(cells, want);
        let alone = VcpuStatus { left_alone: Some("why".to_owned()), ..VcpuStatus::default() };
        let of = |vm_status, vcpu| {
            entry(&vm(), 1, Some(&vm_status), Some(vcpu), Counts::default(), None).cells
        };
        let cells = of(applied("static", false), &alone);
        assert_eq!(cells, ["web", "1", "static", "", "", "", "", "", "why"]);
        let cells = of(applied("wake-boost", true), &VcpuStatus::default());
        assert_eq!(cells, ["web", "1", "wake-boost", "", "", "", "", "", "at rest"]);
    }

    #[test]
    fn the_chosen_vm_and_what_was_done_are_shown() {
        let entries = [driven()];
        let mut terminal = Terminal::new(TestBackend::new(110, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &entries, Some(&vm()), "web: static")).unwrap();
        let shown = terminal.backend().to_string();
        for text in ["wake-boost", "2.50 ms", "web: static", "d: detach"] {
            assert!(shown.contains(text), "{text}\n{shown}");
        }
        // No visible column of a narrow terminal is cut.
        let mut narrow = Terminal::new(TestBackend::new(60, 8)).unwrap();
        narrow.draw(|frame| draw(frame, &entries, Some(&vm()), "web: static")).unwrap();
        let shown = narrow.backend().to_string();
        for text in ["policy", "wake-boost", "steal", "20.0 %", "q: quit", "you applied"] {
            assert!(shown.contains(text), "{text}\n{shown}");
        }
        assert!(!shown.contains("boosts"), "{shown}");
        // A VM below the end of the screen is shown when it is chosen, with all its vCPUs.
        let many: Vec<Entry> = (0..300)
            .flat_map(|pid| [0, 1].map(|index| (pid, index)))
            .map(|(pid, index)| {
                let vm = VmId { pid, start_ticks: 1, name: format!("vm-{pid}") };
                entry(&vm, index, None, None, Counts::default(), None)
            })
            .collect();
        for (chosen, others) in [(0, 1), (150, 149), (299, 298)] {
            let vm = &many[2 * chosen].vm;
            terminal.draw(|frame| draw(frame, &many, Some(vm), "")).unwrap();
            let shown = terminal.backend().to_string();
            let lines =
                |vm| shown.lines().filter(|line| line.contains(&format!("vm-{vm} "))).count();
            assert_eq!((lines(chosen), lines(others)), (2, 2), "{shown}");
        }
        let text = table(&entries);
        assert!(text.starts_with(COLUMNS[0].0) && text.lines().count() == 2, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        // A long name moves the headings, too.
        let id = VmId { pid: 7, start_ticks: 1, name: "a-name-of-more-than-20-columns".to_owned() };
        let long = entry(&id, 12, None, None, Counts::default(), None);
        let text = table(&[long]);
        let (head, row) = text.split_once('\n').unwrap();
        assert_eq!(head.find("vCPU"), row.find("12"), "{text}");
    }
}
