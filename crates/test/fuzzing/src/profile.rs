//! The machine's profile.

use straightway_probe::profile::{DriveTuning, Profile};

use crate::assert_harmless;

/// Any bytes as a profile. It is refused with an error, or it round-trips. Invalid settings are refused with an error.
pub(crate) fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(profile) = Profile::parse(text) else {
        return;
    };
    for drive in profile.drives.values() {
        if let Err(error) = DriveTuning::settings(drive.tuning).check() {
            assert_harmless(&error.to_string());
        }
    }
    let again = toml::to_string_pretty(&profile).expect("a profile is plain data");
    let again = Profile::parse(&again).expect("what was read can be written");
    // NaN is not equal to itself.
    assert_eq!(format!("{again:?}"), format!("{profile:?}"));
}
