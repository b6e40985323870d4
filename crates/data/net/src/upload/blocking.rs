//! Sends parts with blocking calls: the remaining parts at a commit, and all parts where io_uring is forbidden.

use straightway_core::{ErrorKind, Result};

use super::Upload;
use crate::{
    checksum::{crc64nvme, md5_of},
    part::{StoredPart, UploadPart},
    response::HttpResponse,
    service::{Head, Judgement, Next},
};

impl Upload {
    /// Sends a part and records it as stored. Returns the number of retries.
    pub(crate) fn send(&self, number: u32, bytes: &[u8]) -> Result<u32> {
        let part = UploadPart {
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
                let error = self.remote.failed(ErrorKind::Invalid, why, "renew them");
                return Err(Judgement::new(Next::Renew, error));
            }
            let response = self.remote.send(&head, bytes.to_vec())?;
            if response.status() != 200 {
                return Err(self.remote.judge_body(response));
            }
            let head = HttpResponse::with_body(&response, b"");
            self.remote.service().stored(self.name(), &part, &head)
        })?;
        self.note(StoredPart { part, tag });
        Ok(retries)
    }
}
