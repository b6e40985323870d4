//! The finite-field Diffie-Hellman groups of RFC 7919.
//!
//! Each prime is 2^b − 2^(b−64) + (⌊2^(b−130) e⌋ + x) 2^64 − 1, so all five follow from one constant, the digits of e,
//! and a small x each.

use crypto_bigint::{
    BoxedUint, Odd, Resize,
    modular::{BoxedMontyForm, BoxedMontyParams},
};

/// The Diffie-Hellman group of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DhGroup {
    /// No Diffie-Hellman: challenge and response only.
    Null = 0,
    /// 2048 bits.
    Ffdhe2048 = 1,
    /// 3072 bits.
    Ffdhe3072 = 2,
    /// 4096 bits.
    Ffdhe4096 = 3,
    /// 6144 bits.
    Ffdhe6144 = 4,
    /// 8192 bits.
    Ffdhe8192 = 5,
}

impl DhGroup {
    /// All groups, weakest first.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// The group with this identifier on the wire.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| *group as u8 == id)
    }

    /// The name that nvmet and nvme-cli use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// The length of a public value and of a shared secret; 0 for the null group.
    pub fn value_bytes(self) -> usize {
        self.bits() as usize / 8
    }

    /// This side's public value, 2^exponent. Empty for the null group.
    pub(super) fn public(self, exponent: &[u8; 64]) -> Vec<u8> {
        if self == Self::Null {
            return Vec::new();
        }
        self.raise(&BoxedUint::from(2_u8).resize(self.bits()), exponent)
    }

    /// The shared secret for a peer's public value, padded to the length of the group. Returns `None` if the value has
    /// another length or is outside the group: 0, 1, p − 1 and larger values would make the secret predictable.
    pub(super) fn shared(self, peer: &[u8], exponent: &[u8; 64]) -> Option<Vec<u8>> {
        if self == Self::Null || peer.len() != self.value_bytes() {
            return None;
        }
        let value = BoxedUint::from_be_slice(peer, self.bits()).ok()?;
        let one = BoxedUint::one_with_precision(self.bits());
        let largest = self.prime().wrapping_sub(&one);
        (value > one && value < largest).then(|| self.raise(&value, exponent))
    }

    fn bits(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 2048,
            Self::Ffdhe3072 => 3072,
            Self::Ffdhe4096 => 4096,
            Self::Ffdhe6144 => 6144,
            Self::Ffdhe8192 => 8192,
        }
    }

    /// The x of RFC 7919.
    fn addend(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 560_316,
            Self::Ffdhe3072 => 2_625_351,
            Self::Ffdhe4096 => 5_736_041,
            Self::Ffdhe6144 => 15_705_020,
            Self::Ffdhe8192 => 10_965_728,
        }
    }

    /// Modular exponentiation. Constant time, except for the length of the exponent, which is fixed.
    fn raise(self, base: &BoxedUint, exponent: &[u8; 64]) -> Vec<u8> {
        let odd = Odd::new(self.prime()).expect("a prime above 2 is odd");
        let params = BoxedMontyParams::new(odd);
        let exponent = BoxedUint::from_be_slice(exponent, 512).expect("it has 512 bits");
        let value = BoxedMontyForm::new(base.clone(), &params).pow_bounded_exp(&exponent, 512);
        value.retrieve().to_be_bytes().into_vec()
    }

    fn prime(self) -> BoxedUint {
        let bits = self.bits();
        let digits: Vec<u8> = (0..E_HEX.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&E_HEX[at..at + 2], 16).expect("the constant is hex"))
            .collect();
        let e = BoxedUint::from_be_slice(&digits, 8192).expect("it has 8064 bits");
        let middle = e
            .shr(8192 - bits)
            .wrapping_add(BoxedUint::from(self.addend()).resize(8192));
        let one = BoxedUint::one_with_precision(8192);
        // 2^8192 is 0 in 8192 bits, which is correct for the largest group.
        let top = if bits < 8192 {
            one.shl(bits)
        } else {
            BoxedUint::zero_with_precision(8192)
        };
        top.wrapping_sub(one.shl(bits - 64))
            .wrapping_add(middle.shl(64))
            .wrapping_sub(&one)
            .resize(bits)
    }
}

/// ⌊2^8062 e⌋.
const E_HEX: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
    e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
    1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
    8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
    de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
    b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
    1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
    ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
    4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
    b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
    94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
    62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
    3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
    fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
    29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
    a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
    2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn primes_match_rfc_7919() {
        // The expected digests come from another program, which also checked that (p − 1) / 2 is the order of 2.
        let expected = [
            "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
            "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
            "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
            "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
            "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
        ];
        for (group, expected) in DhGroup::ALL[1..].iter().zip(expected) {
            let prime = group.prime().to_be_bytes();
            assert_eq!(prime.len(), group.value_bytes());
            let digest = Sha256::digest(&prime);
            let (high, low) = digest.split_at(16);
            let half = |part: &[u8]| u128::from_be_bytes(part.try_into().expect("16 bytes"));
            let digest = format!("{:032x}{:032x}", half(high), half(low));
            assert_eq!(digest, expected, "{group:?}");
        }
    }

    #[test]
    fn both_sides_get_the_same_secret() {
        for group in &DhGroup::ALL[1..3] {
            let (a, b) = ([0x5a; 64], [0xc3; 64]);
            let (public_a, public_b) = (group.public(&a), group.public(&b));
            let shared = group.shared(&public_b, &a);
            assert!(shared.is_some());
            assert_eq!(shared, group.shared(&public_a, &b));
        }
    }

    #[test]
    fn values_outside_the_group_are_refused() {
        let group = DhGroup::Ffdhe2048;
        let prime = group.prime();
        let one = BoxedUint::one_with_precision(2048);
        let bad = [
            BoxedUint::zero_with_precision(2048),
            one.clone(),
            prime.wrapping_sub(&one),
            prime.clone(),
            prime.wrapping_add(&one),
        ];
        for value in bad {
            assert_eq!(group.shared(&value.to_be_bytes(), &[7; 64]), None);
        }
        assert_eq!(group.shared(&[2; 255], &[7; 64]), None);
        assert!(group.shared(&[2; 256], &[7; 64]).is_some());
    }
}
