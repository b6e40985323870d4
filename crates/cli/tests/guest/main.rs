//! Peer-to-peer DMA on a real kernel: this program and the `straightway` binary run in a guest under QEMU, and QEMU's
//! trace of the emulated drives tells where every byte went.
//!
//! Drives A (source), C (sink), D (ext4) and E (empty) stand beside drive B, whose controller memory buffer is the BAR
//! memory. Each case reads a mark before and after, which the trace shows. `inside` is run in the guest by the other
//! tests.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

mod case;
mod inside;
mod outside;
