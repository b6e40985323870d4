//! Parts that are sent on the caller's thread: what a commit still has to send, and where io_uring is forbidden.

use straightway_core::{Kind, Result};

use super::{Part, Stored, Upload};
use crate::{
    answer::Answer,
    checksum::{crc64nvme, md5_of},
    remote::headers,
    service::{Head, Judgement, Next},
};

impl Upload {
    /// Sends a part, and notes that the server has it. Answers how often it was sent again.
    pub(crate) fn send(&self, number: u32, bytes: &[u8]) -> Result<u32> {
        let part = Part {
            number,
            bytes: bytes.len() as u64,
            sum: crc64nvme(bytes),
            digest: (self.remote.service().wants_digest()).then(|| md5_of(bytes)),
        };
        let (tag, retries) = self.remote.persist(|_| {
            let mut head = Vec::new();
            let written = self.remote.service().put_head(&part, &mut head);
            if written.map_err(Judgement::of)? == Head::Renew {
                let why = "the credentials have expired";
                let error = self.remote.failed(Kind::Invalid, why, "renew them");
                return Err(Judgement::new(Next::Renew, error));
            }
            let answer = self.remote.send(&head, bytes.to_vec())?;
            if answer.status() != 200 {
                return Err(self.remote.judge_body(answer));
            }
            let headers = headers(&answer);
            let head = Answer::new(200, &headers, b"");
            self.remote.service().stored(self.name(), &part, &head)
        })?;
        self.note(Stored { part, tag });
        Ok(retries)
    }
}
