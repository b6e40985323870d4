//! The controller's side of DH-HMAC-CHAP.
//!
//! Authentication Send delivers a message to [`AuthController::receive`]. Authentication Receive fetches the next
//! message from [`AuthController::send`]. An invalid message is answered with Failure1, and the exchange stays failed.
//! A host may authenticate again in a new exchange, for example to renew its keys.

use super::{
    AuthRandom,
    group::DhGroup,
    message::{Challenge, Failure, FailureExplanation, Message, Negotiate, Reply, Success1},
    response::{Hash, Names, Prover, ResponseInput, Terms},
    secret::Secret,
};

/// The secrets that one host and this subsystem share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthKeys {
    /// The secret of the host.
    pub host: Secret,
    /// The secret of the subsystem, with which the controller proves its identity.
    pub controller: Option<Secret>,
    /// The required hash; `None` for the first one that the host offers.
    pub hash: Option<Hash>,
    /// The required group; `None` for ffdhe2048 if the host offers it, else its first one.
    pub group: Option<DhGroup>,
}

impl AuthKeys {
    /// Keys for one-way authentication of a host, with any hash and group.
    pub fn of_host(host: Secret) -> Self {
        Self {
            host,
            controller: None,
            hash: None,
            group: None,
        }
    }
}

/// The state of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthStep {
    /// The host has to send Negotiate.
    Negotiate,
    /// The host has to fetch the challenge.
    Challenge,
    /// The host has to send its reply.
    Reply,
    /// The host has to fetch Success1.
    Success1,
    /// The host has to send Success2.
    Success2,
    /// The host is authenticated.
    Done,
    /// The host has to fetch Failure1.
    Failure1,
    /// The exchange has failed.
    Failed,
}

/// The controller's side of one exchange.
#[derive(Debug)]
pub struct AuthController {
    names: Names,
    keys: AuthKeys,
    random: AuthRandom,
    step: AuthStep,
    transaction: u16,
    terms: Option<Terms>,
    success: Option<Success1>,
    failure: Failure,
}

impl AuthController {
    /// An exchange between the two sides in `names`. `random` must be fresh.
    pub fn new(names: Names, keys: AuthKeys, random: AuthRandom) -> Self {
        Self {
            names,
            keys,
            random,
            step: AuthStep::Negotiate,
            transaction: 0,
            terms: None,
            success: None,
            failure: FailureExplanation::IncorrectMessage.into(),
        }
    }

    /// The state of the exchange.
    pub fn step(&self) -> AuthStep {
        self.step
    }

    /// The cause of the failure, if the exchange has failed.
    pub fn failure(&self) -> Option<Failure> {
        matches!(self.step, AuthStep::Failure1 | AuthStep::Failed).then_some(self.failure)
    }

    /// Processes a message of the host.
    pub fn receive(&mut self, bytes: &[u8]) {
        if let Err(failure) = self.take(bytes) {
            self.failure = failure;
            self.step = AuthStep::Failure1;
        }
    }

    /// Returns the next message to the host. A call out of turn fails the exchange.
    pub fn send(&mut self) -> Vec<u8> {
        match self.step {
            AuthStep::Challenge => {
                self.step = AuthStep::Reply;
                self.challenge()
            }
            AuthStep::Success1 => {
                let success = self.success.take().expect("it is set before this step");
                self.step = if success.response.is_some() {
                    AuthStep::Success2
                } else {
                    AuthStep::Done
                };
                Message::Success1(success).encode()
            }
            step => {
                if step != AuthStep::Failure1 {
                    self.failure = FailureExplanation::IncorrectMessage.into();
                }
                self.step = AuthStep::Failed;
                Message::Failure {
                    transaction: self.transaction,
                    is_host: false,
                    failure: self.failure,
                }
                .encode()
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let message = Message::decode(bytes)?;
        let is_negotiate = matches!(message, Message::Negotiate(_));
        if !is_negotiate && message.transaction() != self.transaction {
            return Err(FailureExplanation::IncorrectPayload.into());
        }
        match (self.step, message) {
            (AuthStep::Negotiate, Message::Negotiate(negotiate)) => self.negotiate(&negotiate),
            (AuthStep::Reply, Message::Reply(reply)) => self.check(&reply),
            (AuthStep::Success2, Message::Success2 { .. }) => {
                self.step = AuthStep::Done;
                Ok(())
            }
            (_, Message::Failure { failure, .. }) => {
                self.failure = failure;
                self.step = AuthStep::Failed;
                Ok(())
            }
            _ => Err(FailureExplanation::IncorrectMessage.into()),
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate) -> Result<(), Failure> {
        self.transaction = negotiate.transaction;
        if negotiate.secure_channel != 0 {
            return Err(FailureExplanation::SecureChannelMismatch.into());
        }
        let offered = |wanted: Option<DhGroup>| wanted.filter(|group| negotiate.groups.contains(group));
        let hash = match self.keys.hash {
            Some(hash) => negotiate.hashes.iter().find(|h| **h == hash),
            None => negotiate.hashes.first(),
        };
        let group = match self.keys.group {
            Some(group) => offered(Some(group)),
            None => offered(Some(DhGroup::Ffdhe2048)).or(negotiate.groups.first().copied()),
        };
        self.terms = Some(Terms {
            hash: *hash.ok_or(Failure::from(FailureExplanation::HashUnusable))?,
            group: group.ok_or(Failure::from(FailureExplanation::GroupUnusable))?,
            transaction: negotiate.transaction,
            secure_channel: 0,
        });
        self.step = AuthStep::Challenge;
        Ok(())
    }

    fn challenge(&self) -> Vec<u8> {
        let terms = self.terms.as_ref().expect("they are set before this step");
        Message::Challenge(Challenge {
            transaction: self.transaction,
            hash: terms.hash,
            group: terms.group,
            sequence: self.random.sequence,
            value: self.own(terms.hash).to_vec(),
            public: terms.group.public(&self.random.exponent),
        })
        .encode()
    }

    fn own(&self, hash: Hash) -> &[u8] {
        &self.random.challenge[..hash.bytes()]
    }

    fn check(&mut self, reply: &Reply) -> Result<(), Failure> {
        let terms = self.terms.as_ref().expect("they are set before this step");
        let wrong = Failure::from(FailureExplanation::IncorrectPayload);
        if reply.response.len() != terms.hash.bytes() || reply.public.len() != terms.group.value_bytes() {
            return Err(wrong);
        }
        let shared = match terms.group {
            DhGroup::Null => Vec::new(),
            group => group.shared(&reply.public, &self.random.exponent).ok_or(wrong)?,
        };
        let mut input = ResponseInput {
            prover: Prover::Host,
            names: &self.names,
            terms,
            challenge: self.own(terms.hash),
            sequence: self.random.sequence,
            shared: &shared,
        };
        let key = self.keys.host.transformed(&self.names.host);
        if !input.is_correct(&key, &reply.response) {
            return Err(FailureExplanation::Failed.into());
        }
        let response = match (&reply.challenge, &self.keys.controller) {
            (None, _) => None,
            // The host requests authentication of the controller, and there is no secret for it.
            (Some(_), None) => return Err(FailureExplanation::Failed.into()),
            // Reflection attack: the host sends the controller's challenge back to obtain its response.
            (Some(challenge), Some(_)) if challenge == input.challenge => {
                return Err(FailureExplanation::Failed.into());
            }
            (Some(challenge), Some(secret)) => {
                input.prover = Prover::Controller;
                input.challenge = challenge;
                input.sequence = reply.sequence;
                Some(input.response(&secret.transformed(&self.names.subsystem)))
            }
        };
        self.success = Some(Success1 {
            transaction: self.transaction,
            hash_bytes: u8::try_from(terms.hash.bytes()).expect("at most 64"),
            response,
        });
        self.step = AuthStep::Success1;
        Ok(())
    }
}
