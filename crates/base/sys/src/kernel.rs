//! The kernel version.

use std::sync::LazyLock;

use rustix::system::uname;

/// The first two numbers of a kernel's release, such as `7.2.12+deb13-amd64`.
pub fn major_minor(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether the running kernel has this version or a later one. An unknown version counts as older.
pub(crate) fn is_since(version: (u32, u32)) -> bool {
    static RUNNING: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| major_minor(&uname().release().to_string_lossy()));
    *RUNNING >= Some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed_with_any_suffix() {
        for (release, version) in [
            ("6.13.0", Some((6, 13))),
            ("6.18.44-fc-v310", Some((6, 18))),
            ("7.2.12+deb13-amd64", Some((7, 2))),
            ("10.0", Some((10, 0))),
            ("6", None),
            ("next", None),
            ("", None),
        ] {
            assert_eq!(major_minor(release), version, "{release}");
        }
        assert!(is_since((2, 6)) && !is_since((u32::MAX, 0)));
        assert!(Some((6, 13)) > Some((6, 9)) && None < Some((0, 0)));
    }
}
