//! Connections to a subsystem: paths, associations, queues and their control threads.
//!
//! This layer knows addresses and controllers. It does not know which namespace a command is for, nor whether two
//! controllers have the same one: that is the layer above, `identity`.
//!
//! | file | content |
//! |---|---|
//! | `subsystem` | a subsystem and its paths; admin commands on any of them |
//! | `side` | side queues, for headers and flushes |
//! | `path` | one address: connects, reconnects, and reports its state |
//! | `controller` | an association: limits, queue identifiers |
//! | `control` | the thread of an association: keep-alive and asynchronous events, while it is in use |
//! | `association` | the state that a controller shares with its thread and its queues |
//! | `opening` | the setup of an association |
//! | `login` | in-band authentication |
//! | `link` | one blocking connection: the admin queue, and every I/O queue until it is connected |
//! | `failure` | the causes of failed commands and connection attempts |

pub(crate) mod association;
mod control;
pub(crate) mod controller;
pub(crate) mod failure;
pub(crate) mod link;
mod login;
pub(crate) mod opening;
pub(crate) mod path;
pub(crate) mod side;
pub(crate) mod subsystem;
