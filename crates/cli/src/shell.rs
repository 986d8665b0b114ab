//! `vcoop completions` and `vcoop man`.

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::failure::Failure;
use crate::folder::make;
use crate::output::{note, print};

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "vcoop", &mut text);
    print(&String::from_utf8_lossy(&text))
}

pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let command = Args::command();
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(Failure::run)?;
        return print(&String::from_utf8_lossy(&page));
    };
    make("", dir)?;
    clap_mangen::generate_to(command, dir)
        .map_err(|e| Failure::run(format!("cannot write man pages to {}: {e}", dir.display())))?;
    note(&format!("man pages are in {}", dir.display()));
    Ok(())
}
