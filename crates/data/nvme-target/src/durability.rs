//! Flushes of a queue, and the failures that its host has to receive.
//!
//! A failed flush must reach the host. If the connection is lost before, the host repeats the flush on another one, and
//! that must fail too. A failure is therefore acknowledged only when the queue receives a command after the completion
//! was sent. A host that does not wait for completions may have sent that command before it received the failure. This
//! project's host flushes on a queue where it waits for each completion.
//!
//! Processes with the same host NQN and identifier are one host: one of them acknowledges for all. An association is no
//! smaller unit, because a process may write by one path and flush by another.

use std::sync::Arc;

use straightway_nvme::Status;

use crate::{host::HostIdentity, namespace::Namespace, version::LostWrites};

/// The failures that were reported on a queue and are not acknowledged, at most one for each namespace.
#[derive(Debug, Default)]
pub(crate) struct Reports(Vec<(Arc<Namespace>, u64)>);

impl Reports {
    /// Makes all writes to a namespace durable for a host.
    pub(crate) fn sync(&mut self, namespace: &Arc<Namespace>, host: &HostIdentity) -> Status {
        match namespace.sync(host) {
            Ok(()) => Status::SUCCESS,
            Err(LostWrites { failure, error }) => {
                tracing::error!("cannot make writes durable: {error}");
                let version = &namespace.version;
                self.0.retain(|(known, _)| !Arc::ptr_eq(&known.version, version));
                self.0.push((Arc::clone(namespace), failure));
                // It is not repeated: the kernel has dropped the data that it could not write.
                Status::WRITE_FAULT.dnr()
            }
        }
    }

    /// Makes all writes to several namespaces durable for a host. Ends at the first failure.
    pub(crate) fn sync_all<'a>(
        &mut self,
        namespaces: impl IntoIterator<Item = &'a Arc<Namespace>>,
        host: &HostIdentity,
    ) -> Status {
        let mut statuses = namespaces.into_iter().map(|each| self.sync(each, host));
        let failed = statuses.find(|status| !status.is_success());
        failed.unwrap_or(Status::SUCCESS)
    }

    /// Records that the host received all failures that were reported.
    pub(crate) fn acknowledge(&mut self, host: &HostIdentity) {
        for (namespace, failure) in self.0.drain(..) {
            namespace.version.acknowledge(host, failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use straightway_nvme::Nqn;

    use super::*;
    use crate::{backing::Backing, version::Version};

    #[test]
    fn a_flush_that_is_repeated_on_another_queue_fails_until_a_queue_goes_on() {
        let namespace = Arc::new(Namespace {
            nsid: 1,
            uuid: [1; 16],
            ana_group: 1,
            backing: Backing::memory("test", 4096, 9).expect("a page"),
            version: Arc::new(Version::new(7, None, 0)),
        });
        let host = HostIdentity {
            nqn: Nqn::new("nqn.host").expect("a name"),
            id: [1; 16],
        };
        namespace.write(&host, &[1; 512], 0).expect("inside");
        let fail = || Err(io::Error::other("the drive is gone"));
        assert!(namespace.version.sync(&host, fail).is_err());
        // Each of these queues ends before its host sends another command.
        for _ in 0..2 {
            let mut lost = Reports::default();
            assert!(!lost.sync(&namespace, &host).is_success());
        }
        let mut queue = Reports::default();
        assert!(!queue.sync_all([&namespace], &host).is_success());
        queue.acknowledge(&host);
        assert!(queue.sync_all([&namespace], &host).is_success());
        assert!(queue.0.is_empty());
    }
}
