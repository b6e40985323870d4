//! Options that are defined only for the command that runs.

use clap::{ArgMatches, Command, Error, FromArgMatches, builder::Resettable};

use crate::examples;

/// The arguments of one of several commands. The options of the others are not defined: to define all of them took
/// longer than to read a small file.
#[derive(Debug)]
pub(crate) struct Deferred<A>(pub(crate) A);

impl<A: clap::Args> clap::Args for Deferred<A> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| described(command, A::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| described(command, A::augment_args_for_update))
    }
}

impl<A: clap::Args> FromArgMatches for Deferred<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        A::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Defines options and keeps the description of the command. Groups of options have descriptions of their own, and the
/// last one defined would replace it. Adds the examples of the command and its subcommands.
fn described(command: Command, define: fn(Command) -> Command) -> Command {
    let (short, long) = (command.get_about().cloned(), command.get_long_about().cloned());
    let name = command.get_name().to_owned();
    let command = define(command);
    command
        .about(Resettable::from(short))
        .long_about(Resettable::from(long))
        .after_help(examples::help(&name))
        .mut_subcommands(|below| {
            let page = format!("{name} {}", below.get_name());
            below.after_help(examples::help(&page))
        })
}
