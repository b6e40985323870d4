//! Peer-to-peer DMA on a real kernel: this program and the `straightway` binary run in a guest under QEMU, and QEMU's
//! trace of the emulated drives shows where every byte went.
//!
//! Besides drives A (source), C (sink), D (ext4) and E (empty) there is drive B, whose controller memory buffer is the
//! BAR memory. Each case reads a mark before and after it, which the trace shows. The other tests run `inside` in the
//! guest.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

mod case;
mod inside;
mod outside;
