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

/// The pages of all commands and subcommands, such as `checkpoint ls`. The first is that of the program.
fn pages() -> impl Iterator<Item = &'static str> {
    straightway_cli::examples::pages().map(|(page, _)| page)
}

fn help(page: &str, option: &str) -> String {
    let words: Vec<_> = page.split_whitespace().chain([option]).collect();
    said(&words)
}

#[test]
fn the_help_of_every_page() {
    for page in pages() {
        let name = format!("help {page}").trim().replace(' ', "_");
        insta::assert_snapshot!(name, help(page, "--help"));
    }
}

#[test]
fn the_short_help_has_examples_but_no_options_of_stores_and_tuning() {
    for page in pages() {
        let short = help(page, "-h");
        for option in ["--endpoint", "--nvme-path", "--cache-size", "--chunk", "--staging"] {
            assert!(!short.contains(option), "{page}: {short}");
        }
        assert!(short.contains("\nExamples:\n  # "), "{page}: {short}");
        assert!(short.lines().count() <= 60, "{page}: {short}");
    }
    assert!(help("copy", "--help").contains("--endpoint"));
}

#[test]
fn the_version_names_the_commit() {
    let version = said(&["--version"]);
    let number = concat!("straightway ", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(number), "{version}");
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.git");
    if !top.exists() {
        eprintln!("left out: the commit: this is not a checkout");
        return;
    }
    let commit = version.split('(').nth(1).unwrap_or_default();
    let hash = commit.split(' ').next().unwrap();
    assert!(
        hash.len() >= 7 && hash.chars().all(|c| c.is_ascii_hexdigit()),
        "{version}"
    );
    assert_eq!(commit.split(' ').nth(1).unwrap().matches('-').count(), 2, "{version}");
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
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["completions", shell]);
        for word in ["llama3-405b", "pcie-dgx-h100", "cuda:0"] {
            let escaped = word.replace(':', "\\:");
            assert!(
                script.contains(word) || script.contains(&escaped),
                "{shell} lacks {word}"
            );
        }
        let files = match shell {
            "bash" => "compgen -f -W \"article-",
            "zsh" => "{_files; compadd -- article-",
            _ => "-F -a \"article-",
        };
        assert!(script.contains(files), "{shell} has no files beside scenarios");
    }
}

/// What bash offers for the last word of a line.
fn bash_offers(dir: &TestDir, words: &[&str]) -> Vec<String> {
    let script = said(&["completions", "bash"]);
    fs::write(dir.path("script"), script).unwrap();
    let line = format!(
        "source ./script; COMP_WORDS=({}); COMP_CWORD={}; {} 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
        format_args!(
            "_straightway straightway '{}' '{}'",
            words[words.len() - 1],
            words[words.len() - 2]
        ),
    );
    let ran = dir.run_program("bash", &["--norc", "-c", &line]);
    let mut offers: Vec<_> = ran.out.lines().map(str::to_owned).collect();
    offers.sort();
    offers
}

#[test]
fn bash_completes_scenarios_files_and_devices() {
    let dir = TestDir::new();
    fs::write(dir.path("llama-mine.toml"), "").unwrap();
    let plan = ["straightway", "plan", "checkpoint", "--scenario", "llama"];
    assert_eq!(bash_offers(&dir, &plan), ["llama-mine.toml", "llama3-405b"]);
    let list = bash_offers(&dir, &["straightway", "plan", "list", "pcie-dgx-"]);
    assert!(list.contains(&"pcie-dgx-h100".to_owned()), "{list:?}");
    let devices = bash_offers(&dir, &["straightway", "load", "--device", "h"]);
    assert_eq!(devices, ["host"]);
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
    for name in pages() {
        let file = format!("new/pages/{}.1", format!("straightway {name}").trim().replace(' ', "-"));
        let page = fs::read_to_string(dir.path(&file)).unwrap();
        for section in ["EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES"] {
            let heading = format!(".SH \"{section}\"");
            let is_there = page.contains(&heading) || page.contains(&format!(".SH {section}"));
            assert!(is_there, "{file} lacks {section}");
        }
        assert!(
            page.contains("STRAIGHTWAY_LOG") || page.contains("STRAIGHTWAY\\_LOG"),
            "{file}"
        );
    }
    let copy = fs::read_to_string(dir.path("new/pages/straightway-copy.1")).unwrap();
    insta::assert_snapshot!("man_copy", copy.split(".SH EXAMPLES").nth(1).unwrap_or(&copy));
}

#[test]
fn a_command_that_does_not_exist_is_an_error() {
    let ran = TestDir::new().run(["teleport"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("teleport"), "{}", ran.err);
    assert_eq!(TestDir::new().run([] as [&str; 0]).code, Some(2));
}
