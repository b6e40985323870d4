//! Several processes with one cache, and processes that are killed.

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use straightway_cache::Cache;
use straightway_io::ExecutorParts;

use crate::fixture::{MIB, Opened, Web, cache, expected, files};

/// The variable with the task of a child: the address of the server, the folder, and the lengths of the objects.
const TASK: &str = "STRAIGHTWAY_CACHE_CHILD";

fn task(web: &Web, folder: &Path) -> String {
    let lengths: Vec<_> = web.all().iter().map(|(_, range)| range.end.to_string()).collect();
    format!("{} {} {}", web.server.url("/"), folder.display(), lengths.join(","))
}

fn child(task: &str, wrapper: &[&str]) -> Child {
    let this = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(std::ffi::OsStr::new).chain([this.as_os_str()]);
    Command::new(words.next().unwrap())
        .args(words)
        .args([
            "--ignored",
            "--exact",
            "processes::a_child_loads_everything",
            "--nocapture",
        ])
        .env(TASK, task)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Prints the source of the bytes and the note of the receipt.
#[test]
#[ignore = "it runs as a child of other tests"]
fn a_child_loads_everything() {
    let task = std::env::var(TASK).expect("set by the test that starts it");
    let words: Vec<_> = task.split(' ').collect();
    let [url, folder, lengths] = words[..] else {
        panic!("{task}")
    };
    let lengths: Vec<usize> = lengths.split(',').map(|len| len.parse().unwrap()).collect();
    let parts: Vec<_> = lengths.iter().map(|len| 0..*len).enumerate().collect();
    let cache = Arc::new(Cache::open(Path::new(folder), 1 << 30).unwrap());
    let (seen, receipt) = Opened::new(url, &cache, &parts, ExecutorParts::default())
        .load()
        .unwrap();
    assert!(seen == expected(&parts, 1, &lengths), "bytes differ");
    eprintln!("loaded {:?}", receipt.warnings);
}

fn wait(mut child: Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("loaded"), "{said}");
    said
}

#[test]
fn each_range_is_fetched_by_one_of_several_processes() {
    let (_folder, cache) = cache(1 << 30);
    let web = Web::start([vec![17 * MIB + 5; 2], (1..200).map(|n| n * 321).collect()].concat());
    let task = task(&web, cache.path());
    let children: Vec<_> = (0..5).map(|_| child(&task, &[])).collect();
    for child in children {
        wait(child);
    }
    let total: usize = web.all().iter().map(|(_, range)| range.len()).sum();
    // Each open of an object requests its first 64 KiB.
    let opens: usize = web.all().iter().map(|(_, range)| range.len().min(64 << 10) + 500).sum();
    let sent = web.sent.load(Ordering::SeqCst);
    let most = (total + 5 * opens) as u64;
    assert!(sent <= most + most / 50, "{sent} of {most}");
}

#[test]
fn a_killed_process_leaves_no_incomplete_entry() {
    let (_folder, cache) = cache(1 << 30);
    let web = Web::start([vec![9 * MIB + 5; 5], vec![1234; 100]].concat());
    let task = task(&web, cache.path());
    let mut killed = 0;
    for round in 0..12_u64 {
        let mut one = child(&task, &[]);
        std::thread::sleep(Duration::from_millis(40 + round * 23 % 170));
        one.kill().unwrap();
        killed += u32::from(!one.wait().unwrap().success());
        // Another process gets every byte, and checks each entry that it reads.
        if round % 4 == 3 {
            wait(child(&task, &[]));
            for path in files(cache.path()).iter().step_by(2) {
                fs::remove_file(path).unwrap();
            }
        }
    }
    assert!(killed > 0, "no process was killed in time");
    web.check(&cache, &web.all());
    assert_eq!(web.check(&cache, &web.all()).ways().0, 0);
    // The draft of a dead process is removed by the next process that adds an entry.
    let shard = files(cache.path())[0].clone();
    let left = shard.with_file_name(format!(
        "{}.part",
        "0".repeat(62) + ".0000000000000000-0000000000000001"
    ));
    fs::write(&left, "part").unwrap();
    fs::remove_file(shard).unwrap();
    let again = Arc::new(Cache::open(cache.path(), 1 << 30).unwrap());
    web.check(&again, &web.all());
    assert!(!left.exists());
}

#[test]
fn a_full_disk_is_noted_and_the_load_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let web = Web::start([vec![9 * MIB + 5; 2], vec![70_000; 20]].concat());
    let path = folder.path().join("full");
    fs::create_dir(&path).unwrap();
    let mounted = format!(
        "mount -t tmpfs -o size=3m,mode=700 tmpfs {} && exec \"$@\"",
        path.display()
    );
    let wrapper = ["unshare", "--mount", "sh", "-c", &mounted, "sh"];
    let probe = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    }
    let said = wait(child(&task(&web, &path), &wrapper));
    assert!(said.contains("not everything was kept in the cache"), "{said}");
    assert!(said.contains("No space left"), "{said}");
}
