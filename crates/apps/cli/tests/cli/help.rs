//! The help, the completions and the man pages.

use std::fs;

use crate::test_dir::TestDir;

fn said(args: &[&str]) -> String {
    let ran = TestDir::new().run(args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran.out
}

/// The names of all commands, from the help.
fn commands() -> Vec<String> {
    let help = said(&["--help"]);
    let list = help.split("Commands:\n").nth(1).unwrap();
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    let names = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn the_help_of_all() {
    insta::assert_snapshot!(said(&["--help"]));
}

#[test]
fn the_help_of_doctor() {
    insta::assert_snapshot!(said(&["doctor", "--help"]));
}

#[test]
fn the_help_of_copy() {
    insta::assert_snapshot!(said(&["copy", "--help"]));
}

#[test]
fn the_help_of_bench() {
    insta::assert_snapshot!(said(&["bench", "--help"]));
}

#[test]
fn the_help_of_load() {
    insta::assert_snapshot!(said(&["load", "--help"]));
}

#[test]
fn the_help_of_inspect() {
    insta::assert_snapshot!(said(&["inspect", "--help"]));
}

#[test]
fn the_help_of_target() {
    insta::assert_snapshot!(said(&["target", "--help"]));
}

#[test]
fn the_help_of_rewrite() {
    insta::assert_snapshot!(said(&["rewrite", "--help"]));
}

#[test]
fn every_command_has_a_line_and_a_page_of_help() {
    let names = commands();
    for name in ["copy", "bench", "doctor", "completions", "man"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
    for name in names {
        let help = said(&[&name, "--help"]);
        assert!(help.contains(&format!("Usage: straightway {name}")), "{help}");
        assert!(help.starts_with(char::is_uppercase), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(&["completions", shell]);
        for name in commands() {
            assert!(script.contains(&name), "{shell} lacks {name}");
        }
        assert!(script.contains("route"), "{shell} lacks --route");
    }
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let dir = TestDir::new();
    let ran = dir.run(["man", "new/pages"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let top = fs::read_to_string(dir.path("new/pages/straightway.1")).unwrap();
    for name in commands() {
        assert!(top.contains(&name), "the first page lacks {name}");
        let page = dir.path(format!("new/pages/straightway-{name}.1"));
        assert!(fs::read_to_string(page).unwrap().contains(".SH"), "{name}");
    }
}

#[test]
fn a_command_that_does_not_exist_is_an_error() {
    let ran = TestDir::new().run(["teleport"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("teleport"), "{}", ran.err);
    assert_eq!(TestDir::new().run([] as [&str; 0]).code, Some(2));
}
