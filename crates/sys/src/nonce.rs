//! Random numbers for unique names.

use std::{
    hash::{BuildHasher, RandomState},
    process,
};

use rustix::rand::{GetRandomFlags, getrandom};

/// 64 random bits. A process id is not unique: containers that share a folder can have the same ids.
pub fn nonce() -> u64 {
    let mut bytes = [0_u8; 8];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // A sandbox may forbid the call. The standard library has a fallback.
        _ => RandomState::new().hash_one(process::id()),
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
}
