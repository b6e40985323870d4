//! Listings of a service that is hostile or faulty: names that attack the terminal, and listings without an end.

use std::fs;

use straightway_core::text::is_unsafe;
use straightway_webserver::{ReceivedRequest, Server, ServerStep, short};

use crate::test_dir::{Ran, TestDir};

/// The number of names on a page of the service.
const PAGE_NAMES: usize = 1000;

/// The response to a request for a page of a listing.
fn page(objects: &[String], folders: &[String], token: Option<&str>) -> Vec<ServerStep> {
    let token = token.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    let object = |key: &String| format!("<Contents><Key>{key}</Key><Size>5</Size></Contents>");
    let folder = |prefix: &String| format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    let names = objects.iter().map(object).chain(folders.iter().map(folder));
    let body = format!(
        "<ListBucketResult><IsTruncated>{}</IsTruncated>{}{}</ListBucketResult>",
        token.is_some(),
        token.unwrap_or_default(),
        names.collect::<String>()
    );
    short("200 OK", &body)
}

/// Runs the command with this service as S3.
fn run(dir: &TestDir, server: &Server, args: &[&str]) -> Ran {
    let url = server.url("");
    let variables = [
        ("no_proxy", "*"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_ENDPOINT_URL_S3", &url),
    ];
    dir.run_with(&variables, args)
}

/// Fails unless the output has this number of lines, none of them with a character that acts on a terminal.
#[track_caller]
fn assert_lines(ran: &Ran, lines: usize) {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out.lines().count(), lines, "{}", ran.out);
    assert!(!ran.out.contains(|c| c != '\n' && is_unsafe(c)), "{:?}", ran.out);
}

#[test]
fn a_name_is_one_line_whatever_characters_it_has() {
    let objects = ["a\nerror: forged", "c\u{1b}[31md\u{7f}", "e\u{202e}gpj"].map(str::to_owned);
    let folders = ["f\n\u{1b}[2Jg/".to_owned()];
    let listed = (objects.clone(), folders.clone());
    let server = Server::start(move |request: &ReceivedRequest| {
        if request.method == "DELETE" || request.method == "POST" {
            return short("200 OK", "<DeleteResult></DeleteResult>");
        }
        let (objects, folders) = &listed;
        // Below each folder there is one object.
        match request.target.split_once("prefix=") {
            Some((_, prefix)) if prefix.starts_with("plain") => page(&["plain/x\ny".to_owned()], &[], None),
            Some(_) => page(&[format!("{}x\ny", folders[0])], &[], None),
            None => page(objects, folders, None),
        }
    });
    let dir = TestDir::new();
    // Four names and the total.
    assert_lines(&run(&dir, &server, &["ls", "s3://bucket"]), 5);
    assert_lines(&run(&dir, &server, &["ls", "--recursive", "s3://bucket"]), 5);
    let removed = run(&dir, &server, &["rm", "--recursive", "--dry-run", "s3://bucket/plain"]);
    assert_lines(&removed, 1);
    let ran = run(&dir, &server, &["ls", "--json", "s3://bucket"]);
    assert_lines(&ran, 4);
    let name = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let names: Vec<_> = ran.out.lines().map(name).collect();
    for object in &objects {
        assert!(
            names.iter().any(|named| named["name"] == **object),
            "{object:?}: {names:?}"
        );
    }

    // Files of a folder.
    let local = dir.folder("local");
    for object in &objects {
        fs::write(local.join(object), b"x").unwrap();
    }
    fs::create_dir(local.join("f\n\u{1b}[2Jg")).unwrap();
    assert_lines(&dir.run(["ls", "local"]), 5);
}

#[test]
fn a_folder_is_listed_with_sizes_dates_and_a_total() {
    let dir = TestDir::new();
    dir.folder("model/sub");
    dir.file("model/config.json", 2048, 1);
    dir.file("blob", 1 << 20, 2);
    std::os::unix::fs::symlink("../blob", dir.path("model/weights")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path("model/broken")).unwrap();
    let date = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in ["model/config.json", "blob"] {
        let file = fs::File::options().write(true).open(dir.path(name)).unwrap();
        file.set_modified(date).unwrap();
    }
    let ran = dir.run(["ls", "model"]);
    assert_eq!(
        ran.out,
        concat!(
            "         -                        broken -> nowhere\n",
            "     2 KiB  2001-09-09 01:46:40Z  config.json\n",
            "     1 MiB  2001-09-09 01:46:40Z  weights -> ../blob\n",
            "                                  sub/\n",
            "     1 MiB                        in 3 objects, and 1 folder (-r lists what is in them)\n",
        )
    );
    let ran = dir.run(["ls", "--json", "model"]);
    let lines: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4, "a total is no object");
    assert_eq!(
        (&lines[1]["bytes"], &lines[1]["modified_s"]),
        (&2048.into(), &1_000_000_000.into())
    );
    assert_eq!(
        (&lines[2]["bytes"], &lines[2]["points_to"]),
        (&(1 << 20).into(), &"../blob".into())
    );
    let ran = dir.run(["ls", "model/config.json"]);
    assert_eq!(ran.out, "     2 KiB  2001-09-09 01:46:40Z  model/config.json\n");
}

#[test]
fn a_listing_without_an_end_is_refused_at_the_limit() {
    let server = Server::start(|request: &ReceivedRequest| {
        let names: Vec<_> = (0..PAGE_NAMES).map(|n| format!("{}-{n}", request.number)).collect();
        page(&names, &[], Some(&request.number.to_string()))
    });
    let dir = TestDir::new();
    let ran = run(&dir, &server, &["ls", "--limit", "2500", "s3://bucket"]);
    assert_eq!((ran.code, ran.out.lines().count()), (Some(2), 2500), "{}", ran.err);
    assert!(
        ran.err.contains("more than 2500 names") && ran.err.contains("--limit"),
        "{}",
        ran.err
    );
    assert_eq!(server.requests(), 3);

    // Each folder has two folders, and no object.
    let server = Server::start(|request: &ReceivedRequest| {
        let prefix = request.target.split("prefix=").nth(1).unwrap_or_default();
        let prefix = prefix.replace("%2F", "/");
        page(&[], &[format!("{prefix}a/"), format!("{prefix}b/")], None)
    });
    let ran = run(&dir, &server, &["ls", "-r", "--limit", "200", "s3://bucket"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("more than 200 names"), "{}", ran.err);
}
