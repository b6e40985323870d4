//! Random bytes from the kernel, and random numbers for unique names.

use std::{
    hash::{BuildHasher, RandomState},
    io, process,
};

use rustix::{
    io::retry_on_intr,
    rand::{GetRandomFlags, getrandom},
};

/// Fills `bytes` from the kernel's generator. They may be used as secrets.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        filled += retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
    }
    Ok(())
}

/// 64 random bits. A process id is not unique: containers that share a folder can have the same ids.
pub fn nonce() -> u64 {
    let mut bytes = [0_u8; 8];
    match fill_random(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        // A sandbox may forbid the call. The standard library has a fallback.
        Err(_) => RandomState::new().hash_one(process::id()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_number_is_drawn_twice() {
        let drawn: HashSet<_> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(drawn.len(), 1000);
    }

    #[test]
    fn a_long_buffer_is_filled_to_its_end() {
        fill_random(&mut []).unwrap();
        let mut bytes = vec![0; 1 << 20];
        fill_random(&mut bytes).unwrap();
        // A page of zeros is drawn with a probability of 2^-32768.
        assert!(bytes.chunks(4096).all(|page| page.iter().any(|byte| *byte != 0)));
    }
}
