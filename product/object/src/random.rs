//! Bytes that nobody else has: identities and nonces.

/// Random bytes from the system.
///
/// # Panics
/// If the system has none to give: an identity that another has too would mix two volumes.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// A random number.
pub(crate) fn random_u64() -> u64 {
    u64::from_le_bytes(random_bytes())
}
