//! The controller's side of DH-HMAC-CHAP.
//!
//! Authentication Send brings a message in ([`Controller::receive`]), Authentication Receive fetches the next one out
//! ([`Controller::send`]). A wrong message is answered by a Failure1, after which the exchange stays failed. A host may
//! begin anew with another Negotiate, as it does when its keys are renewed.

use super::{
    Random,
    group::Group,
    message::{Challenge, Failure, Message, Negotiate, Reply, Success1, Why},
    response::{Hash, Names, Prover, Question, Terms},
    secret::Secret,
};

/// The secrets that one host and this subsystem share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The host's.
    pub host: Secret,
    /// The subsystem's, with which the controller can prove itself.
    pub controller: Option<Secret>,
    /// The hash to use; `None`: the first that the host offers.
    pub hash: Option<Hash>,
    /// The group to use; `None`: ffdhe2048 where the host offers it, else its first.
    pub group: Option<Group>,
}

impl Keys {
    /// Keys for a host that proves itself, without demands on hash and group.
    pub fn of_host(host: Secret) -> Self {
        Self {
            host,
            controller: None,
            hash: None,
            group: None,
        }
    }
}

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The host has to send Negotiate.
    Negotiate,
    /// It has to fetch the challenge.
    Challenge,
    /// It has to send its reply.
    Reply,
    /// It has to fetch Success1.
    Success1,
    /// It has to send Success2.
    Success2,
    /// It has proved its secret.
    Done,
    /// It has to fetch Failure1.
    Failure1,
    /// It has failed.
    Failed,
}

/// One exchange, as a controller sees it.
#[derive(Debug)]
pub struct Controller {
    names: Names,
    keys: Keys,
    random: Random,
    step: Step,
    transaction: u16,
    terms: Option<Terms>,
    success: Option<Success1>,
    failure: Failure,
}

impl Controller {
    /// An exchange between `names`. `random` must be fresh.
    pub fn new(names: Names, keys: Keys, random: Random) -> Self {
        Self {
            names,
            keys,
            random,
            step: Step::Negotiate,
            transaction: 0,
            terms: None,
            success: None,
            failure: Why::IncorrectMessage.into(),
        }
    }

    /// How far it has come.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Why it failed, where it did.
    pub fn failure(&self) -> Option<Failure> {
        matches!(self.step, Step::Failure1 | Step::Failed).then_some(self.failure)
    }

    /// Takes a message of the host.
    pub fn receive(&mut self, bytes: &[u8]) {
        if let Err(failure) = self.take(bytes) {
            self.failure = failure;
            self.step = Step::Failure1;
        }
    }

    /// The next message to the host. One that comes out of turn is a failure.
    pub fn send(&mut self) -> Vec<u8> {
        match self.step {
            Step::Challenge => {
                self.step = Step::Reply;
                self.challenge()
            }
            Step::Success1 => {
                let success = self.success.take().expect("it is made before this step");
                self.step = if success.response.is_some() {
                    Step::Success2
                } else {
                    Step::Done
                };
                Message::Success1(success).encode()
            }
            step => {
                if step != Step::Failure1 {
                    self.failure = Why::IncorrectMessage.into();
                }
                self.step = Step::Failed;
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
            return Err(Why::IncorrectPayload.into());
        }
        match (self.step, message) {
            (Step::Negotiate, Message::Negotiate(negotiate)) => self.negotiate(&negotiate),
            (Step::Reply, Message::Reply(reply)) => self.check(&reply),
            (Step::Success2, Message::Success2 { .. }) => {
                self.step = Step::Done;
                Ok(())
            }
            (_, Message::Failure { failure, .. }) => {
                self.failure = failure;
                self.step = Step::Failed;
                Ok(())
            }
            _ => Err(Why::IncorrectMessage.into()),
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate) -> Result<(), Failure> {
        self.transaction = negotiate.transaction;
        if negotiate.secure_channel != 0 {
            return Err(Why::SecureChannelMismatch.into());
        }
        let offered =
            |wanted: Option<Group>| wanted.filter(|group| negotiate.groups.contains(group));
        let hash = match self.keys.hash {
            Some(hash) => negotiate.hashes.iter().find(|h| **h == hash),
            None => negotiate.hashes.first(),
        };
        let group = match self.keys.group {
            Some(group) => offered(Some(group)),
            None => offered(Some(Group::Ffdhe2048)).or(negotiate.groups.first().copied()),
        };
        self.terms = Some(Terms {
            hash: *hash.ok_or(Failure::from(Why::HashUnusable))?,
            group: group.ok_or(Failure::from(Why::GroupUnusable))?,
            transaction: negotiate.transaction,
            secure_channel: 0,
        });
        self.step = Step::Challenge;
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
        let wrong = Failure::from(Why::IncorrectPayload);
        if reply.response.len() != terms.hash.bytes()
            || reply.public.len() != terms.group.value_bytes()
        {
            return Err(wrong);
        }
        let shared = match terms.group {
            Group::Null => Vec::new(),
            group => group
                .shared(&reply.public, &self.random.exponent)
                .ok_or(wrong)?,
        };
        let mut question = Question {
            prover: Prover::Host,
            names: &self.names,
            terms,
            challenge: self.own(terms.hash),
            sequence: self.random.sequence,
            shared: &shared,
        };
        let key = self.keys.host.transformed(&self.names.host);
        if !question.is_answered(&key, &reply.response) {
            return Err(Why::Failed.into());
        }
        let response = match (&reply.challenge, &self.keys.controller) {
            (None, _) => None,
            // The host wants a proof, and there is no secret to prove.
            (Some(_), None) => return Err(Why::Failed.into()),
            // A host that sends its own challenge back wants its answer from us.
            (Some(challenge), Some(_)) if challenge == question.challenge => {
                return Err(Why::Failed.into());
            }
            (Some(challenge), Some(secret)) => {
                question.prover = Prover::Controller;
                question.challenge = challenge;
                question.sequence = reply.sequence;
                Some(question.answer(&secret.transformed(&self.names.subsystem)))
            }
        };
        self.success = Some(Success1 {
            transaction: self.transaction,
            hash_bytes: u8::try_from(terms.hash.bytes()).expect("at most 64"),
            response,
        });
        self.step = Step::Success1;
        Ok(())
    }
}
