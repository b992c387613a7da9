//! The image store of a server.

use std::time::Duration;

use futures_util::Stream;
use protocol::lifecycle::{ImageAuth, ImageInfo};
use reqwest::{Body, Method, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::execd::piece;
use super::sandboxes::with_query;
use super::{Client, Patience, segment};
use crate::failure::Failure;

/// Largest line of a progress stream, in bytes.
const MAX_LINE_BYTES: usize = 1024 * 1024;

#[derive(Deserialize)]
struct Images {
    items: Vec<ImageInfo>,
}

impl Client {
    /// The images that are here.
    pub async fn images(&self) -> Result<Vec<ImageInfo>, Failure> {
        let images: Images = self.json(self.request(Method::GET, "/images"), Patience::Usual).await?;
        Ok(images.items)
    }

    /// Fetches an image from its registry. `progress` hears how far it is.
    pub async fn pull_image(
        &self,
        uri: &str,
        auth: Option<ImageAuth>,
        platform: Option<&str>,
        progress: &dyn Fn(&str),
    ) -> Result<ImageInfo, Failure> {
        let mut body = json!({ "uri": uri });
        if let Some(auth) = auth {
            body["auth"] = serde_json::to_value(auth).expect("has only text keys");
        }
        if let Some((os, arch)) = platform.and_then(|platform| platform.split_once('/')) {
            body["platform"] = json!({ "os": os, "arch": arch });
        }
        let request = self.request(Method::POST, "/images/pull").json(&body);
        outcome(self.send(request, Patience::Unlimited).await?, progress).await
    }

    /// Sends an image's archive.
    pub async fn import_image<S, E>(
        &self,
        name: Option<&str>,
        content: S,
        progress: &dyn Fn(&str),
    ) -> Result<ImageInfo, Failure>
    where
        S: Stream<Item = Result<bytes::Bytes, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        let query: Vec<_> = name.map(|name| ("name", name.to_owned())).into_iter().collect();
        let request = self
            .request(Method::POST, &with_query("/images/import", &query))
            .header("content-type", "application/x-tar")
            .body(Body::wrap_stream(content));
        outcome(self.send(request, Patience::Unlimited).await?, progress).await
    }

    /// Removes a name of an image, and the image with its last name.
    pub async fn remove_image(&self, reference: &str) -> Result<(), Failure> {
        let path = format!("/images/{}", segment(reference));
        self.send(self.request(Method::DELETE, &path), Patience::Usual).await.map(drop)
    }

    /// Removes what no image and no sandbox needs, and pulled images beyond these bounds.
    pub async fn prune_images(&self, max_bytes: Option<u64>, unused_for: Option<Duration>) -> Result<Value, Failure> {
        let mut body = json!({});
        if let Some(bytes) = max_bytes {
            body["maxBytes"] = bytes.into();
        }
        if let Some(time) = unused_for {
            body["unusedForSeconds"] = time.as_secs().into();
        }
        self.json(self.request(Method::POST, "/images/prune").json(&body), Patience::Unlimited).await
    }
}

/// Reads JSON lines: progress until the image or the failure.
async fn outcome(mut answer: Response, progress: &dyn Fn(&str)) -> Result<ImageInfo, Failure> {
    let request_id = super::request_id(&answer);
    let mut buffer = Vec::new();
    loop {
        let bytes = piece(&mut answer).await?;
        let last = bytes.is_none();
        buffer.extend_from_slice(&bytes.unwrap_or_default());
        while let Some(end) =
            buffer.iter().position(|byte| *byte == b'\n').or((last && !buffer.is_empty()).then_some(buffer.len()))
        {
            let line: Vec<u8> = buffer.drain(..(end + 1).min(buffer.len())).collect();
            match read(&line) {
                Some(Line::Progress(text)) => progress(&text),
                Some(Line::Image(image)) => return Ok(*image),
                Some(Line::Error { code, message }) => {
                    return Err(Failure { request_id, ..Failure::new(&code, message) });
                }
                None => {}
            }
        }
        if last || buffer.len() > MAX_LINE_BYTES {
            let message = "the server's progress ended without an image or a cause";
            return Err(Failure { request_id, ..Failure::new("BAD_ANSWER", message) });
        }
    }
}

/// One line of a progress stream.
#[derive(Debug)]
enum Line {
    Progress(String),
    Image(Box<ImageInfo>),
    Error { code: String, message: String },
}

fn read(line: &[u8]) -> Option<Line> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let text = |value: &Value, name: &str| value[name].as_str().map(str::to_owned);
    if let Some(error) = value.get("error") {
        return Some(Line::Error {
            code: text(error, "code").unwrap_or_else(|| "IMAGE".into()),
            message: text(error, "message").unwrap_or_else(|| error.to_string()),
        });
    }
    if let Some(image) = value.get("image").filter(|image| image.is_object()) {
        return serde_json::from_value(image.clone()).ok().map(|image| Line::Image(Box::new(image)));
    }
    text(&value, "message").or_else(|| text(&value, "progress")).map(Line::Progress)
}

#[cfg(test)]
mod tests;
