//! Credentials that a sandbox uses without seeing them: what a vault holds, to which requests it applies, and what it does
//! to them.
//!
//! A [`Vault`] is made from a request of a client and is never changed: a change gives another one. It knows credentials,
//! which are secret values with names, and bindings, which say which requests are given which credentials. For each request
//! [`Vault::select`] says what is done to it; the [`Injection`] puts header values in, replaces placeholders, and has the
//! [`Redactor`] that takes the same values out of the answer. Nothing here reads, writes or waits.
//!
//! ```text
//!  body ──read──▶ request ──check──▶ Vault ──select(facts)──▶ Injection ──▶ path, headers, body of the request
//!                                      │                          └──────▶ Redactor ──▶ headers, body of the answer
//!                                      └──seal──▶ Sealed ──restore──▶ Vault
//! ```
//!
//! Invariants:
//! - No value is in a `Debug`, an error, or anything that can be serialised but [`Sealed`].
//! - What is matched is what is forwarded: [`Injection::path_and_query`].
//! - At most one binding applies to a request; what could be read in two ways is refused.

mod binding;
mod body;
mod check;
mod conflict;
mod coverage;
mod encode;
mod forms;
mod header;
mod host;
mod injection;
mod patch;
mod path;
mod read;
mod redact;
mod refused;
mod render;
mod seal;
mod secrets;
mod select;
mod substitute;
mod vault;

#[cfg(test)]
mod samples;

pub use body::BodySubstitution;
pub use coverage::{Coverage, Options};
pub use host::{HostPattern, is_any};
pub use injection::Injection;
pub use read::{MAX_BODY_BYTES, read};
pub use redact::{RedactStream, Redactor};
pub use refused::{Kind, Refused};
pub use seal::Sealed;
pub use select::{Facts, Scheme, Selection};
pub use vault::{MAX_BINDINGS, MAX_CREDENTIALS, MAX_SECRET_BYTES, MAX_VALUE_BYTES, Vault};
