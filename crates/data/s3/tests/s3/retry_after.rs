//! Waits that a service asks for.

use std::time::{Duration, Instant};

use straightway_io::store::list_all;
use straightway_net::Site;
use straightway_s3::S3;

use super::{
    access, network,
    server::{Reply, Server},
};

/// The service's clock.
const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[test]
fn a_listing_waits_as_long_as_the_service_asks_and_slows_every_request() {
    for after in ["1", "Sun, 06 Nov 1994 08:49:38 GMT"] {
        let server = Server::start(move |number, _| match number {
            0 => {
                let mut reply = Reply::error(503, "SlowDown");
                let headers = [("Retry-After", after), ("Date", NOW)];
                let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
                reply.headers.extend(headers);
                reply
            }
            _ => Reply::new(200, &[], "<ListBucketResult/>"),
        });
        let network = network();
        let store = S3::new("lab", &access(&server.url()), &network).unwrap();
        let origin = network
            .origin(&Site::of(&server.url().parse().unwrap()).unwrap())
            .unwrap();
        let later = || Instant::now() + Duration::from_secs(1);
        let at = later();
        assert_eq!([at, at].map(|at| origin.pace().admit(at)), [Ok(()), Ok(())]);
        let start = Instant::now();
        list_all(&store).unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1), "{after}");
        assert_eq!(server.requests(), 2);
        let at = later();
        assert_eq!(origin.pace().admit(at), Ok(()));
        assert!(origin.pace().admit(at).is_err(), "{after}: requests keep a distance");
    }
}
