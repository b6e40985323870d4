//! The contract of stores: the same cases on each, and on wrappers with one defect each.
//!
//! A declared verb is exercised; an undeclared one has to be refused as unsupported.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use straightway_core::{ErrorKind, Place};
use straightway_io::{
    Gds, Settings,
    store::{
        CommitMode, Condition, Draft, Durability, Files, LaneSpec, Like, ListPage, Listing, Missing, Named, Removal,
        Store, StoreExt, Tag, Verb, list_all, open_one,
    },
    track::Track,
};
use straightway_memory::Memory;

use crate::{defect::Defect, defect::DefectiveStore, engine};

/// The error says what is wrong with a store.
pub(crate) type Checked = Result<(), String>;

/// Objects in one listing: more than one page of S3 has.
const MANY: usize = 2500;

const NOW: Durability = Durability::Unsynced;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn wrong(what: impl Into<String>) -> Checked {
    Err(what.into())
}

/// Returns an error if `holds` is false.
fn check(holds: bool, what: &str) -> Checked {
    if holds { Ok(()) } else { wrong(what) }
}

fn err_to_string<T>(result: straightway_core::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn put(store: &dyn Store, object: &str, bytes: &[u8], on: &Condition) -> Result<bool, String> {
    err_to_string(store.put(name(object), bytes, on, NOW))
}

fn get(store: &dyn Store, object: &str) -> Option<Vec<u8>> {
    store.get(name(object), 1 << 20).ok()
}

fn is_there(store: &dyn Store, object: &str) -> bool {
    open_one(store, name(object)).is_ok()
}

fn draft(store: &dyn Store, object: &str, bytes: &[u8]) -> Result<Box<dyn Draft>, String> {
    let draft = err_to_string(store.create(name(object), bytes.len() as u64, &Like::Replaced))?;
    err_to_string(draft.write_all_at(0, bytes))?;
    Ok(draft)
}

/// Adds an object by a verb that the store has.
fn add(store: &dyn Store, object: &str, bytes: &[u8]) -> Checked {
    let verbs = store.verbs();
    let on = match (verbs.has(Verb::Put), verbs.has(Verb::PutIfAbsent)) {
        (_, true) => Condition::IfAbsent,
        (true, _) => Condition::Always,
        _ => {
            let draft = draft(store, object, bytes)?;
            return err_to_string(store.commit(vec![draft], CommitMode::InOrder));
        }
    };
    check(
        put(store, object, bytes, &on)?,
        &format!("a put of {object:?} into an empty place is done"),
    )
}

/// Calls a verb. Its effect does not matter.
fn call(store: &dyn Store, verb: Verb) -> straightway_core::Result<()> {
    let object = name("called");
    let put = |on: &Condition| store.put(object, b"x", on, NOW).map(drop);
    match verb {
        Verb::List => list_all(store).map(drop),
        Verb::Create => store
            .create(object, 1, &Like::Replaced)
            .and_then(|draft| store.commit(vec![draft], CommitMode::InOrder)),
        Verb::Put => put(&Condition::Always),
        Verb::PutIfAbsent => put(&Condition::IfAbsent),
        Verb::PutIfMatch => put(&Condition::IfMatch(Tag::Text("none".to_owned()))),
        Verb::Remove => store.remove(object, NOW),
        Verb::RemoveIfMatch => store
            .remove_if_match(object, &Tag::Text("none".to_owned()), NOW)
            .map(drop),
    }
}

/// Declared verbs work, and others are refused with the names of the store and the verb.
fn verbs_are_as_declared(store: &dyn Store) -> Checked {
    for verb in Verb::ALL {
        match (store.verbs().has(verb), call(store, verb)) {
            (true, Ok(())) => {}
            (true, Err(error)) => return wrong(format!("{verb:?} is declared: {error}")),
            (false, Ok(())) => return wrong(format!("{verb:?} is not declared and works")),
            (false, Err(error)) => {
                let text = error.to_string();
                let names = text.contains(verb.name()) && text.contains(&store.describe(name("")));
                check(error.kind() == ErrorKind::Unsupported && names, &text)?;
            }
        }
    }
    Ok(())
}

fn one_of_many_puts_if_absent_wins(store: &dyn Store) -> Checked {
    let done: Vec<_> = std::thread::scope(|scope| {
        let racer = |n: usize| put(store, "race", n.to_string().as_bytes(), &Condition::IfAbsent);
        let threads: Vec<_> = (0..16).map(|n| scope.spawn(move || racer(n))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let done = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    check(done.iter().filter(|won| **won).count() == 1, "one of many puts wins")?;
    let winner = done.iter().position(|won| *won).unwrap().to_string();
    let is_winners = get(store, "race") == Some(winner.into_bytes());
    check(is_winners, "the object is the winner's")?;
    check(!put(store, "race", b"late", &Condition::IfAbsent)?, "a later put loses")
}

fn a_put_replaces_the_whole_object(store: &dyn Store) -> Checked {
    for text in ["long text", "", "short"] {
        check(
            put(store, "replaced", text.as_bytes(), &Condition::Always)?,
            "a put is done",
        )?;
        check(get(store, "replaced") == Some(text.into()), "what was put is there")?;
    }
    Ok(())
}

fn a_put_if_match_needs_the_version_that_is_there(store: &dyn Store) -> Checked {
    let tag = |store: &dyn Store| {
        let handle = err_to_string(open_one(store, name("matched")))?;
        handle.tag().ok_or_else(|| "a store with this verb has tags".to_owned())
    };
    add(store, "matched", b"one")?;
    let first = tag(store)?;
    let handle = err_to_string(open_one(store, name("matched")))?;
    err_to_string(handle.check_unchanged())?;
    let on = Condition::IfMatch(first.clone());
    check(put(store, "matched", b"two", &on)?, "the version that is there matches")?;
    check(
        !put(store, "matched", b"three", &on)?,
        "an older version does not match",
    )?;
    check(!put(store, "absent", b"x", &on)?, "nothing does not match")?;
    check(
        get(store, "matched") == Some(b"two".into()),
        "a refused put changes nothing",
    )?;
    let kind = handle.check_unchanged().err().map(|error| error.kind());
    check(
        kind == Some(ErrorKind::Precondition),
        "a handle knows that its object was replaced",
    )?;
    let stale = Named {
        tag: Some(first),
        ..Named::new("matched")
    };
    let kind = store.open(&[stale]).err().map(|error| error.kind());
    check(
        kind == Some(ErrorKind::Precondition),
        "another version than was asked for is not opened",
    )
}

/// All pages of a listing, with at most `names_max` names each.
fn pages(store: &dyn Store, names_max: usize) -> Result<Vec<Listing>, String> {
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = err_to_string(store.list(&ListPage {
            after: after.clone(),
            names_max,
        }))?;
        let names = page.objects.len() + page.folders.len();
        check(names <= names_max, "a page has no more names than were asked for")?;
        check(
            names > 0 || page.next.is_none(),
            "a page that is not the last has names",
        )?;
        after.clone_from(&page.next);
        pages.push(page);
        check(pages.len() <= MANY + 2, "the pages end")?;
        if after.is_none() {
            return Ok(pages);
        }
    }
}

fn pages_are_complete_and_in_order(store: &dyn Store) -> Checked {
    let inside = err_to_string(store.below(name("listed"), Missing::Create))?;
    let objects: BTreeSet<OsString> = (0..MANY).map(|n| format!("object-{n}").into()).collect();
    // Two of them sort around a slash.
    let folders: BTreeSet<OsString> = ["f", "f-1", "f.2", "object-1"].map(OsString::from).into();
    for object in &objects {
        add(&*inside, object.to_str().unwrap(), b"x")?;
    }
    for folder in folders.iter().filter(|f| *f != "object-1") {
        add(&*inside, &format!("{}/a", folder.display()), b"x")?;
        add(&*inside, &format!("{}/b/c", folder.display()), b"x")?;
    }
    let folders: BTreeSet<_> = folders.into_iter().filter(|f| f != "object-1").collect();
    for names_max in [333, 1000, usize::MAX] {
        let pages = pages(&*inside, names_max)?;
        let listed: Vec<_> = pages.iter().flat_map(|p| &p.objects).map(|o| &o.name).collect();
        check(listed.is_sorted(), "objects are listed in order")?;
        check(listed.iter().copied().eq(&objects), "each object is listed once")?;
        let listed: BTreeSet<_> = pages.iter().flat_map(|p| p.folders.clone()).collect();
        let count: usize = pages.iter().map(|p| p.folders.len()).sum();
        check(
            listed == folders && count == folders.len(),
            "each folder is listed once",
        )?;
    }
    let empty = err_to_string(store.below(name("nothing"), Missing::Create))?;
    check(pages(&*empty, 10)? == [Listing::default()], "nothing is one empty page")
}

fn what_is_below_is_the_same_object(store: &dyn Store) -> Checked {
    add(store, "folder/deep/x", b"1")?;
    let folder = err_to_string(store.below(name("folder"), Missing::Refuse))?;
    let deep = err_to_string(store.below(name("folder/deep"), Missing::Refuse))?;
    check(
        get(&*folder, "deep/x") == Some(b"1".into()),
        "it is seen from the folder",
    )?;
    check(get(&*deep, "x") == Some(b"1".into()), "it is seen from below that")?;
    check(!is_there(&*folder, "x") && !is_there(store, "x"), "it is nowhere else")?;
    check(
        deep.describe(name("x")) == store.describe(name("folder/deep/x")),
        "it has one name",
    )?;
    add(&*folder, "y", b"2")?;
    add(store, "folder-2", b"3")?;
    if store.verbs().has(Verb::Remove) {
        err_to_string(store.clear(name("folder")))?;
        let is_gone = !is_there(store, "folder/deep/x") && !is_there(store, "folder/y");
        check(
            is_gone && is_there(store, "folder-2"),
            "a folder is cleared, and no other",
        )?;
        let left = err_to_string(list_all(store))?.folders;
        check(
            !left.contains(&"folder".into()),
            "a folder without objects is not listed",
        )?;
    }
    Ok(())
}

fn nothing_is_visible_before_its_commit(store: &dyn Store) -> Checked {
    let is_listed = |store: &dyn Store| {
        if !store.verbs().has(Verb::List) {
            return Ok(false);
        }
        err_to_string(list_all(store)).map(|all| all.objects.iter().any(|o| o.name == "draft"))
    };
    let begun = draft(store, "draft", b"dropped")?;
    check(
        !is_there(store, "draft") && !is_listed(store)?,
        "a draft is not visible",
    )?;
    drop(begun);
    check(
        !is_there(store, "draft") && !is_listed(store)?,
        "a dropped draft leaves nothing",
    )?;
    let begun = draft(store, "draft", b"kept")?;
    check(begun.handle().object().bytes == 4, "a draft knows its length")?;
    err_to_string(store.commit(vec![begun], CommitMode::InOrder))?;
    check(
        get(store, "draft") == Some(b"kept".into()),
        "a committed draft is there, whole",
    )?;
    let begun = draft(store, "draft", b"again")?;
    check(
        get(store, "draft") == Some(b"kept".into()),
        "the old one is there until the commit",
    )?;
    err_to_string(store.commit(vec![begun], CommitMode::InOrder))?;
    check(get(store, "draft") == Some(b"again".into()), "a commit replaces")?;
    let both = vec![draft(store, "draft", b"one")?, draft(store, "draft-2", b"two")?];
    err_to_string(store.commit(both, CommitMode::Each))?;
    let is_there = get(store, "draft") == Some(b"one".into()) && get(store, "draft-2") == Some(b"two".into());
    check(is_there, "independent drafts are committed together")
}

fn a_reader_that_sees_the_last_sees_all(store: &dyn Store) -> Checked {
    let objects: Vec<String> = (0..20).map(|n| format!("set-{n}")).collect();
    let drafts = objects.iter().map(|object| draft(store, object, b"x"));
    let drafts = drafts.collect::<Result<Vec<_>, _>>()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if is_there(store, "set-19") {
                    return objects.iter().all(|object| is_there(store, object));
                }
            }
            objects.iter().all(|object| is_there(store, object))
        });
        let committed = err_to_string(store.commit(drafts, CommitMode::InOrder));
        is_over.store(true, Ordering::Relaxed);
        let saw_all = watch.join().unwrap();
        committed.and_then(|()| check(saw_all, "a reader that sees the last sees all"))
    })
}

fn a_failed_commit_leaves_nothing(store: &dyn Store) -> Checked {
    // Drafts of both kinds of store, at least one of which this one cannot commit.
    let (memory, folder) = (Memory::new("other"), tempfile::tempdir().unwrap());
    let files = Files::below_path(folder.path(), Missing::Refuse).unwrap();
    let others: [&dyn Store; 2] = [&memory, &files];
    let mut refused = 0;
    for (number, other) in others.into_iter().enumerate() {
        let own = |n: usize| draft(store, &format!("failed-{number}-{n}"), b"x");
        let foreign = draft(other, "foreign", b"x")?;
        let committed = store.commit(vec![own(0)?, own(1)?, foreign, own(2)?], CommitMode::InOrder);
        let there = (0..3).filter(|n| is_there(store, &format!("failed-{number}-{n}")));
        let expected = if committed.is_ok() { 3 } else { 0 };
        check(there.count() == expected, "a commit is whole, or leaves nothing")?;
        refused += usize::from(committed.is_err());
    }
    check(refused > 0, "a draft of another kind of store is refused")
}

fn names_with_odd_characters_are_names(store: &dyn Store) -> Checked {
    let long = "n".repeat(200);
    let names = [
        "a b",
        "ü",
        "u\u{308}",
        "%41",
        "A",
        "a",
        "%2F",
        "-x",
        "..a",
        "a..",
        ".hidden",
        "line\nfeed",
        "\"'",
        "*?[",
        "\\",
        "\u{202e}",
        "日本",
        "a:b",
        "C:",
        "+ +",
        "#",
        "&amp;",
        &long,
    ];
    // SeaweedFS treats a backslash as a slash.
    let is_s3 = store.describe(name("")).starts_with("s3://");
    let names: Vec<_> = names.into_iter().filter(|n| !(is_s3 && *n == "\\")).collect();
    for (number, object) in (0_u8..).zip(&names) {
        add(store, object, &[number])?;
    }
    for (number, object) in (0_u8..).zip(&names) {
        let is_own = get(store, object) == Some(vec![number]);
        check(is_own, &format!("{object:?} is a name of its own"))?;
    }
    if store.verbs().has(Verb::List) {
        let all = err_to_string(list_all(store))?.objects;
        let listed = |object: &str| all.iter().any(|o| o.name == object);
        let missing = names.iter().find(|object| !listed(object));
        check(missing.is_none(), &format!("{missing:?} is listed"))?;
    }
    for object in ["", ".", "..", "a//b", "/a", "a/", "x/../a", "x/./a", "a\0b"] {
        check(add(store, object, b"x").is_err(), &format!("{object:?} is not a name"))?;
        // S3 keys with empty parts can be read, and SeaweedFS treats `a//b` as `a/b`.
        check(
            is_s3 || !is_there(store, object),
            &format!("{object:?} is not an object"),
        )?;
    }
    Ok(())
}

fn what_is_removed_is_gone(store: &dyn Store) -> Checked {
    add(store, "gone", b"x")?;
    add(store, "stays", b"x")?;
    for how in [Durability::Unsynced, Durability::Synced] {
        err_to_string(store.remove(name("gone"), how))?;
        check(!is_there(store, "gone"), "what is removed is gone")?;
    }
    err_to_string(store.remove(name("no/such/object"), NOW))?;
    let several = ["one", "two", "in/three"];
    several.into_iter().try_for_each(|object| add(store, object, b"x"))?;
    let removals = ["one", "missing", "two", "in/three"].map(|object| Removal::Object(name(object)));
    let removed = err_to_string(store.remove_all(&removals, NOW))?;
    check(removed == [true; 4], "there is one result for each name")?;
    check(
        !several.into_iter().any(|object| is_there(store, object)),
        "several names are removed at once",
    )?;
    check(is_there(store, "stays"), "nothing else is gone")
}

fn a_remove_if_match_needs_the_version_that_is_there(store: &dyn Store) -> Checked {
    let tag = || {
        let handle = err_to_string(open_one(store, name("matched")))?;
        let tag = handle.tag();
        tag.ok_or_else(|| "a store with this verb has tags".to_owned())
    };
    let remove = |object: &str, tag: &Tag| err_to_string(store.remove_if_match(name(object), tag, NOW));
    add(store, "matched", b"one")?;
    let first = tag()?;
    err_to_string(store.remove(name("matched"), NOW))?;
    // The tag of S3 follows from the bytes.
    let is_s3 = store.describe(name("")).starts_with("s3://");
    let again: &[u8] = if is_s3 { b"two" } else { b"one" };
    add(store, "matched", again)?;
    check(
        !remove("matched", &first)?,
        "an older version does not match, though its bytes are the same",
    )?;
    check(
        get(store, "matched") == Some(again.into()),
        "a refused removal changes nothing",
    )?;
    check(!remove("absent", &first)?, "nothing does not match")?;
    check(
        remove("matched", &tag()?)? && !is_there(store, "matched"),
        "the version that is there is removed",
    )
}

fn reads_are_whole_or_errors(store: &dyn Store) -> Checked {
    add(store, "read", b"0123456789")?;
    let handle = err_to_string(open_one(store, name("read")))?;
    let object = handle.object();
    check(
        (object.bytes, &object.name) == (10, &store.describe(name("read"))),
        "it is an object",
    )?;
    let mut bytes = [0; 4];
    err_to_string(handle.read_exact_at(5, &mut bytes))?;
    check(&bytes == b"5678", "a part is read")?;
    let past = [7, 10, 11, u64::MAX - 3].map(|at| handle.read_exact_at(at, &mut bytes).is_err());
    check(past == [true; 4], "a read past the end is an error")?;
    check(store.get(name("read"), 9).is_err(), "a read is bounded")?;
    let missing = open_one(store, name("missing")).map(drop);
    let kind = missing.err().map(|error| error.kind());
    check(kind == Some(ErrorKind::NotFound), "what is not there is not found")?;
    let both = [Named::new("read"), Named::new("missing")];
    check(store.open(&both).is_err(), "all are opened or none")
}

/// A case, and the verbs that it needs.
type Case = (fn(&dyn Store) -> Checked, &'static [Verb]);

const CASES: [Case; 12] = [
    (verbs_are_as_declared, &[]),
    (one_of_many_puts_if_absent_wins, &[Verb::PutIfAbsent]),
    (a_put_replaces_the_whole_object, &[Verb::Put]),
    (a_put_if_match_needs_the_version_that_is_there, &[Verb::PutIfMatch]),
    (pages_are_complete_and_in_order, &[Verb::List]),
    (what_is_below_is_the_same_object, &[Verb::List]),
    (nothing_is_visible_before_its_commit, &[Verb::Create]),
    (a_reader_that_sees_the_last_sees_all, &[Verb::Create]),
    (a_failed_commit_leaves_nothing, &[Verb::Create]),
    (names_with_odd_characters_are_names, &[]),
    (what_is_removed_is_gone, &[Verb::Remove]),
    (
        a_remove_if_match_needs_the_version_that_is_there,
        &[Verb::Remove, Verb::RemoveIfMatch],
    ),
];

/// Runs all cases, each on an empty store from `make`.
pub(crate) fn conforms(make: &dyn Fn() -> Arc<dyn Store>) -> Checked {
    for (case, verbs) in CASES {
        let store = make();
        if verbs.iter().all(|verb| store.verbs().has(*verb)) {
            case(&*store)?;
        }
    }
    reads_are_whole_or_errors(&*make())
}

#[test]
fn memory_conforms() {
    conforms(&|| Arc::new(Memory::new("test"))).unwrap();
    let part = || Memory::new("test").below(name("a/b"), Missing::Create).unwrap();
    conforms(&part).unwrap();
}

#[test]
fn files_conform() {
    let home = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let make = || -> Arc<dyn Store> {
        let folder = tempfile::tempdir_in(home.path()).unwrap().keep();
        Arc::new(Files::below_path(&folder, Missing::Refuse).unwrap())
    };
    conforms(&make).unwrap();
}

#[test]
fn the_engines_of_every_store_conform() {
    let settings = Settings::default();
    let stores: [&dyn Store; 2] = [&Memory::new("test"), &Files::default()];
    for store in stores {
        for track in [Track::Drive, Track::Cached, Track::Checked] {
            let place = Place::Host;
            let lane = LaneSpec {
                track,
                place,
                settings: &settings,
                gds: &Gds::default(),
            };
            let mut made = store.engine(&lane).unwrap();
            match store.facts().family {
                "memory" => engine::conforms_in_memory(&mut *made),
                _ => engine::conforms(&mut *made),
            }
        }
    }
}

#[test]
fn a_failed_commit_of_files_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = Files::below_path(folder.path(), Missing::Refuse).unwrap();
    let drafts: Vec<_> = ["a", "b", "c"].map(|n| draft(&store, n, b"x").unwrap()).into();
    // A rename onto a folder fails.
    std::fs::create_dir(folder.path().join("b")).unwrap();
    store.commit(drafts, CommitMode::InOrder).unwrap_err();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_store_with_one_defect_fails() {
    for defect in Defect::ALL {
        let make = move || -> Arc<dyn Store> { Arc::new(DefectiveStore::new(Arc::new(Memory::new("test")), defect)) };
        let outcome = conforms(&make);
        match defect {
            Defect::None => outcome.unwrap(),
            _ => println!(
                "{defect:?}: {}",
                outcome.expect_err(&format!("{defect:?} goes unnoticed"))
            ),
        }
    }
}
