//! The thread that runs what is in the streams, late and in any order they allow.
//!
//! A stream is a queue; only its head can run. Which head runs next, and after how long, follows
//! from the seed. A stream that is destroyed finishes what is in it.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use crate::queue::{Copy, Op};
use crate::world::{World, changed, wait_for_change, world};

impl World {
    /// Puts an operation into a stream that is there.
    pub(crate) fn enqueue(&mut self, stream: usize, op: Op) {
        start();
        self.streams.entry(stream).or_default().ops.push_back(op);
        changed();
    }

    /// Records an event behind what is in the stream now. On the null stream nothing is ever queued.
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

    /// Makes what is put into the stream from here on wait for the event as it was recorded last.
    pub(crate) fn wait_for(&mut self, event: usize, stream: usize) -> Option<()> {
        let generation = self.events.get(&event)?.recorded;
        self.enqueue(stream, Op::Wait { event, generation });
        Some(())
    }

    /// Drops what a dead context left undone: it would never have run.
    pub(crate) fn forget_work(&mut self) {
        self.streams.retain(|_, queue| {
            queue.ops.clear();
            !queue.is_doomed
        });
        for mark in self.events.values_mut() {
            mark.passed = mark.recorded;
        }
    }

    /// Destroys a stream as the driver does: at once for its owner, later for what is in it.
    pub(crate) fn doom(&mut self, stream: usize) -> Option<()> {
        let is_dead = self.fatal.is_some();
        let queue = self.streams.get_mut(&stream)?;
        if is_dead || queue.ops.is_empty() {
            self.streams.remove(&stream);
        } else {
            queue.is_doomed = true;
        }
        Some(())
    }

    /// Whether a copy that has not run yet touches this host memory.
    pub(crate) fn is_host_in_flight(&self, start: usize, len: usize) -> bool {
        self.copies()
            .any(|c| c.host < start + len && start < c.host + c.len)
    }

    /// Whether a copy that has not run yet touches this device memory.
    pub(crate) fn is_device_in_flight(&self, start: u64, len: usize) -> bool {
        let end = start + len as u64;
        self.copies()
            .any(|c| c.device < end && start < c.device + c.len as u64)
    }

    fn copies(&self) -> impl Iterator<Item = &Copy> {
        let ops = self.streams.values().flat_map(|queue| &queue.ops);
        ops.filter_map(|op| match op {
            Op::Copy { copy, .. } => Some(copy),
            Op::Record { .. } | Op::Wait { .. } => None,
        })
    }

    /// Whether an operation waits for an event. One that was destroyed is not waited for, as the driver has it.
    fn is_waiting(&self, op: &Op) -> bool {
        let Op::Wait { event, generation } = op else {
            return false;
        };
        let mark = self.events.get(event);
        mark.is_some_and(|mark| mark.passed < *generation)
    }

    /// Picks a stream that has something to run.
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
        ready
            .get(usize::try_from(choice).expect("below a usize"))
            .copied()
    }

    /// Runs the head of a stream and takes it out.
    fn run_head(&mut self, stream: usize) {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return;
        };
        let Some(op) = queue.ops.pop_front() else {
            return;
        };
        if queue.is_doomed && queue.ops.is_empty() {
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

    /// Moves the bytes as they are *now*: what the source held when the copy was queued is gone.
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

/// Starts the thread that plays the GPU.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        thread::spawn(play);
    });
}

fn play() {
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
