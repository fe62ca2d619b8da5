//! The exchange of Diffie and Hellman in the groups of RFC 7919. Both sides come to the same secret, which
//! somebody who only listens does not have.

use coulter_nvme::auth::Group;
use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Encoding, Odd, U512, U2048, U3072, U4096, Uint};
use std::io;

/// The primes, as the RFC has them. The generator of each is 2.
const PRIME_2048: &str = "\
    FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE\
    249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3\
    B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182\
    B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70\
    9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC\
    2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF";
const PRIME_3072: &str = "\
    FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE\
    249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3\
    B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182\
    B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70\
    9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC\
    2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C0238\
    61B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452\
    E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E\
    0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B66C62E37FFFFFFFFFFFFFFFF";
const PRIME_4096: &str = "\
    FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE\
    249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3\
    B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182\
    B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70\
    9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC\
    2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C0238\
    61B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452\
    E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E\
    0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB7930E9E4E58857B6AC7D5F42\
    D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832A907600A918130C4\
    6DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF8EC9B55A\
    7F88A46B4DB5A851F44182E1C68A007E5E655F6AFFFFFFFFFFFFFFFF";

/// A side's private exponent. It has 512 bits, more than twice the strength of the largest group.
pub struct Private {
    group: Group,
    exponent: U512,
}

impl Private {
    /// A random one; none for a group without an exchange.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random(group: Group) -> io::Result<Option<Private>> {
        if group == Group::Null {
            return Ok(None);
        }
        let exponent = U512::from_be_bytes(random::<64>()?.into());
        Ok(Some(Private { group, exponent }))
    }

    /// What the other side is told; of the group's size.
    pub fn public(&self) -> Vec<u8> {
        match self.group {
            Group::Null => Vec::new(),
            Group::Ffdhe2048 => power(&U2048::from_u8(2), &self.exponent, PRIME_2048),
            Group::Ffdhe3072 => power(&U3072::from_u8(2), &self.exponent, PRIME_3072),
            Group::Ffdhe4096 => power(&U4096::from_u8(2), &self.exponent, PRIME_4096),
        }
    }

    /// What both sides know, of the group's size; none if the other side's number is one that no honest
    /// side has.
    pub fn shared(&self, public: &[u8]) -> Option<Vec<u8>> {
        if public.len() != self.group.size() {
            return None;
        }
        match self.group {
            Group::Null => Some(Vec::new()),
            Group::Ffdhe2048 => checked(U2048::from_be_slice(public), &self.exponent, PRIME_2048),
            Group::Ffdhe3072 => checked(U3072::from_be_slice(public), &self.exponent, PRIME_3072),
            Group::Ffdhe4096 => checked(U4096::from_be_slice(public), &self.exponent, PRIME_4096),
        }
    }
}

/// Random bytes of the system's.
///
/// # Errors
/// When it has none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes)
}

fn checked<const LIMBS: usize>(public: Uint<LIMBS>, exponent: &U512, prime: &str) -> Option<Vec<u8>>
where
    Uint<LIMBS>: Encoding,
{
    let last = Uint::from_be_hex(prime).wrapping_sub(&Uint::ONE);
    // 0, 1 and the last have powers that anybody can tell.
    (public > Uint::ONE && public < last).then(|| power(&public, exponent, prime))
}

fn power<const LIMBS: usize>(base: &Uint<LIMBS>, exponent: &U512, prime: &str) -> Vec<u8>
where
    Uint<LIMBS>: Encoding,
{
    let params = FixedMontyParams::new_vartime(Odd::<Uint<LIMBS>>::from_be_hex(prime));
    let power = FixedMontyForm::new(base, &params).pow(exponent);
    power.retrieve().to_be_bytes().as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [Group; 3] = [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096];

    #[test]
    fn both_sides_come_to_the_same_secret() {
        for group in GROUPS {
            let side = || Private::random(group).expect("random").expect("it has an exchange");
            let (ours, theirs) = (side(), side());
            let (our_public, their_public) = (ours.public(), theirs.public());
            assert_eq!(our_public.len(), group.size());
            assert_ne!(our_public, their_public);
            let secret = ours.shared(&their_public).expect("it is honest");
            assert_eq!(theirs.shared(&our_public), Some(secret.clone()));
            assert_eq!(secret.len(), group.size());
        }
        assert!(Private::random(Group::Null).expect("random").is_none());
    }

    #[test]
    fn a_small_power_is_that_of_arithmetic() {
        // Two to the hundredth is far below the primes.
        for (group, size) in [(Group::Ffdhe2048, 256), (Group::Ffdhe4096, 512)] {
            let public = Private { group, exponent: U512::from_u8(100) }.public();
            let mut expected = vec![0; size];
            expected[size - 1 - 100 / 8] = 1 << (100 % 8);
            assert_eq!(public, expected);
        }
    }

    #[test]
    fn numbers_that_no_honest_side_has_are_refused() {
        let side = Private { group: Group::Ffdhe2048, exponent: U512::from_u8(3) };
        let prime = U2048::from_be_hex(PRIME_2048).to_be_bytes().as_ref().to_vec();
        let mut last = prime.clone();
        last[255] -= 1;
        let number = |value: u8| {
            let mut bytes = [0; 256];
            bytes[255] = value;
            bytes
        };
        for refused in [&number(0)[..], &number(1), &prime, &last, &[0xff; 256]] {
            assert_eq!(side.shared(refused), None);
        }
        assert_eq!(side.shared(&number(2)), Some(number(8).to_vec()));
        assert_eq!(side.shared(&[2; 255]), None);
    }
}
