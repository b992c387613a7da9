//! The API of the daemon inside a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::execd::command::{CommandStatus, RunCommand};
use protocol::execd::files::{FileInfo, FileMetadata, Permission, RenameItem, ReplaceItem, ReplaceResult};
use protocol::execd::metrics::Metrics;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Body, Method, RequestBuilder, Response};

use super::sandboxes::with_query;
use super::stream::{EventStream, STREAM_BROKEN};
use super::{Client, Patience, chain, segment};
use crate::failure::Failure;

/// Longest wait for an interrupt: the daemon waits 3 s between TERM and KILL.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(15);

/// The daemon inside one sandbox.
#[derive(Clone)]
pub struct Execd {
    pub(super) client: Client,
    base: String,
    headers: HeaderMap,
}

impl Execd {
    pub(super) fn new(client: Client, base: String, headers: HeaderMap) -> Self {
        Self { client, base, headers }
    }

    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.http.request(method, format!("{}{path}", self.base)).headers(self.headers.clone())
    }

    async fn empty(&self, request: RequestBuilder) -> Result<(), Failure> {
        self.client.send(request, Patience::Usual).await.map(drop)
    }

    /// Whether it answers.
    pub async fn ping(&self, within: Duration) -> Result<(), Failure> {
        self.client.send(self.request(Method::GET, "/ping"), Patience::For(within)).await.map(drop)
    }

    /// Runs a command and returns its events.
    pub async fn run(&self, command: &RunCommand) -> Result<EventStream, Failure> {
        let request = self.request(Method::POST, "/command").header("accept", "text/event-stream").json(command);
        Ok(EventStream::new(self.client.send(request, Patience::Usual).await?))
    }

    /// Ends a command: TERM to its group, then KILL.
    pub async fn interrupt(&self, id: &str) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, &with_query("/command", &[("id", id.to_owned())]));
        self.client.send(request, Patience::For(INTERRUPT_PATIENCE)).await.map(drop)
    }

    /// How a command is doing.
    pub async fn status(&self, id: &str) -> Result<CommandStatus, Failure> {
        self.client.json(self.request(Method::GET, &format!("/command/status/{}", segment(id))), Patience::Usual).await
    }

    /// The output of a background command from this byte on, to be read piece by piece.
    pub async fn logs(&self, id: &str, cursor: u64) -> Result<(Response, u64), Failure> {
        let path = with_query(&format!("/command/{}/logs", segment(id)), &[("cursor", cursor.to_string())]);
        let answer = self.client.send(self.request(Method::GET, &path), Patience::Usual).await?;
        let next = answer.headers().get(protocol::headers::COMMANDS_TAIL_CURSOR);
        let next = next.and_then(|value| value.to_str().ok()).and_then(|value| value.parse().ok());
        Ok((answer, next.unwrap_or(cursor)))
    }

    /// What these paths are.
    pub async fn info(&self, paths: &[String]) -> Result<BTreeMap<String, FileInfo>, Failure> {
        let query: Vec<_> = paths.iter().map(|path| ("path", path.clone())).collect();
        self.client.json(self.request(Method::GET, &with_query("/files/info", &query)), Patience::Usual).await
    }

    /// What a directory holds.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<FileInfo>, Failure> {
        let query = [("path", path.to_owned()), ("depth", depth.to_string())];
        let request = self.request(Method::GET, &with_query("/directories/list", &query));
        Ok(self.client.json::<Option<Vec<FileInfo>>>(request, Patience::Usual).await?.unwrap_or_default())
    }

    /// The files below a directory whose names match a pattern.
    pub async fn search(&self, path: &str, pattern: &str) -> Result<Vec<FileInfo>, Failure> {
        let query = [("path", path.to_owned()), ("pattern", pattern.to_owned())];
        let request = self.request(Method::GET, &with_query("/files/search", &query));
        Ok(self.client.json::<Option<Vec<FileInfo>>>(request, Patience::Usual).await?.unwrap_or_default())
    }

    /// Removes a file.
    pub async fn remove_file(&self, path: &str) -> Result<(), Failure> {
        self.empty(self.request(Method::DELETE, &with_query("/files", &[("path", path.to_owned())]))).await
    }

    /// Removes a directory and all it holds.
    pub async fn remove_directory(&self, path: &str) -> Result<(), Failure> {
        self.empty(self.request(Method::DELETE, &with_query("/directories", &[("path", path.to_owned())]))).await
    }

    /// Makes directories with their parents.
    pub async fn make_directories(&self, directories: &BTreeMap<String, Permission>) -> Result<(), Failure> {
        self.empty(self.request(Method::POST, "/directories").json(directories)).await
    }

    /// Moves files and directories.
    pub async fn rename(&self, items: &[RenameItem]) -> Result<(), Failure> {
        self.empty(self.request(Method::POST, "/files/mv").json(items)).await
    }

    /// Sets owner, group and mode.
    pub async fn permissions(&self, items: &BTreeMap<String, Permission>) -> Result<(), Failure> {
        self.empty(self.request(Method::POST, "/files/permissions").json(items)).await
    }

    /// Replaces text in files; tells how often in each.
    pub async fn replace(
        &self,
        items: &BTreeMap<String, ReplaceItem>,
    ) -> Result<BTreeMap<String, ReplaceResult>, Failure> {
        self.client.json(self.request(Method::POST, "/files/replace?verbose=true").json(items), Patience::Usual).await
    }

    /// The content of a file, or of a window of its lines.
    pub async fn download(&self, path: &str, offset: Option<u64>, limit: Option<u64>) -> Result<Response, Failure> {
        let mut query = vec![("path", path.to_owned())];
        query.extend(offset.map(|offset| ("offset", offset.to_string())));
        query.extend(limit.map(|limit| ("limit", limit.to_string())));
        self.client.send(self.request(Method::GET, &with_query("/files/download", &query)), Patience::Usual).await
    }

    /// Writes a file from a stream of any size.
    pub async fn upload<S, E>(&self, metadata: &FileMetadata, content: S) -> Result<(), Failure>
    where
        S: futures_util::Stream<Item = Result<bytes::Bytes, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        use futures_util::{StreamExt, TryStreamExt, stream};
        let boundary = boundary();
        let json = serde_json::to_string(metadata).expect("metadata has only text keys");
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\
             Content-Type: application/json\r\n\r\n{json}\r\n--{boundary}\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let one = |text: String| stream::once(async move { Ok(bytes::Bytes::from(text)) });
        let body = one(head).chain(content.map_err(Into::into)).chain(one(tail));
        let request = self
            .request(Method::POST, "/files/upload")
            .header(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))
            .body(Body::wrap_stream(body));
        self.client.send(request, Patience::Unlimited).await.map(drop)
    }

    /// Whether the daemon knows archives, which the published one does not.
    pub async fn has_archives(&self) -> Result<bool, Failure> {
        let asked = self.client.send(self.request(Method::GET, "/v1/archive"), Patience::Usual).await;
        // Without a path ours refuses by a code of its own.
        match known(asked) {
            Ok(known) => Ok(known.is_some()),
            Err(failure) if failure.status == Some(400) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    /// A directory as a tar, without what no tar can hold; `None` where the daemon has no archives.
    pub async fn download_archive(&self, path: &str) -> Result<Option<Response>, Failure> {
        let query = [("path", path.to_owned()), ("special", "skip".to_owned())];
        let request = self.request(Method::GET, &with_query("/v1/archive", &query));
        known(self.client.send(request, Patience::Unlimited).await)
    }

    /// Extracts a tar of any size into a directory; owner and group go to all that is made, the mode to files.
    pub async fn upload_archive<S>(&self, path: &str, permission: &Permission, content: S) -> Result<(), Failure>
    where
        S: futures_util::Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static,
    {
        let mut query = vec![("path", path.to_owned())];
        query.extend(permission.owner.clone().map(|owner| ("owner", owner)));
        query.extend(permission.group.clone().map(|group| ("group", group)));
        query.extend(permission.mode.map(|mode| ("mode", mode.to_string())));
        let request = self
            .request(Method::PUT, &with_query("/v1/archive", &query))
            .header(CONTENT_TYPE, "application/x-tar")
            .body(Body::wrap_stream(content));
        self.client.send(request, Patience::Unlimited).await.map(drop)
    }

    /// What changes in a directory, from now on or from behind the event that carried this cursor.
    pub async fn watch(&self, path: &str, recursive: bool, cursor: Option<&str>) -> Result<EventStream, Failure> {
        let mut query = vec![("path", path.to_owned()), ("recursive", recursive.to_string())];
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        let request = self.request(Method::GET, &with_query("/v1/files/watch", &query));
        match known(self.client.send(request.header("accept", "text/event-stream"), Patience::Usual).await)? {
            Some(answer) => Ok(EventStream::new(answer)),
            None => Err(Failure::new("NOT_SUPPORTED", "the daemon in this sandbox cannot watch directories")),
        }
    }

    /// What the sandbox uses.
    pub async fn metrics(&self) -> Result<Metrics, Failure> {
        self.client.json(self.request(Method::GET, "/metrics"), Patience::Usual).await
    }
}

/// `None` where the daemon does not know the route: its 404 carries no code.
fn known<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Err(failure) if failure.status == Some(404) && failure.code == "HTTP_404" => Ok(None),
        answer => answer.map(Some),
    }
}

/// The next piece of an answer's body.
pub async fn piece(answer: &mut Response) -> Result<Option<bytes::Bytes>, Failure> {
    answer
        .chunk()
        .await
        .map_err(|error| Failure::new(STREAM_BROKEN, format!("the connection broke: {}", chain(&error))))
}

/// A line that no content can hold.
fn boundary() -> String {
    format!("osb-{}", random_hex())
}

/// 128 random bits as text.
pub fn random_hex() -> String {
    let mut bytes = [0u8; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the kernel fills 16 bytes at once");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
