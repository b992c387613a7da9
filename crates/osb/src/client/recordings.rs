//! Recordings: what a sandbox has fetched, and what sandboxes are answered from.

use futures_util::Stream;
use protocol::recording::{Contents, Recording, Recordings};
use reqwest::{Body, Method, Response};

use super::sandboxes::path;
use super::{Client, Patience, segment};
use crate::failure::Failure;

impl Client {
    /// What a sandbox has recorded until now.
    pub async fn recorded(&self, id: &str) -> Result<Contents, Failure> {
        self.json(self.request(Method::GET, &path(id, "/network/recording")), Patience::Usual).await
    }

    /// The file with what a sandbox has recorded until now.
    pub async fn recorded_file(&self, id: &str) -> Result<Response, Failure> {
        let request = self.request(Method::GET, &path(id, "/network/recording/file"));
        self.send(request, Patience::Unlimited).await
    }

    /// The recordings that the server keeps.
    pub async fn recordings(&self) -> Result<Vec<Recording>, Failure> {
        let recordings: Recordings = self.json(self.request(Method::GET, "/recordings"), Patience::Unlimited).await?;
        Ok(recordings.items)
    }

    /// One of them.
    pub async fn recording(&self, id: &str) -> Result<Recording, Failure> {
        self.json(self.request(Method::GET, &format!("/recordings/{}", segment(id))), Patience::Usual).await
    }

    /// Sends a recording, which the server reads through before it takes it.
    pub async fn import_recording<S>(&self, content: S) -> Result<Recording, Failure>
    where
        S: Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static,
    {
        let request = self
            .request(Method::POST, "/recordings")
            .header("content-type", "application/octet-stream")
            .body(Body::wrap_stream(content));
        self.json(request, Patience::Unlimited).await
    }

    /// Removes a recording.
    pub async fn remove_recording(&self, id: &str) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, &format!("/recordings/{}", segment(id)));
        self.send(request, Patience::Usual).await.map(drop)
    }
}
