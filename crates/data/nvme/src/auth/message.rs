//! Encoding of DH-HMAC-CHAP messages.
//!
//! A message begins with its type, its identifier, two zero bytes and the transaction identifier. Every length is
//! checked against the available bytes. Reserved fields are ignored, as NVMe requires.

use std::fmt;

use super::{group::DhGroup, response::Hash};

/// Message types.
const TYPE_COMMON: u8 = 0;
const TYPE_DHCHAP: u8 = 1;

/// Message identifiers.
const NEGOTIATE: u8 = 0;
const CHALLENGE: u8 = 1;
const REPLY: u8 = 2;
const SUCCESS1: u8 = 3;
const SUCCESS2: u8 = 4;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// The identifier of DH-HMAC-CHAP in the protocol list of a Negotiate.
const PROTOCOL_DHCHAP: u8 = 1;

/// The length of a protocol descriptor in a Negotiate, and the offsets of its hash and group lists.
const PROTOCOL_BYTES: usize = 64;
const HASHES_AT: usize = 4;
const GROUPS_AT: usize = 34;
const IDS_MAX: usize = 30;

/// The length of the header of Challenge, Reply, Success1 and Success2.
const HEAD_BYTES: usize = 16;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Host to controller: the supported hashes and groups.
    Negotiate(Negotiate),
    /// Controller to host: the challenge.
    Challenge(Challenge),
    /// Host to controller: the response, and a challenge for mutual authentication.
    Reply(Reply),
    /// Controller to host: the response was correct. It has the controller's own response for mutual authentication.
    Success1(Success1),
    /// Host to controller: the controller's response was correct.
    Success2 {
        /// The transaction.
        transaction: u16,
    },
    /// The exchange has failed.
    Failure {
        /// The transaction.
        transaction: u16,
        /// Whether the host (Failure2) or the controller (Failure1) reports it.
        is_host: bool,
        /// The cause.
        failure: Failure,
    },
}

/// The hashes and groups that a host supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// The transaction identifier of the whole exchange.
    pub transaction: u16,
    /// `SC_C`: 0 without a secure channel.
    pub secure_channel: u8,
    /// Hashes in order of preference. Unknown ones are left out.
    pub hashes: Vec<Hash>,
    /// Groups in order of preference. Unknown ones are left out.
    pub groups: Vec<DhGroup>,
}

/// The challenge of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The transaction.
    pub transaction: u16,
    /// The hash that the controller chose.
    pub hash: Hash,
    /// The group that it chose.
    pub group: DhGroup,
    /// Its sequence number.
    pub sequence: u32,
    /// The challenge, as long as the hash.
    pub value: Vec<u8>,
    /// Its DH public value, as long as the group; empty for the null group.
    pub public: Vec<u8>,
}

/// The reply of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The transaction.
    pub transaction: u16,
    /// The host's sequence number.
    pub sequence: u32,
    /// The response, as long as the hash.
    pub response: Vec<u8>,
    /// The host's challenge; `None` without mutual authentication.
    pub challenge: Option<Vec<u8>>,
    /// The host's DH public value; empty for the null group.
    pub public: Vec<u8>,
}

/// The message that accepts the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1 {
    /// The transaction.
    pub transaction: u16,
    /// The length of the hash.
    pub hash_bytes: u8,
    /// The controller's response to the host's challenge, if there was one.
    pub response: Option<Vec<u8>>,
}

/// The cause of a failed exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason code explanation on the wire.
    pub explanation: u8,
}

/// The reason code explanations of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureExplanation {
    /// The response is wrong: the secrets differ.
    Failed = 1,
    /// The protocol list does not have DH-HMAC-CHAP.
    ProtocolUnusable = 2,
    /// Only one side requires a secure channel.
    SecureChannelMismatch = 3,
    /// No hash in common.
    HashUnusable = 4,
    /// No group in common.
    GroupUnusable = 5,
    /// A message has invalid fields.
    IncorrectPayload = 6,
    /// A message is out of order.
    IncorrectMessage = 7,
}

impl From<FailureExplanation> for Failure {
    fn from(explanation: FailureExplanation) -> Self {
        Self {
            explanation: explanation as u8,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.explanation {
            1 => "the response is wrong: both sides need the same secret",
            2 => "the other side does not offer DH-HMAC-CHAP",
            3 => "one side wants a secure channel and the other does not",
            4 => "no hash in common",
            5 => "no DH group in common",
            6 => "a message had wrong fields",
            7 => "a message came out of order",
            other => return write!(f, "unknown explanation {other}"),
        })
    }
}

impl Message {
    /// Decodes a message. Bytes after its end are ignored: Authentication Receive returns a buffer of any length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let wrong = Failure::from(FailureExplanation::IncorrectPayload);
        let head: &[u8; 6] = bytes.first_chunk().ok_or(wrong)?;
        let transaction = u16::from_le_bytes([head[4], head[5]]);
        match (head[0], head[1]) {
            (TYPE_COMMON, NEGOTIATE) => negotiate(transaction, bytes).map(Self::Negotiate),
            (TYPE_COMMON, FAILURE1 | FAILURE2) => {
                let explanation = *bytes.get(7).ok_or(wrong)?;
                Ok(Self::Failure {
                    transaction,
                    is_host: head[1] == FAILURE2,
                    failure: Failure { explanation },
                })
            }
            (TYPE_DHCHAP, CHALLENGE) => challenge(transaction, bytes).map(Self::Challenge),
            (TYPE_DHCHAP, REPLY) => reply(transaction, bytes).map(Self::Reply),
            (TYPE_DHCHAP, SUCCESS1) => success1(transaction, bytes).map(Self::Success1),
            (TYPE_DHCHAP, SUCCESS2) if bytes.len() >= HEAD_BYTES => Ok(Self::Success2 { transaction }),
            (TYPE_DHCHAP, SUCCESS2) => Err(wrong),
            _ => Err(FailureExplanation::IncorrectMessage.into()),
        }
    }

    /// Encodes the message.
    ///
    /// # Panics
    ///
    /// Panics if a list or a value is too long for its length field. Values made by this crate never are.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Negotiate(negotiate) => encode_negotiate(negotiate),
            Self::Challenge(c) => {
                let mut bytes = head(TYPE_DHCHAP, CHALLENGE, c.transaction, HEAD_BYTES);
                bytes[6] = byte(c.value.len());
                bytes[8] = c.hash as u8;
                bytes[9] = c.group as u8;
                bytes[10..12].copy_from_slice(&word(c.public.len()));
                bytes[12..16].copy_from_slice(&c.sequence.to_le_bytes());
                bytes.extend_from_slice(&c.value);
                bytes.extend_from_slice(&c.public);
                bytes
            }
            Self::Reply(r) => {
                let mut bytes = head(TYPE_DHCHAP, REPLY, r.transaction, HEAD_BYTES);
                bytes[6] = byte(r.response.len());
                bytes[8] = u8::from(r.challenge.is_some());
                bytes[10..12].copy_from_slice(&word(r.public.len()));
                bytes[12..16].copy_from_slice(&r.sequence.to_le_bytes());
                bytes.extend_from_slice(&r.response);
                match &r.challenge {
                    Some(challenge) => bytes.extend_from_slice(challenge),
                    None => bytes.resize(bytes.len() + r.response.len(), 0),
                }
                bytes.extend_from_slice(&r.public);
                bytes
            }
            Self::Success1(s) => {
                let mut bytes = head(TYPE_DHCHAP, SUCCESS1, s.transaction, HEAD_BYTES);
                bytes[6] = s.hash_bytes;
                bytes[8] = u8::from(s.response.is_some());
                bytes.extend_from_slice(s.response.as_deref().unwrap_or_default());
                bytes
            }
            Self::Success2 { transaction } => head(TYPE_DHCHAP, SUCCESS2, *transaction, HEAD_BYTES),
            Self::Failure {
                transaction,
                is_host,
                failure,
            } => {
                let id = if *is_host { FAILURE2 } else { FAILURE1 };
                let mut bytes = head(TYPE_COMMON, id, *transaction, 8);
                // The only reason code: authentication failed.
                bytes[6] = 1;
                bytes[7] = failure.explanation;
                bytes
            }
        }
    }

    /// The transaction identifier.
    pub fn transaction(&self) -> u16 {
        match self {
            Self::Negotiate(Negotiate { transaction, .. })
            | Self::Challenge(Challenge { transaction, .. })
            | Self::Reply(Reply { transaction, .. })
            | Self::Success1(Success1 { transaction, .. })
            | Self::Success2 { transaction }
            | Self::Failure { transaction, .. } => *transaction,
        }
    }
}

fn head(kind: u8, id: u8, transaction: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[0] = kind;
    bytes[1] = id;
    bytes[4..6].copy_from_slice(&transaction.to_le_bytes());
    bytes
}

fn byte(length: usize) -> u8 {
    u8::try_from(length).expect("hashes have at most 64 bytes")
}

fn word(length: usize) -> [u8; 2] {
    let length = u16::try_from(length).expect("public values have at most 1024 bytes");
    length.to_le_bytes()
}

fn encode_negotiate(negotiate: &Negotiate) -> Vec<u8> {
    let mut bytes = head(TYPE_COMMON, NEGOTIATE, negotiate.transaction, 8);
    bytes[6] = negotiate.secure_channel;
    bytes[7] = 1;
    let mut protocol = [0; PROTOCOL_BYTES];
    protocol[0] = PROTOCOL_DHCHAP;
    protocol[2] = byte(negotiate.hashes.len());
    protocol[3] = byte(negotiate.groups.len());
    for (at, hash) in negotiate.hashes.iter().enumerate() {
        protocol[HASHES_AT + at] = *hash as u8;
    }
    for (at, group) in negotiate.groups.iter().enumerate() {
        protocol[GROUPS_AT + at] = *group as u8;
    }
    bytes.extend_from_slice(&protocol);
    bytes
}

fn negotiate(transaction: u16, bytes: &[u8]) -> Result<Negotiate, Failure> {
    let wrong = Failure::from(FailureExplanation::IncorrectPayload);
    let head: &[u8; 8] = bytes.first_chunk().ok_or(wrong)?;
    let (secure_channel, count) = (head[6], usize::from(head[7]));
    let protocols = bytes
        .get(8..8 + count * PROTOCOL_BYTES)
        .ok_or(wrong)?
        .chunks_exact(PROTOCOL_BYTES);
    let protocol = protocols
        .into_iter()
        .find(|protocol| protocol[0] == PROTOCOL_DHCHAP)
        .ok_or(Failure::from(FailureExplanation::ProtocolUnusable))?;
    let list = |at: usize, length: u8| {
        let length = usize::from(length);
        let fits = length > 0 && length <= IDS_MAX;
        fits.then(|| &protocol[at..at + length]).ok_or(wrong)
    };
    let hashes = list(HASHES_AT, protocol[2])?;
    let groups = list(GROUPS_AT, protocol[3])?;
    Ok(Negotiate {
        transaction,
        secure_channel,
        hashes: hashes.iter().filter_map(|id| Hash::from_id(*id)).collect(),
        groups: groups.iter().filter_map(|id| DhGroup::from_id(*id)).collect(),
    })
}

/// Splits the bytes after the header into consecutive parts.
fn parts<const N: usize>(bytes: &[u8], lengths: [usize; N]) -> Result<[&[u8]; N], Failure> {
    let mut rest = bytes.get(HEAD_BYTES..).unwrap_or_default();
    let mut parts = [&[][..]; N];
    for (part, length) in parts.iter_mut().zip(lengths) {
        (*part, rest) = rest
            .split_at_checked(length)
            .ok_or(Failure::from(FailureExplanation::IncorrectPayload))?;
    }
    Ok(parts)
}

/// The fields common to Challenge, Reply and Success1: the length of the hash, the length of the public value, and the
/// sequence number.
fn lengths(bytes: &[u8]) -> Result<(&[u8; HEAD_BYTES], usize, usize, u32), Failure> {
    let wrong = Failure::from(FailureExplanation::IncorrectPayload);
    let head: &[u8; HEAD_BYTES] = bytes.first_chunk().ok_or(wrong)?;
    let public = usize::from(u16::from_le_bytes([head[10], head[11]]));
    let sequence = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    Ok((head, usize::from(head[6]), public, sequence))
}

fn challenge(transaction: u16, bytes: &[u8]) -> Result<Challenge, Failure> {
    let (head, hash_bytes, public_bytes, sequence) = lengths(bytes)?;
    let hash = Hash::from_id(head[8]).ok_or(Failure::from(FailureExplanation::HashUnusable))?;
    let group = DhGroup::from_id(head[9]).ok_or(Failure::from(FailureExplanation::GroupUnusable))?;
    if hash_bytes != hash.bytes() || public_bytes != group.value_bytes() {
        return Err(FailureExplanation::IncorrectPayload.into());
    }
    let [value, public] = parts(bytes, [hash_bytes, public_bytes])?;
    Ok(Challenge {
        transaction,
        hash,
        group,
        sequence,
        value: value.to_vec(),
        public: public.to_vec(),
    })
}

fn reply(transaction: u16, bytes: &[u8]) -> Result<Reply, Failure> {
    let (head, hash_bytes, public_bytes, sequence) = lengths(bytes)?;
    let [response, challenge, public] = parts(bytes, [hash_bytes, hash_bytes, public_bytes])?;
    Ok(Reply {
        transaction,
        sequence,
        response: response.to_vec(),
        challenge: (head[8] & 1 == 1).then(|| challenge.to_vec()),
        public: public.to_vec(),
    })
}

fn success1(transaction: u16, bytes: &[u8]) -> Result<Success1, Failure> {
    let (head, hash_bytes, ..) = lengths(bytes)?;
    let response = if head[8] & 1 == 1 {
        let [response] = parts(bytes, [hash_bytes])?;
        Some(response.to_vec())
    } else {
        None
    };
    Ok(Success1 {
        transaction,
        hash_bytes: head[6],
        response,
    })
}
