//! The thread that runs the operations of streams, late and in any permitted order.
//!
//! A stream is a queue; only its head can run. The seed determines which head runs next and after how long. A destroyed
//! stream finishes its operations.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use crate::queue::{Copy, Op};
use crate::world::{World, changed, wait_for_change, world};

impl World {
    /// Adds an operation to an existing stream.
    pub(crate) fn enqueue(&mut self, stream: usize, op: Op) {
        start();
        self.streams.entry(stream).or_default().ops.push_back(op);
        changed();
    }

    /// Records an event after the current operations of the stream. Nothing is ever queued on the null stream.
    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Option<()> {
        let mark = self.events.get_mut(&event)?;
        mark.recorded += 1;
        let generation = mark.recorded;
        if stream == 0 {
            mark.passed = generation;
            return Some(());
        }
        self.enqueue(stream, Op::Record { event, generation });
        Some(())
    }

    /// Makes later operations of the stream wait for the last record of the event.
    pub(crate) fn wait_for(&mut self, event: usize, stream: usize) -> Option<()> {
        let generation = self.events.get(&event)?.recorded;
        self.enqueue(stream, Op::Wait { event, generation });
        Some(())
    }

    /// Drops the operations of a failed context: they would never have run.
    pub(crate) fn drop_work(&mut self) {
        self.streams.retain(|_, queue| {
            queue.ops.clear();
            !queue.is_destroyed
        });
        for mark in self.events.values_mut() {
            mark.passed = mark.recorded;
        }
    }

    /// Destroys a stream like the driver: at once for its owner, but its operations still run.
    pub(crate) fn destroy_stream(&mut self, stream: usize) -> Option<()> {
        let is_dead = self.fatal.is_some();
        let queue = self.streams.get_mut(&stream)?;
        if is_dead || queue.ops.is_empty() {
            self.streams.remove(&stream);
        } else {
            queue.is_destroyed = true;
        }
        Some(())
    }

    /// Whether a copy that has not run yet touches this host memory.
    pub(crate) fn is_host_in_flight(&self, start: usize, len: usize) -> bool {
        self.copies().any(|c| c.host < start + len && start < c.host + c.len)
    }

    /// Whether a copy that has not run yet touches this device memory.
    pub(crate) fn is_device_in_flight(&self, start: u64, len: usize) -> bool {
        let end = start + len as u64;
        self.copies().any(|c| c.device < end && start < c.device + c.len as u64)
    }

    fn copies(&self) -> impl Iterator<Item = &Copy> {
        let ops = self.streams.values().flat_map(|queue| &queue.ops);
        ops.filter_map(|op| match op {
            Op::Copy { copy, .. } => Some(copy),
            Op::Record { .. } | Op::Wait { .. } => None,
        })
    }

    /// Whether an operation waits for an event. A destroyed event is not waited for, as in the driver.
    fn is_waiting(&self, op: &Op) -> bool {
        let Op::Wait { event, generation } = op else {
            return false;
        };
        let mark = self.events.get(event);
        mark.is_some_and(|mark| mark.passed < *generation)
    }

    /// Picks a stream with an operation that can run.
    fn pick(&mut self) -> Option<usize> {
        if self.is_held {
            return None;
        }
        let ready = self
            .streams
            .iter()
            .filter(|(_, queue)| queue.ops.front().is_some_and(|op| !self.is_waiting(op)));
        let mut ready: Vec<usize> = ready.map(|(&stream, _)| stream).collect();
        ready.sort_unstable();
        let choice = self.below(ready.len() as u64);
        ready.get(usize::try_from(choice).expect("below a usize")).copied()
    }

    /// Runs and removes the head of a stream.
    fn run_head(&mut self, stream: usize) {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return;
        };
        let Some(op) = queue.ops.pop_front() else {
            return;
        };
        if queue.is_destroyed && queue.ops.is_empty() {
            self.streams.remove(&stream);
        }
        match op {
            Op::Copy { copy, fingerprint } => self.run_copy(copy, fingerprint),
            Op::Record { event, generation } => {
                if let Some(mark) = self.events.get_mut(&event) {
                    mark.passed = mark.passed.max(generation);
                }
            }
            Op::Wait { .. } => {}
        }
    }

    /// Copies the bytes as they are *now*, not as they were when the copy was queued.
    fn run_copy(&mut self, copy: Copy, fingerprint: u64) {
        if self.fatal.is_some() {
            return;
        }
        if copy.fingerprint() != fingerprint {
            self.misuse(format!("the slot of {copy:?} was used before the copy ran"));
        }
        if let Some(code) = self.call("copy") {
            self.fatal = Some(code);
            return;
        }
        let Some(allocation) = self.allocation(copy.device, copy.len) else {
            self.misuse(format!("{copy:?} ran after its device memory was freed"));
            self.fatal = Some(700);
            return;
        };
        copy.run(allocation);
    }
}

/// Starts the thread that simulates the GPU.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        thread::spawn(run_scheduler);
    });
}

fn run_scheduler() {
    let mut now = world();
    loop {
        let Some(stream) = now.pick() else {
            now = wait_for_change(now);
            continue;
        };
        let bound = now.plan.delay_us_max + 1;
        let delay = Duration::from_micros(now.below(bound));
        drop(now);
        thread::sleep(delay);
        now = world();
        if !now.is_held {
            now.run_head(stream);
            changed();
        }
    }
}
