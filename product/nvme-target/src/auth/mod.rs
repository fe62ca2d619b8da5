//! DH-HMAC-CHAP: a host proves that it knows a key, and the controller too if the host asks. The bytes of
//! the messages are those of [`coulter_nvme::auth`].
//!
//! ```text
//! keys           which host has which key, as nvme-cli spells them
//! response       what a side answers to the other's challenge
//!   group        the exchange of Diffie and Hellman, mixed into challenges
//! authenticator  the target's side of one conversation
//! //! ```
//!
//! # What it does not do
//! It encrypts nothing: who can change packets on their way takes the connection over after it. A queue
//! is authenticated once, after Connect; a host that asks again later is refused.

mod authenticator;
mod group;
mod keys;
mod response;

pub(super) use authenticator::{Authenticator, Verdict};
pub use group::{Private, random};
pub use keys::{HostKey, Keys, KeysError, Secret};
pub use response::{Question, Role};
