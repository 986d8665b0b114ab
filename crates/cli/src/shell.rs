//! `vcoop completions` and `vcoop man`.

use std::path::PathBuf;

use clap::Command;

use crate::failure::Failure;
use crate::folder::make;
use crate::output::{note, print};

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder for one page a command; without it the first page is printed
    pub(crate) dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, whole: &Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    // clap_complete would offer hidden commands as well.
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new("vcoop").version(vcoop_build_id::BUILD).subcommands(shown);
    clap_complete::generate(args.shell, &mut command, "vcoop", &mut text);
    print(&String::from_utf8_lossy(&text))
}

pub(crate) fn man(args: &ManArgs, whole: Command) -> Result<(), Failure> {
    // `vcoop help` has no page.
    let command = whole.disable_help_subcommand(true);
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
