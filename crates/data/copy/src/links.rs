//! Symbolic links inside a folder that is copied: kept as links, or followed.
//!
//! The snapshots of model hubs consist of links into a folder beside them. Copied as links they would lead nowhere. So a
//! link that leaves the source is followed, and its file or folder is copied in its place. A link that stays inside is
//! kept where the target has links, because it leads to its copy there.
//!
//! A link stays inside if it is relative and no step of it leaves the source. An absolute link does not: its copy would
//! lead back to the source. The kernel decides this (`openat2`), so that the answer fits what an open would do.

use std::{fs, path::Path, str::FromStr};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};
use straightway_core::{Error, ErrorKind, Result};

/// The attempts to resolve a link while folders on the way are being renamed.
const TRIES: usize = 16;

/// What becomes of symbolic links inside a folder that is copied. A source that is a link itself is always followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Links that stay inside the source are kept, if the target can have links. All others are followed.
    #[default]
    Auto,
    /// All links stay links, wherever they lead.
    Keep,
    /// All links are followed: their files and folders are copied.
    Follow,
}

impl LinkChoice {
    /// The words for users, with their meanings.
    pub const WORDS: [(&'static str, Self, &'static str); 3] = [
        (
            "auto",
            Self::Auto,
            "Follow links that leave the source; keep those that stay inside, if the target has links",
        ),
        ("keep", Self::Keep, "Keep all links as links, wherever they lead"),
        (
            "follow",
            Self::Follow,
            "Follow all links: copy the files and folders that they lead to",
        ),
    ];
}

impl FromStr for LinkChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::WORDS.iter().find(|(word, ..)| *word == text);
        let refuse = || {
            Error::new(
                ErrorKind::Invalid,
                "use",
                format!("links `{text}`"),
                "use auto, keep or follow",
            )
        };
        found.map(|(_, links, _)| *links).ok_or_else(refuse)
    }
}

/// Whether the link `link` below the folder `root` leads to a place below `root`, which need not exist.
pub(crate) fn stays_inside(root: &Path, link: &Path) -> Result<bool> {
    let failed = |errno: Errno| Error::os("read", link.display(), errno.into());
    let Ok(relative) = link.strip_prefix(root) else {
        return Ok(false);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, root, flags, Mode::empty()).map_err(failed)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(
            &folder,
            relative,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        ) {
            // A link to nothing stays inside: its copy leads to nothing at the same place.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(true),
            Err(Errno::XDEV) => return Ok(false),
            Err(Errno::LOOP) => return Err(circle(link)),
            Err(Errno::AGAIN) => {}
            // An old kernel, or a container that forbids the call.
            Err(Errno::NOSYS | Errno::PERM) => return Ok(seems_inside(root, link)),
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::AGAIN))
}

/// The answer without help of the kernel. Some links that stay inside are taken for others, and are followed.
fn seems_inside(root: &Path, link: &Path) -> bool {
    let is_plain = |text: &Path| {
        text.components()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
    };
    let ends = (fs::canonicalize(root), fs::canonicalize(link));
    let ends_inside = matches!(&ends, (Ok(root), Ok(end)) if end.starts_with(root));
    ends_inside && fs::read_link(link).is_ok_and(|text| is_plain(&text))
}

/// The error of links that lead to each other, or of a link to a folder that contains it.
pub(crate) fn circle(link: &Path) -> Error {
    let message = "this symbolic link leads in a circle";
    Error::new(ErrorKind::Invalid, "copy", link.display(), message)
        .with_hint("remove it, or keep links with ⟦links=keep⟧")
}

/// The error of a link that cannot be followed.
pub(crate) fn broken(link: &Path, error: std::io::Error) -> Error {
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        return circle(link);
    }
    if error.kind() != std::io::ErrorKind::NotFound {
        return Error::os("open", link.display(), error);
    }
    let points_to = fs::read_link(link).unwrap_or_default();
    let message = format!(
        "this symbolic link leads to {}, which does not exist",
        points_to.display()
    );
    Error::new(ErrorKind::NotFound, "copy", link.display(), message)
        .with_hint("complete the download, remove the link, or keep links with ⟦links=keep⟧")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_stays_inside_if_no_step_of_it_leaves() {
        let top = tempfile::tempdir().expect("a folder");
        let root = top.path().join("root");
        fs::create_dir_all(root.join("sub")).expect("it is new");
        fs::write(root.join("file"), b"inside").expect("small");
        fs::write(top.path().join("blob"), b"outside").expect("small");
        let absolute = root.join("file");
        for (name, text, is_inside, seems) in [
            ("a", Path::new("file"), true, true),
            ("sub/up", Path::new("../file"), true, false),
            ("dangling", Path::new("nowhere"), true, false),
            ("chain", Path::new("a"), true, true),
            ("out", Path::new("../blob"), false, false),
            ("back", Path::new("../root/file"), false, false),
            ("through", Path::new("out"), false, false),
            ("absolute", &absolute, false, false),
            ("sub/self", Path::new(".."), true, false),
        ] {
            let link = root.join(name);
            symlink(text, &link).expect("it is new");
            assert_eq!(stays_inside(&root, &link).expect("it can be read"), is_inside, "{name}");
            assert_eq!(seems_inside(&root, &link), seems, "{name}");
        }
        symlink("circle", root.join("circle")).expect("it is new");
        let error = stays_inside(&root, &root.join("circle")).expect_err("it leads nowhere");
        assert!(error.to_string().contains("circle"), "{error}");
    }
}
