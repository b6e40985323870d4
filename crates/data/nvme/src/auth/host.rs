//! The host's side of DH-HMAC-CHAP.

use super::{
    AuthRandom,
    group::DhGroup,
    message::{Challenge, Failure, FailureExplanation, Message, Negotiate, Reply},
    response::{Hash, Names, Prover, ResponseInput, Terms},
    secret::Secret,
};

/// The host's side of one exchange: [`negotiate`](Self::negotiate), then [`reply`](Self::reply) to the challenge, then
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct AuthHost {
    names: Names,
    secret: Secret,
    controller: Option<Secret>,
    transaction: u16,
    expected: Option<Expected>,
}

/// The data for checking the controller's response.
#[derive(Debug)]
struct Expected {
    terms: Terms,
    challenge: Vec<u8>,
    sequence: u32,
    shared: Vec<u8>,
}

impl AuthHost {
    /// An exchange between `names` with the host's secret. With `controller`, the controller must prove that secret.
    pub fn new(names: Names, secret: Secret, controller: Option<Secret>, transaction: u16) -> Self {
        Self {
            names,
            secret,
            controller,
            transaction,
            expected: None,
        }
    }

    /// The first message.
    pub fn negotiate(&self) -> Vec<u8> {
        Message::Negotiate(Negotiate {
            transaction: self.transaction,
            secure_channel: 0,
            hashes: Hash::ALL.to_vec(),
            groups: DhGroup::ALL.to_vec(),
        })
        .encode()
    }

    /// Returns the reply to the controller's challenge.
    pub fn reply(&mut self, challenge: &[u8], random: &AuthRandom) -> Result<Vec<u8>, Failure> {
        let Message::Challenge(Challenge {
            hash,
            group,
            sequence,
            value,
            public,
            ..
        }) = self.received(challenge)?
        else {
            return Err(FailureExplanation::IncorrectMessage.into());
        };
        let terms = Terms {
            hash,
            group,
            transaction: self.transaction,
            secure_channel: 0,
        };
        let shared = match group {
            DhGroup::Null => Vec::new(),
            _ => group
                .shared(&public, &random.exponent)
                .ok_or(Failure::from(FailureExplanation::IncorrectPayload))?,
        };
        let input = ResponseInput {
            prover: Prover::Host,
            names: &self.names,
            terms: &terms,
            challenge: &value,
            sequence,
            shared: &shared,
        };
        let own = random.challenge[..hash.bytes()].to_vec();
        let reply = Reply {
            transaction: self.transaction,
            sequence: random.sequence,
            response: input.response(&self.secret.transformed(&self.names.host)),
            challenge: self.controller.is_some().then(|| own.clone()),
            public: group.public(&random.exponent),
        };
        self.expected = Some(Expected {
            terms,
            challenge: own,
            sequence: random.sequence,
            shared,
        });
        Ok(Message::Reply(reply).encode())
    }

    /// Ends the exchange. Returns the last message to send if the controller had to prove its identity and did.
    pub fn finish(&mut self, success: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let Message::Success1(success) = self.received(success)? else {
            return Err(FailureExplanation::IncorrectMessage.into());
        };
        let Some(expected) = self.expected.take() else {
            return Err(FailureExplanation::IncorrectMessage.into());
        };
        let Some(secret) = &self.controller else {
            return Ok(None);
        };
        let input = ResponseInput {
            prover: Prover::Controller,
            names: &self.names,
            terms: &expected.terms,
            challenge: &expected.challenge,
            sequence: expected.sequence,
            shared: &expected.shared,
        };
        let key = secret.transformed(&self.names.subsystem);
        let is_right = success
            .response
            .is_some_and(|response| input.is_correct(&key, &response));
        if !is_right {
            return Err(FailureExplanation::Failed.into());
        }
        let transaction = self.transaction;
        Ok(Some(Message::Success2 { transaction }.encode()))
    }

    /// The message that reports a failure to the controller.
    pub fn failure(&self, failure: Failure) -> Vec<u8> {
        Message::Failure {
            transaction: self.transaction,
            is_host: true,
            failure,
        }
        .encode()
    }

    fn received(&self, bytes: &[u8]) -> Result<Message, Failure> {
        match Message::decode(bytes)? {
            Message::Failure { failure, .. } => Err(failure),
            message if message.transaction() == self.transaction => Ok(message),
            _ => Err(FailureExplanation::IncorrectPayload.into()),
        }
    }
}
