//! Uploads whose start got no response: the writer aborts its own, and none of another writer.

use std::{
    ffi::OsStr,
    sync::{Arc, Mutex},
    time::Duration,
};

use reqsign_core::time::Timestamp;
use straightway_core::Result;
use straightway_io::{Settings, Store, store::Like};
use straightway_net::{Network, NetworkSettings, suited};
use straightway_s3::S3;
use straightway_webserver::{ReceivedRequest, Server, ServerStep, head};

use super::{
    access, content,
    writes::{upload, write},
};

const PART: usize = 8 << 20;
const ME: &str = "me";

/// An upload that the service has.
#[derive(Clone, Debug)]
struct Open {
    key: &'static str,
    id: String,
    /// How long ago it was begun.
    age: Duration,
    initiator: &'static str,
    parts: usize,
}

/// A service of multipart uploads that loses the responses to the first starts.
#[derive(Debug, Default)]
struct Uploads {
    open: Vec<Open>,
    /// The number of starts whose responses are lost.
    lost: usize,
    started: usize,
}

impl Uploads {
    /// An upload of the object `object` by another writer.
    fn add(&mut self, key: &'static str, age_s: u64, initiator: &'static str, parts: usize) {
        self.open.push(Open {
            key,
            id: format!("other-{}", self.open.len()),
            age: Duration::from_secs(age_s),
            initiator,
            parts,
        });
    }

    fn respond(&mut self, request: &ReceivedRequest) -> Vec<ServerStep> {
        let target = request.target.as_str();
        let id = target
            .split_once("uploadId=")
            .map(|(_, rest)| rest.split('&').next().unwrap());
        match (request.method.as_str(), id) {
            ("PUT", _) if target.contains("probe") => reply(400, "<Error><Code>BadDigest</Code></Error>"),
            ("POST", None) => self.start(),
            ("POST", Some(id)) => {
                self.open.retain(|open| open.id != id);
                reply(200, "<CompleteMultipartUploadResult/>")
            }
            ("DELETE", Some(id)) => {
                self.open.retain(|open| open.id != id);
                reply(204, "")
            }
            ("PUT", Some(id)) => {
                let open = self.open.iter_mut().find(|open| open.id == id).unwrap();
                open.parts += 1;
                reply(200, "")
            }
            ("GET", Some(id)) => {
                let open = self.open.iter().find(|open| open.id == id).unwrap();
                let parts = "<Part><PartNumber>1</PartNumber><Size>7</Size></Part>".repeat(open.parts.min(1));
                reply(200, &format!("<ListPartsResult>{parts}</ListPartsResult>"))
            }
            _ => reply(200, &self.list()),
        }
    }

    fn start(&mut self) -> Vec<ServerStep> {
        let id = format!("own-{}", self.started);
        self.started += 1;
        let body = format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
        self.open.push(Open {
            key: "object",
            id,
            age: Duration::ZERO,
            initiator: ME,
            parts: 0,
        });
        if self.started <= self.lost {
            return vec![ServerStep::Close];
        }
        reply(200, &body)
    }

    fn list(&self) -> String {
        let now = Timestamp::now();
        let uploads = self.open.iter().map(|open| {
            let begun = (now - open.age).format_rfc3339_zulu();
            let Open { key, id, initiator, .. } = open;
            format!(
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiator><ID>{initiator}</ID></Initiator>\
                 <Initiated>{begun}</Initiated></Upload>"
            )
        });
        let uploads: String = uploads.collect();
        format!("<ListMultipartUploadsResult>{uploads}</ListMultipartUploadsResult>")
    }
}

fn reply(status: u16, body: &str) -> Vec<ServerStep> {
    let (length, date) = (body.len().to_string(), Timestamp::now().format_http_date());
    let headers = [("Content-Length", length.as_str()), ("Date", &date), ("ETag", "\"x\"")];
    let mut bytes = head(&format!("{status} Some words"), &headers);
    bytes.extend_from_slice(body.as_bytes());
    vec![ServerStep::Bytes(bytes)]
}

/// Runs `write` on a service with these uploads. Returns its result and the ids of the uploads that are left.
fn left_by(uploads: Uploads, write: impl FnOnce(&S3) -> Result<()>) -> (Result<()>, Vec<String>) {
    let uploads = Arc::new(Mutex::new(uploads));
    let shared = Arc::clone(&uploads);
    let server = Server::start(move |request| shared.lock().unwrap().respond(request));
    let network = Network::new(NetworkSettings {
        attempts_max: 3,
        ..NetworkSettings::default()
    });
    let store = S3::new("lab", &access(&server.url("")), &network).unwrap();
    let written = write(&store);
    let uploads = uploads.lock().unwrap();
    (written, uploads.open.iter().map(|open| open.id.clone()).collect())
}

fn upload_object(store: &S3) -> Result<()> {
    upload(store, "object", &content(1, PART + 5))
}

#[test]
fn a_lost_response_to_the_start_of_an_upload_leaves_no_upload() {
    let uploads = || Uploads {
        lost: 2,
        ..Uploads::default()
    };
    let (written, left) = left_by(uploads(), upload_object);
    written.unwrap();
    assert_eq!(left, [""; 0]);
    // An object that is not committed.
    let (written, left) = left_by(uploads(), |store| {
        let draft = store.create(OsStr::new("object"), PART as u64 + 5, &Like::Replaced)?;
        write(store, &*draft, &content(1, PART), 0, suited(Settings::default())).map(drop)
    });
    written.unwrap();
    assert_eq!(left, [""; 0]);
    // A start that never gets a response.
    let endless = Uploads {
        lost: usize::MAX,
        ..Uploads::default()
    };
    let (written, left) = left_by(endless, upload_object);
    assert!(written.is_err());
    assert_eq!(left, [""; 0]);
}

#[test]
fn uploads_of_other_writers_are_not_aborted() {
    let mut uploads = Uploads {
        lost: 1,
        ..Uploads::default()
    };
    uploads.add("object", 3600, ME, 0);
    uploads.add("object-2", 0, ME, 0);
    uploads.add("object", 0, ME, 1);
    uploads.add("object", 0, "another", 0);
    let (written, left) = left_by(uploads, upload_object);
    written.unwrap();
    assert_eq!(left, ["other-0", "other-1", "other-2", "other-3"]);
    // One of two uploads was begun by another writer, and nothing tells which.
    let mut uploads = Uploads {
        lost: 1,
        ..Uploads::default()
    };
    uploads.add("object", 0, ME, 0);
    let (written, left) = left_by(uploads, upload_object);
    written.unwrap();
    assert_eq!(left, ["other-0", "own-0"]);
    // No response was lost.
    let mut uploads = Uploads::default();
    uploads.add("object", 0, ME, 0);
    let (written, left) = left_by(uploads, upload_object);
    written.unwrap();
    assert_eq!(left, ["other-0"]);
}
