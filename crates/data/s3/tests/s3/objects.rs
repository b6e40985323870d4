//! Objects and listings on a real server.

use std::{collections::BTreeMap, ffi::OsStr};

use straightway_core::ErrorKind;
use straightway_io::{
    Store,
    store::{ListPage, Missing, Named, list_all},
};

use super::{access, behind_proxy, content, on_server, open, read, store};

#[test]
fn objects_of_all_lengths_are_read_byte_for_byte() {
    let Some((weed, store)) = on_server() else {
        return;
    };
    for bytes in [0, 1, 7, 4095, 4096, 1 << 20, (1 << 20) + 1, (9 << 20) + 13] {
        let put = content(bytes as u64, bytes);
        weed.put(&format!("lengths/{bytes}"), put.clone());
        assert_eq!(read(&store, &format!("lengths/{bytes}")).unwrap(), put, "{bytes}");
    }
}

#[test]
fn unusual_keys_are_read_and_listed_under_their_names() {
    let Some((weed, store)) = on_server() else {
        return;
    };
    let names = [
        ("a b", "a%20b"),
        ("a+b", "a%2Bb"),
        ("ü-日本-🦀", "%C3%BC-%E6%97%A5%E6%9C%AC-%F0%9F%A6%80"),
        ("100%", "100%25"),
        ("%41", "%2541"),
        ("q?x=1&y", "q%3Fx%3D1%26y"),
        ("h#h", "h%23h"),
        ("<&\"'>", "%3C%26%22%27%3E"),
        ("~tilde*(!)", "~tilde%2A%28%21%29"),
        ("dots...", "dots..."),
        ("k:v,w;x@y=$", "k%3Av%2Cw%3Bx%40y%3D%24"),
    ];
    for (number, (_, target)) in names.iter().enumerate() {
        weed.put(&format!("odd/{target}"), content(number as u64, 100 + number));
    }
    let odd = store.below(OsStr::new("odd"), Missing::Refuse).unwrap();
    let listed = list_all(&*odd).unwrap();
    let sizes: BTreeMap<_, _> = listed
        .objects
        .iter()
        .map(|o| (o.name.to_str().unwrap(), o.bytes))
        .collect();
    for (number, (name, _)) in names.iter().enumerate() {
        assert_eq!(
            read(&store, &format!("odd/{name}")).unwrap(),
            content(number as u64, 100 + number),
            "{name}"
        );
        assert_eq!(sizes.get(name), Some(&Some(100 + number as u64)), "{name}: {sizes:?}");
    }
}

#[test]
fn a_listing_in_pages_has_every_name_once_with_its_size_and_tag() {
    let Some((weed, store)) = on_server() else {
        return;
    };
    let folder = store.below(OsStr::new("pages"), Missing::Refuse).unwrap();
    for number in 0..230 {
        weed.put(&format!("pages/{number:04}"), vec![7; number]);
        if number % 50 == 0 {
            weed.put(&format!("pages/below-{number}/x/y"), vec![1]);
        }
    }
    let (mut names, mut folders, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let page = folder.list(&ListPage { after, names_max: 37 }).unwrap();
        assert!(page.objects.len() + page.folders.len() <= 37);
        names.extend(page.objects);
        folders.extend(page.folders);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<String> = (0..230).map(|number| format!("{number:04}")).collect();
    assert_eq!(
        names.iter().map(|n| n.name.to_str().unwrap()).collect::<Vec<_>>(),
        expected
    );
    assert!(names.iter().zip(0..).all(|(named, bytes)| named.bytes == Some(bytes)));
    assert!(
        names
            .iter()
            .all(|named| named.tag.is_some() && named.modified.is_some())
    );
    folders.sort();
    assert_eq!(folders, ["below-0", "below-100", "below-150", "below-200", "below-50"]);
    assert_eq!(list_all(&*folder).unwrap().objects.len(), 230);
}

#[test]
fn a_listed_object_is_opened_without_a_request() {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let store = store(&access(&proxy.url()));
    let put = content(3, 300_000);
    weed.put("told/one", put.clone());
    let folder = store.below(OsStr::new("told"), Missing::Refuse).unwrap();
    let listed = list_all(&*folder).unwrap().objects;
    assert_eq!(proxy.counts().requests, 1);
    let opened = folder.open(&listed).unwrap();
    assert_eq!((opened[0].object().bytes, proxy.counts().requests), (300_000, 1));
    let mut bytes = vec![0; 1000];
    opened[0].read_exact_at(123_456, &mut bytes).unwrap();
    assert_eq!(bytes, put[123_456..124_456]);
    assert_eq!(proxy.counts().requests, 2);
    // An object of unknown length is opened by one request, which also returns its first bytes.
    let unknown = open(&store, "told/one").unwrap();
    unknown.read_exact_at(0, &mut bytes).unwrap();
    assert_eq!((bytes.as_slice(), proxy.counts().requests), (&put[..1000], 3));
}

#[test]
fn a_replaced_object_is_refused() {
    let Some((weed, store)) = on_server() else {
        return;
    };
    weed.put("replaced", content(1, 2 << 20));
    let opened = open(&store, "replaced").unwrap();
    opened.check_unchanged().unwrap();
    weed.put("replaced", content(2, 2 << 20));
    let mut bytes = [0; 100];
    let error = opened.read_exact_at((2 << 20) - 100, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(
        error.to_string().contains("s3://lab/replaced: it was replaced"),
        "{error}"
    );
    assert!(opened.check_unchanged().is_err());
    let old = Named {
        tag: opened.tag(),
        ..Named::new("replaced")
    };
    assert_eq!(store.open(&[old]).unwrap_err().kind(), ErrorKind::Precondition);
}

#[test]
fn many_objects_are_opened_in_one_call_and_a_missing_one_is_named() {
    let Some((weed, store)) = on_server() else {
        return;
    };
    for number in 0..100 {
        weed.put(&format!("many/{number}"), content(number, 1000));
    }
    let mut names: Vec<_> = (0..100).map(|number| Named::new(format!("many/{number}"))).collect();
    let opened = store.open(&names).unwrap();
    let mut bytes = vec![0; 1000];
    for (number, handle) in opened.iter().enumerate() {
        handle.read_exact_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, content(number as u64, 1000));
    }
    names[42] = Named::new("many/none");
    let error = store.open(&names).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("s3://lab/many/none"), "{error}");
}
