//! One request after the other: is it in the recording, and what was it answered with.

use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::played::{Length, Played};
use crate::intercept::request::{BadRequest, check_host, default_port};
use crate::intercept::speaking::{Answer, own_answer};
use crate::intercept::told_path;
use crate::name::Name;
use crate::recording::{Asked, Book, Hash, Headers, Key};
use crate::sandbox::Sandbox;
use crate::verdicts::What;

/// The requests of one connection.
pub struct Requests {
    /// Whose they are.
    pub sandbox: Arc<Sandbox>,
    /// What answers them.
    pub book: Arc<Book>,
    /// Number of the connection.
    pub flow: u64,
    /// The host that it is for.
    pub name: Name,
    /// The port.
    pub port: u16,
    /// `https` or `http`.
    pub scheme: &'static str,
}

/// Why a request is not answered from the recording.
struct Unanswered {
    status: StatusCode,
    message: String,
    /// What an event says, where that is not the message.
    told: Option<&'static str>,
    /// Whether the connection cannot go on.
    ends: bool,
}

impl Unanswered {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), told: None, ends: false }
    }
}

impl From<BadRequest> for Unanswered {
    fn from(bad: BadRequest) -> Self {
        Self { ends: true, ..Self::new(bad.status(), bad.to_string()) }
    }
}

impl Requests {
    /// Answers one request: with what was recorded, or with why that cannot be.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        let (method, path) = (request.method().to_string(), told_path(request.uri().path()).to_owned());
        let version = request.version();
        let Unanswered { status, message, told, ends } = match self.find(request).await {
            Ok(response) => return response,
            Err(unanswered) => unanswered,
        };
        let response = own_answer(status, &message, ends.then_some(version));
        let (flow, host, port) = (self.flow, self.name.to_string(), self.port);
        let (status, message) = (status.as_u16(), told.map_or(message, str::to_owned));
        self.sandbox.journal.record(What::Replay { flow, host, port, method, path, status, message });
        response
    }

    async fn find(&self, request: Request<Incoming>) -> Result<Response<Answer>, Unanswered> {
        let (parts, mut body) = request.into_parts();
        let default_port = default_port(self.scheme == "https");
        check_host(&parts, &self.name, self.port, default_port)?;
        let mut hash = Hash::default();
        while let Some(frame) = body.frame().await {
            let broken = |error| format!("the request's body broke off: {error}");
            let frame = frame.map_err(|error| Unanswered::new(StatusCode::BAD_REQUEST, broken(error)))?;
            if let Some(data) = frame.data_ref() {
                hash.push(data);
            }
        }
        let asked = Asked {
            method: parts.method.to_string(),
            scheme: self.scheme.to_owned(),
            host: self.name.to_string(),
            port: self.port,
            target: parts.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned(),
            headers: Headers::default(),
            bytes: hash.bytes(),
            sha256: hash.finish(),
        };
        let unusable =
            |error| Unanswered::new(StatusCode::BAD_GATEWAY, format!("the recording cannot be used: {error}"));
        let Some(exchange) = self.book.next(Key::of(&asked)).map_err(unusable)? else {
            // The query is told to the program that wrote it, and to nobody else.
            let told = Some("not in the recording");
            return Err(Unanswered { told, ..Unanswered::new(StatusCode::BAD_GATEWAY, missing(&asked)) });
        };
        let invalid = || Unanswered::new(StatusCode::BAD_GATEWAY, "the recording has an answer that cannot be sent");
        let answer = exchange.answer;
        let headers = answer.headers.to_map().ok_or_else(invalid)?;
        let status = StatusCode::from_u16(answer.status).map_err(|_| invalid())?;
        let trailers = answer.trailers.to_map().ok_or_else(invalid)?;
        let length = Length::of(&parts.method, status, &headers);
        let played = Played::new(self.book.clone(), answer, trailers, length);
        let mut response = Response::new(played.boxed_unsync());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}

/// Says what was asked for, so that it can be compared with what was recorded.
fn missing(asked: &Asked) -> String {
    let Asked { method, scheme, host, port, target, bytes, sha256, .. } = asked;
    let body = match bytes {
        0 => String::new(),
        bytes => format!(" with a body of {bytes} bytes, SHA-256 {sha256}"),
    };
    format!("not in the recording: {method} {scheme}://{host}:{port}{}{body}", told_path(target))
}
