//! `levee`: an elastic block store, its command line.
//!
//! [`cli`] says what can be asked, [`up`] runs a store, [`volume`] asks a running one through its control API
//! ([`client`]), [`attach`] says how virtual machines use its volumes, [`scrub`] has it read all that it stores, [`status`] and [`top`] show how it
//! stands and what it does, [`explain`] says in sentences why a volume waits, [`inspect`]
//! looks at a store that does not run, [`calibrate`] measures its disks, [`profile`] what requests take of its processors, [`verify`] tests this build in simulated worlds,
//! [`files`] is a shared store for tests. [`roles`] runs what several servers are made of, [`servers`] looks after them. What is printed goes to standard
//! output, as text or with `--json` as one JSON document; errors and logs go to standard error. Exit codes: 0 done, 1
//! failed, 2 wrong usage; those of `levee status` are its answer.

mod attach;
#[cfg(feature = "seeded-bugs")]
mod bugs;
mod calibrate;
mod cli;
mod client;
mod completions;
mod console;
mod experiments;
mod explain;
mod files;
mod inspect;
mod measured;
mod pki;
mod profile;
mod replay;
mod roles;
mod scrub;
mod servers;
mod status;
mod tenants;
mod top;
mod traces;
mod up;
mod verify;
mod volume;

use std::process::ExitCode;

use base::Error;
use clap::Parser;
use mimalloc::MiMalloc;

use crate::cli::{Agent, AgentCommand, Cli, Command, Lab, Server};

/// The data path allocates page-aligned buffers for each request, which the C library is slow at.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // What goes wrong in a simulated world is meant to, and nothing to warn about.
    let is_simulated = matches!(&cli.command, Command::Lab(lab) if !matches!(lab, Lab::Files(_)));
    let quiet = is_simulated.then_some("off");
    if let Err(error) = console::start_logging(cli.log.as_deref().or(quiet)) {
        return fail(&error);
    }
    let done = match cli.command {
        Command::Up(options) => up::run(options),
        Command::Volume(command) => volume::run(command),
        Command::Attach(options) => attach::attach(&options),
        Command::Detach(options) => attach::detach(&options),
        Command::Scrub(options) => scrub::run(options),
        // Its exit code tells more than whether it was done.
        Command::Status(options) => return status::run(options),
        Command::Top(options) => top::run(options),
        Command::Server(Server { command: Some(command), .. }) => servers::run(command),
        Command::Server(Server { command: None, options }) => roles::server(&options),
        Command::Agent(Agent { command: Some(AgentCommand::Profile(options)), .. }) => profile::run(options),
        Command::Agent(Agent { command: None, options }) => roles::agent(&options),
        Command::Manager(options) => roles::manager(&options),
        Command::Segment(command) => servers::segment(command),
        Command::Tenant(command) => tenants::run(command),
        Command::Pki(command) => pki::run(&command),
        Command::Completions(options) => completions::run(options),
        Command::Inspect(options) => inspect::run(options),
        Command::Calibrate(options) => calibrate::run(options),
        Command::Lab(Lab::Verify(options)) => verify::run(options),
        Command::Lab(Lab::Run(options)) => experiments::run(options),
        Command::Lab(Lab::Replay(options)) => replay::run(&options),
        Command::Lab(Lab::Traces(command)) => traces::run(command),
        Command::Lab(Lab::Files(options)) => files::run(options),
        #[cfg(feature = "seeded-bugs")]
        Command::Lab(Lab::Bugs(options)) => bugs::run(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
