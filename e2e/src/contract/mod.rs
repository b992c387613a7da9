//! The published contract as an oracle: which operations exist, what they may
//! answer, and where we differ on purpose.
//!
//! `document` finds the operation of a request, `check` compares an exchange
//! with it, `events` reads execution streams, `errata` names the differences
//! we stand by. No I/O beyond loading the documents.

mod check;
mod document;
mod errata;
mod events;
#[cfg(test)]
mod tests;

pub use check::{Body, Exchange, Finding, Outcome, Violation, check};
pub use document::{Api, Contract, Operation};
pub use errata::Errata;
