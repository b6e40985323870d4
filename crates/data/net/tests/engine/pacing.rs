//! The request rate of opens and of the engine with threads.

use std::time::{Duration, Instant};

use straightway_net::NetworkSettings;
use straightway_webserver::Server;

use super::{
    TAG,
    fixture::{Lab, content, read_all},
};

#[test]
fn opens_and_threads_keep_the_pace_of_an_overloaded_server_and_restore_it() {
    let object = content(10_000, 24);
    let copy = object.clone();
    let server = Server::start(move |request| request.response(&copy, TAG));
    let lab = Lab::new(&server, NetworkSettings::default());
    let pace = lab.origin.pace();
    let (begun, wait) = (Instant::now(), Duration::from_millis(400));
    pace.slow_down(begun, Some(wait));
    let remote = lab.open("/object");
    assert!(begun.elapsed() >= wait, "{:?}", begun.elapsed());
    assert!(pace.interval() > Duration::ZERO);
    let mut engine = straightway_net::threads(2).unwrap();
    let got = read_all(&mut engine, &remote, object.len(), 100).unwrap();
    assert!(got.bytes == object);
    assert_eq!(pace.interval(), Duration::ZERO, "good responses end the limit");
}
