//! Reads and uploads over HTTP/1.1, for stores whose objects are on a web server: S3, plain HTTPS and what comes later.
//!
//! | part | what it does |
//! |---|---|
//! | [`Network`] | the settings that all connections share: trusted certificates, proxies, limits |
//! | [`Client`] | one request and its answer on the caller's thread, for control planes |
//! | [`Origin`] | a server: its addresses, its pace and its observed latency, shared by all lanes |
//! | [`Service`] | how a kind of server wants to be asked, and what its answers mean; one per store |
//! | [`Remote`] | an open object: its origin, length and version, and the service that asks for it |
//! | [`Upload`] | an object in the making: which of its parts are stored, and bytes that are kept until a part is whole |
//! | [`HttpEngine`] | the data path: many requests on sockets of a lane, bodies received into and sent from the buffers of I/Os |
//!
//! A store implements [`Service`] and hands out [`Remote`]s as its handles. `Remote` asks for ranges of one version of
//! the object and checks every answer: status 206, the exact `Content-Range`, the same `ETag`.
//!
//! There is no runtime, and a thread lives only for a name lookup, for a renewal of credentials, or where io_uring is
//! forbidden, with its engine. A process may fork between transfers: a child makes connections of its own.
//!
//! Headers with secrets are written to sockets and nowhere else: no `Debug`, log or error shows a header's value, nor
//! the query of a URL.

mod answer;
mod backoff;
mod checksum;
mod client;
mod engine;
pub mod head;
mod lookup;
mod network;
mod origin;
mod pace;
mod proxy;
mod remote;
mod roots;
mod service;
mod tuning;
mod upload;
mod validator;

pub use answer::{Answer, BadHeader, ContentRange};
pub use backoff::Backoff;
pub use checksum::{Algorithm, Checksum};
pub use client::{Client, together};
pub use engine::{FAMILY, HttpEngine, TUNING, engine, threads};
pub use network::{Network, Settings};
pub use origin::{Origin, Site};
pub use pace::Pace;
pub use proxy::{Except, Proxies, ProxyUrl};
pub use remote::{First, Remote};
pub use roots::{Roots, tls_config};
pub use service::{Head, Judgement, Next, Service, judge_status};
pub use tuning::{suited, suited_for};
pub use upload::{Md5, Part, PartTag, Stored, Upload};
pub use validator::Validator;
