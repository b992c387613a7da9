//! What a registry is told about who asks.

use std::fmt;

use secrecy::SecretString;

/// A user name and password (or access token) for one registry.
#[derive(Clone)]
pub struct Credentials {
    /// The account name; `Debug` shows it.
    pub username: String,
    /// The password or personal access token; nothing ever shows it.
    pub password: SecretString,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}
