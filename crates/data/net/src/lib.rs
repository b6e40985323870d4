//! Reads and uploads over HTTP/1.1, for stores whose objects are on a web server: S3 and plain HTTPS.
//!
//! | type | what it is |
//! |---|---|
//! | [`Network`] | the settings that all connections share: trusted certificates, proxies, limits |
//! | [`Client`] | sends one request and waits for its response on the caller's thread, for control planes |
//! | [`Origin`] | a server: its addresses, its pace and its observed latency, shared by all lanes |
//! | [`Service`] | the request format of a kind of server and the meaning of its responses; one per store |
//! | [`Remote`] | an open object: its origin, length and version, and its service |
//! | [`Upload`] | an object being written: its stored parts, and buffers of parts that are not complete |
//! | [`HttpEngine`] | the data path: many requests on a lane's sockets; bodies move straight to or from I/O buffers |
//!
//! A store implements [`Service`] and hands out [`Remote`]s as its handles. `Remote` requests ranges of one version of
//! the object and checks every response: status 206, the exact `Content-Range`, the same `ETag`.
//!
//! There is no async runtime. Threads exist only during a name lookup, during a renewal of credentials, and in the
//! engine for machines where io_uring is forbidden. A process may fork between transfers: a child opens its own
//! connections.
//!
//! Headers with secrets are written to sockets only: no `Debug`, log or error shows a header's value or the query of a
//! URL.

mod backoff;
mod checksum;
mod client;
mod engine;
mod facilities;
pub mod head;
mod lookup;
mod network;
mod origin;
mod pace;
mod part;
mod progress;
mod proxy;
mod remote;
mod response;
mod retry;
mod roots;
mod service;
mod settings;
mod site;
mod tuning;
mod upload;
mod validator;
mod waits;

pub use backoff::Backoff;
pub use checksum::{Algorithm, Checksum, Md5};
pub use client::{Client, WorkTime};
pub use engine::{FAMILY, HttpEngine, TUNING, engine, threads};
pub use network::Network;
pub use origin::Origin;
pub use pace::Pace;
pub use part::{PartTag, StoredPart, UploadPart};
pub use proxy::{NoProxy, Proxies, ProxyUrl};
pub use remote::{FirstResponse, OBJECT_BYTES_MAX, Remote};
pub use response::{BadHeader, ContentRange, HttpResponse, RETRY_AFTER_MAX};
pub use retry::persist;
pub use roots::{Roots, tls_config};
pub use service::{Head, Judgement, Next, Service, judge_status, overlong_wait};
pub use settings::NetworkSettings;
pub use site::Site;
pub use tuning::suited;
pub use upload::Upload;
pub use validator::Validator;
