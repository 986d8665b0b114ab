//! `vcoop reproduce`.

use vcoop_capture::Loader;
use vcoop_lab::published::Publication;
use vcoop_lab::reproduce::{ReproduceError, Selection, Setup};
use vcoop_lab::runner::Control;
use vcoop_report::{render_reproduction, wrap};

use crate::args::ReproduceArgs;
use crate::failure::Failure;
use crate::interrupt::stop_flag;
use crate::output::{print, style};
use crate::progress::Progress;
use crate::scenario::{Overrides, jobs, nearest, say_losses};

pub(crate) fn run(args: &ReproduceArgs) -> Result<(), Failure> {
    let stop = stop_flag();
    let jobs = jobs(&args.common)?;
    let publications = Publication::builtin();
    let selection =
        Selection::new(&publications, &args.ids).map_err(|name| unknown(&name, &publications))?;
    let loader = Loader::default();
    let overrides = Overrides::new(&[], &args.common)?;
    let setup = Setup::new(&selection, &overrides.sets, &loader);
    let setup = setup.map_err(|e| failure(e, &overrides))?;
    say_losses(&loader, &args.common);
    let progress = Progress::new(args.common.quiet);
    let control = Control { stop, progress: &|p| progress.tell(p) };
    let result = setup.run(&selection, jobs, control);
    progress.finish();
    let result = result.map_err(|e| failure(e, &overrides))?;
    let text = if args.common.json {
        let json = serde_json::to_string_pretty(&result).map_err(Failure::run)?;
        format!("{json}\n")
    } else {
        render_reproduction(&result, style())
    };
    print(&text)?;
    if result.interrupted { Err(Failure::Interrupted) } else { Ok(()) }
}

fn failure(error: ReproduceError, overrides: &Overrides) -> Failure {
    match error {
        ReproduceError::Scenario(diagnostics) => overrides.refuse(diagnostics),
        other => Failure::run(other),
    }
}

fn unknown(name: &str, publications: &[Publication]) -> Failure {
    let mut ids: Vec<&str> = Vec::new();
    for publication in publications {
        ids.push(&publication.name);
        ids.extend(publication.tables.iter().map(|t| t.id.as_str()));
        ids.extend(publication.claims.iter().map(|c| c.id.as_str()));
    }
    let guess = nearest(name, &ids).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
    let known = wrap(&format!("  {guess}there are: {}", ids.join(", ")), 4);
    Failure::usage(format!("nothing published is called `{name}`\n{}", known.trim_end()))
}
