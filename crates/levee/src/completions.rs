//! `levee completions`: what a shell completes.

use base::{Error, Result};
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::cli::{self, Cli, Completions};
use crate::console;

/// Prints the script of a shell.
///
/// # Errors
/// `Internal` if it is no text.
pub fn run(options: Completions) -> Result<()> {
    let shell = match options.shell {
        cli::Shell::Bash => Shell::Bash,
        cli::Shell::Zsh => Shell::Zsh,
        cli::Shell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "levee", &mut script);
    let script = String::from_utf8(script).map_err(|error| Error::internal(error.to_string()))?;
    console::print(script.trim_end());
    Ok(())
}
