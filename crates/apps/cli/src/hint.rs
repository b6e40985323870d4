//! Hints as a user of the command line needs them: settings are options.

use straightway_core::{Error, hint::Setting};

/// The hint of an error, with options such as `--route auto`.
pub(crate) fn hint(error: &Error) -> Option<String> {
    error.hint_worded(option).map(Into::into)
}

fn option(setting: Setting<'_>) -> String {
    let name = match setting.name {
        // A secret on a command line would be visible to all users of the machine.
        "nvme_secret" => "nvme-secret-file".to_owned(),
        // The drive has a profile too.
        "profile" => "aws-profile".to_owned(),
        name => name.replace('_', "-"),
    };
    match setting.value {
        Some(value) => format!("--{name} {value}"),
        None => format!("--{name}"),
    }
}
