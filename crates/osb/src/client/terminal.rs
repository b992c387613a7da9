//! Terminals of the daemon inside a sandbox.

use std::time::Duration;

use base64::Engine as _;
use protocol::execd::pty::{CreateTerminal, CreatedTerminal, TerminalStatus};
use reqwest::header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::execd::Execd;
use super::sandboxes::with_query;
use super::{Patience, chain, segment};
use crate::failure::Failure;

/// Longest wait for the end of a terminal: the daemon kills its tree for up to 10 s.
const END_PATIENCE: Duration = Duration::from_secs(15);
/// Longest wait for an upgrade: a server that is frozen must not hold somebody who wants to leave.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// Largest message of the daemon, in bytes: a replay is at most 1 MiB.
const MAX_MESSAGE_BYTES: usize = 2 * 1024 * 1024;

/// A connection to a terminal.
pub type Socket = WebSocketStream<Upgraded>;

impl Execd {
    /// Makes a terminal and returns its id; its shell starts with the first client.
    ///
    /// # Errors
    /// The daemon cannot be reached or refuses.
    pub async fn create_terminal(&self, body: &CreateTerminal) -> Result<String, Failure> {
        let request = self.request(Method::POST, "/pty").json(body);
        Ok(self.client.json::<CreatedTerminal>(request, Patience::Usual).await?.session_id)
    }

    /// How a terminal is doing.
    ///
    /// # Errors
    /// As [`Self::create_terminal`].
    pub async fn terminal(&self, id: &str) -> Result<TerminalStatus, Failure> {
        self.client.json(self.request(Method::GET, &format!("/pty/{}", segment(id))), Patience::Usual).await
    }

    /// Ends a terminal and everything in it.
    ///
    /// # Errors
    /// As [`Self::create_terminal`].
    pub async fn end_terminal(&self, id: &str) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, &format!("/pty/{}", segment(id)));
        self.client.send(request, Patience::For(END_PATIENCE)).await.map(drop)
    }

    /// Attaches to a terminal.
    ///
    /// # Errors
    /// As [`Self::create_terminal`].
    pub async fn attach_terminal(&self, id: &str, query: &[(&str, String)]) -> Result<Socket, Failure> {
        let mut key = [0u8; 16];
        getrandom::fill(&mut key).map_err(|error| Failure::new("CLIENT", format!("draw a random key: {error}")))?;
        let request = self
            .request(Method::GET, &with_query(&format!("/pty/{}/ws", segment(id)), query))
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, base64::engine::general_purpose::STANDARD.encode(key));
        let answer = self.client.send(request, Patience::For(ATTACH_PATIENCE)).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::new("BAD_ANSWER", "the server answers a WebSocket as if it were a page"));
        }
        let upgraded = answer.upgrade().await;
        let upgraded = upgraded.map_err(|error| Failure::new("CONNECTION_FAILED", chain(&error)))?;
        let bounds = WebSocketConfig::default();
        let bounds = bounds.max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(bounds)).await)
    }
}
