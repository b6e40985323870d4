//! The authentication of one queue by DH-HMAC-CHAP.
//!
//! Each queue of a host with keys authenticates itself, I/O queues as well as the admin queue. Without a secret on its
//! own connection, whoever knows the names of a connected host could open an I/O queue in its place. Hosts that have no
//! keys are trusted from the start.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_nvme::{
    DISCOVERY_NQN, Sgl, Sqe, Status,
    auth::{AuthController, AuthRandom, AuthStep, Failure, Names},
    fabrics::{AUTH_PROTOCOL, AUTH_SPECIFIC, Fabrics},
};
use straightway_sys::nonce::fill_random;

use crate::{controller::Controller, host::add, login::Login, state::Shared};

/// The maximum buffer size of an authentication message.
const AUTH_BYTES_MAX: u32 = 8192;

/// The time for an exchange in addition to the login timeout: five messages, and on a slow host a second for the
/// exponentiations of ffdhe8192.
const EXCHANGE_TIME: Duration = Duration::from_secs(3);

/// The state of a queue's authentication.
#[derive(Debug)]
pub(crate) struct Authentication {
    controller: Arc<Controller>,
    names: Names,
    is_admin: bool,
    is_trusted: bool,
    exchange: Option<AuthController>,
    time_max: Duration,
    /// The time when the queue ends unless it is authenticated; `None` if it is.
    deadline: Option<Instant>,
}

impl Authentication {
    pub(crate) fn new(shared: &Shared, login: &Login) -> Self {
        let controller = Arc::clone(&login.controller);
        let subsystem = if controller.is_discovery {
            DISCOVERY_NQN
        } else {
            shared.nqn.as_str()
        };
        let is_trusted = controller.host.keys.is_none();
        let time_max = shared.login_timeout + EXCHANGE_TIME;
        Self {
            names: Names {
                host: controller.identity.nqn.as_str().to_owned(),
                subsystem: subsystem.to_owned(),
            },
            is_admin: login.connect.queue == 0,
            is_trusted,
            exchange: None,
            time_max,
            deadline: (!is_trusted).then(|| Instant::now() + time_max),
            controller,
        }
    }

    /// Whether the queue may execute other commands than those of authentication.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// The time when the queue ends unless it is authenticated; `None` if it is.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Executes Authentication Send, with its in-capsule data, or Authentication Receive, which returns a message.
    pub(crate) fn execute(
        &mut self,
        command: Fabrics,
        sqe: &Sqe,
        data: Result<&[u8], Status>,
    ) -> Result<Option<Vec<u8>>, Status> {
        match command {
            Fabrics::AuthSend {
                protocol,
                specific,
                bytes,
            } => {
                check_protocol(protocol, specific)?;
                let data = data?;
                if data.len() != bytes as usize || sqe.sgl.bytes != bytes {
                    return Err(Status::SGL_DATA_LENGTH.dnr());
                }
                self.receive(data)?;
                Ok(None)
            }
            Fabrics::AuthReceive {
                protocol,
                specific,
                bytes,
            } => {
                check_protocol(protocol, specific)?;
                if bytes > AUTH_BYTES_MAX || bytes == 0 || sqe.sgl.bytes != bytes {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                if sqe.sgl.kind != Sgl::TRANSPORT {
                    return Err(Status::INVALID_SGL_TYPE.dnr());
                }
                let mut message = self.send()?;
                if message.len() > bytes as usize {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                message.resize(bytes as usize, 0);
                Ok(Some(message))
            }
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Processes a message of the host. Begins an exchange if there is none or the last one is over.
    fn receive(&mut self, message: &[u8]) -> Result<(), Status> {
        let Some(keys) = &self.controller.host.keys else {
            return Err(Status::INVALID_FIELD.dnr());
        };
        let step = self.exchange.as_ref().map(AuthController::step);
        if matches!(step, None | Some(AuthStep::Done | AuthStep::Failed)) {
            let random = random().ok_or(Status::INTERNAL)?;
            let exchange = AuthController::new(self.names.clone(), keys.clone(), random);
            self.exchange = Some(exchange);
        }
        let exchange = self.exchange.as_mut().expect("it was made");
        exchange.receive(message);
        self.update();
        Ok(())
    }

    /// The next message to the host.
    fn send(&mut self) -> Result<Vec<u8>, Status> {
        let exchange = self.exchange.as_mut();
        let exchange = exchange.ok_or(Status::COMMAND_SEQUENCE.dnr())?;
        let message = exchange.send();
        self.update();
        Ok(message)
    }

    /// Updates the trust in the queue according to the state of its exchange.
    fn update(&mut self) {
        let Some(exchange) = &self.exchange else {
            return;
        };
        match exchange.step() {
            // At Success2 the host is authenticated. Only the target's own response is still to be confirmed.
            AuthStep::Done | AuthStep::Success2 => self.trust(),
            AuthStep::Failed => {
                let failure = exchange.failure();
                self.distrust(failure);
            }
            _ => {}
        }
    }

    fn trust(&mut self) {
        self.is_trusted = true;
        self.deadline = None;
        self.controller.mark_alive();
        if self.is_admin {
            self.controller.set_trusted(true);
        }
    }

    /// A failure on the admin queue ends the I/O queues. A failure on an I/O queue concerns only that queue: it may be
    /// another host that guessed the controller's identifier.
    fn distrust(&mut self, failure: Option<Failure>) {
        if self.is_trusted {
            // A host that renews its authentication gets the same time again. Failed attempts do not.
            self.deadline = Some(Instant::now() + self.time_max);
        }
        self.is_trusted = false;
        if self.is_admin {
            self.controller.set_trusted(false);
        }
        add(&self.controller.host.counters.refused, 1);
        if let Some(failure) = failure {
            let nqn = &self.controller.identity.nqn;
            tracing::warn!("host {nqn} is not authenticated: {failure}");
        }
    }
}

/// Whether a command belongs to authentication.
pub(crate) fn is_authentication(command: Fabrics) -> bool {
    matches!(command, Fabrics::AuthSend { .. } | Fabrics::AuthReceive { .. })
}

fn check_protocol(protocol: u8, specific: u16) -> Result<(), Status> {
    if protocol == AUTH_PROTOCOL && specific == AUTH_SPECIFIC {
        Ok(())
    } else {
        Err(Status::INVALID_FIELD.dnr())
    }
}

/// Fresh random bytes from the system's generator.
fn random() -> Option<AuthRandom> {
    let mut bytes = [0; AuthRandom::BYTES];
    fill_random(&mut bytes).ok()?;
    Some(AuthRandom::new(&bytes))
}
