//! Side queues: single commands of any thread, for headers, small writes and flushes.

use std::{sync::Arc, time::Instant};

use straightway_core::Lock;
use straightway_nvme::{Cqe, Sgl, Sqe, Status, nvm::Nvm};

use super::{
    controller::{Controller, QueueId},
    failure::LinkError,
    link::Link,
};

/// The side queues of a subsystem: at most one for each controller.
#[derive(Debug, Default)]
pub(crate) struct SideQueues(Lock<Vec<Arc<Side>>>);

/// The side queue of a controller. Its lock is held while a command runs: a long flush delays no other path.
#[derive(Debug)]
struct Side {
    /// The requested controller.
    controller: Arc<Controller>,
    /// `None` while it is not connected.
    queue: Lock<Option<SideQueue>>,
}

#[derive(Debug)]
struct SideQueue {
    link: Link,
    /// Its controller: the requested one, or another association if that grants no more queues.
    controller: Arc<Controller>,
    _id: QueueId,
}

/// The cause of a failed command.
#[derive(Debug)]
pub(crate) enum SideFailure {
    /// The queue could not be connected. The command was not sent.
    Connect(String),
    /// The connection was lost. The target may still execute the command.
    Lost(String),
    /// The target failed the command.
    Refused(Status),
    /// The association of the queue must not get the command. It was not sent.
    Forbidden(Arc<str>),
}

impl SideQueues {
    /// The side queue of a controller. Forgets those of controllers that have ended.
    fn of(&self, controller: &Arc<Controller>) -> Arc<Side> {
        let mut all = self.0.lock();
        all.retain(|side| side.controller.ended().is_none());
        let known = all.iter().find(|s| s.controller.number == controller.number);
        if let Some(side) = known {
            return Arc::clone(side);
        }
        let side = Arc::new(Side {
            controller: Arc::clone(controller),
            queue: Lock::new(None),
        });
        all.push(Arc::clone(&side));
        side
    }

    /// Runs a command on a controller. Connects the queue if there is none. `permit` is asked before the command is
    /// sent, with the association of the queue: it may be another one than the requested, with another target.
    pub(crate) fn run(
        &self,
        controller: &Arc<Controller>,
        permit: impl FnOnce(&Arc<Controller>) -> Result<(), SideFailure>,
        sqe: Sqe,
        out: &[u8],
        into: &mut [u8],
    ) -> Result<Cqe, SideFailure> {
        let side = self.of(controller);
        let mut slot = side.queue.lock();
        let known = slot.take().filter(|queue| queue.controller.ended().is_none());
        let known = match known {
            Some(queue) => queue,
            None => SideQueue::connect(controller)?,
        };
        let queue = slot.insert(known);
        permit(&queue.controller)?;
        controller.touch();
        queue.controller.touch();
        let capsule = queue.controller.limits.capsule_bytes as usize;
        let bytes = u32::try_from(out.len()).expect("commands are short");
        let sqe = match out.len() {
            0 => sqe,
            length if length <= capsule => sqe.with_sgl(Sgl::in_capsule(bytes)),
            _ => sqe.with_sgl(Sgl::transport(bytes)),
        };
        let deadline = Instant::now() + controller.settings.command_max;
        match queue.link.run(sqe, out, into, deadline) {
            Ok(cqe) => Ok(cqe),
            Err(LinkError::Refused(status, _)) => {
                if !status.is_retryable() && Nvm::from_sqe(&sqe) == Ok(Nvm::Flush) {
                    // A Straightway target reports lost writes until it gets another command on this queue. Without
                    // one, the next flush would fail too, although its writes are new.
                    let _ = queue.link.run(sqe, &[], &mut [], deadline);
                }
                Err(SideFailure::Refused(status))
            }
            Err(LinkError::Broken(why)) => {
                queue.controller.end(why.as_str());
                *slot = None;
                Err(SideFailure::Lost(why))
            }
        }
    }
}

impl SideQueue {
    fn connect(controller: &Arc<Controller>) -> Result<Self, SideFailure> {
        let queue = controller.any_queue();
        let (own, mut link, id) = queue.map_err(|refusal| SideFailure::Connect(refusal.why))?;
        link.set_owner(&own.association);
        Ok(Self {
            link,
            controller: own,
            _id: id,
        })
    }
}
