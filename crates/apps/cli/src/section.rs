//! Options of several commands that have a heading of their own in the help.

use std::ops::Deref;

use clap::{ArgMatches, Command, Error, FromArgMatches, builder::Resettable};

/// Options under a heading, which is the `next_help_heading` of `A`. The short help leaves them out. Options that are
/// defined after them are under no heading; if `A` were flattened itself, they would get its heading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section<A>(pub(crate) A);

impl<A> Deref for Section<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.0
    }
}

impl<A: clap::Args> clap::Args for Section<A> {
    fn augment_args(command: Command) -> Command {
        defined(command, A::augment_args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        defined(command, A::augment_args_for_update)
    }
}

impl<A: clap::Args> FromArgMatches for Section<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        A::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

fn defined(command: Command, define: fn(Command) -> Command) -> Command {
    let before = command.get_arguments().count();
    let command = define(command).next_help_heading(Resettable::Reset);
    let new: Vec<_> = command
        .get_arguments()
        .skip(before)
        .map(|arg| arg.get_id().clone())
        .collect();
    new.into_iter().fold(command, |command, id| {
        command.mut_arg(id, |arg| arg.hide_short_help(true))
    })
}
