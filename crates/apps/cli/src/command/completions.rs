//! `straightway completions`: generated from the definitions of the commands.
//!
//! clap completes the words that an option takes. Scenarios and devices are such words here, although the options also
//! take files and other devices: for the script, the parsers of these options are replaced, and the script then also
//! offers files.

use std::process::ExitCode;

use clap::{Command, CommandFactory, builder::PossibleValuesParser};
use clap_complete::Shell;

use super::{library, output::print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

/// The devices that are offered: a machine has up to eight GPUs.
const DEVICES: [&str; 9] = [
    "host", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7",
];

pub(crate) fn run<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = C::command();
    command.build();
    // clap keeps words forever, and this process ends soon.
    let scenarios: Vec<&'static str> = library::names().into_iter().map(|name| &*name.leak()).collect();
    let mut command = offering(command, &scenarios);
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "straightway", &mut text);
    let script = String::from_utf8(text)?;
    print(&also_files(args.shell, &script, &scenarios))?;
    Ok(ExitCode::SUCCESS)
}

/// The command with the words of scenarios and devices.
fn offering(command: Command, scenarios: &[&'static str]) -> Command {
    let is_list = command.get_name() == "list";
    command
        .mut_args(|arg| {
            let words = match arg.get_id().as_str() {
                "scenario" => scenarios.to_vec(),
                "name" if is_list => scenarios.to_vec(),
                "device" => DEVICES.to_vec(),
                _ => return arg,
            };
            arg.value_parser(PossibleValuesParser::new(words))
        })
        .mut_subcommands(|below| offering(below, scenarios))
}

/// The script with files beside the scenarios. The other shells complete no values.
fn also_files(shell: Shell, script: &str, scenarios: &[&'static str]) -> String {
    let words = scenarios.join(" ");
    let (only, both) = match shell {
        Shell::Bash => (format!("compgen -W \"{words}\""), format!("compgen -f -W \"{words}\"")),
        Shell::Zsh => (format!("({words})"), format!("{{_files; compadd -- {words}}}")),
        Shell::Fish => {
            let first = scenarios.first().copied().unwrap_or_default();
            (format!("-f -a \"{first}"), format!("-F -a \"{first}"))
        }
        _ => return script.to_owned(),
    };
    script.replace(&only, &both)
}
