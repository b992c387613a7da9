//! Credentials that a sandbox uses without seeing them: what a vault holds, to which requests it applies, and what it does
//! to them.
