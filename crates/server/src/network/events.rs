//! What became of a sandbox's questions for names and of its connections: as one answer, or as they happen.
//!
//! The egress process keeps the last ones of each sandbox. A stream goes on with the successor of one that is killed, and
//! says so; what the first had not told is gone with it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, OriginalUri, Path, State};
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use egress::{Control, ControlError, EVENTS_PER_PACKET};
use http::{HeaderMap, StatusCode, header};
use lifecycle::spec::Network as Shape;
use protocol::egress::{NetworkEvent, NetworkEvents};
use protocol::error::code;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::told::{Position, Told};
use crate::app::App;
use crate::driver::Sandbox;
use crate::errors::ApiError;
use crate::middleware::Slot;
use crate::routes::query::{Query, invalid};

/// Events in an answer: by default, and at most as many as are kept.
const USUAL_EVENTS: u64 = 100;
const MOST_EVENTS: u64 = egress::limits::VERDICTS as u64;
/// Lines that wait for a slow reader; what it misses then stays with the egress process, and is counted if it goes.
const LINES: usize = 32;
/// How often a stream says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Wait before an egress process that does not answer is asked again, unless a new one is heard of.
const RETRY: Duration = Duration::from_secs(1);
/// Where a stream that broke off goes on, as browsers send it.
const LAST_EVENT_ID: &str = "last-event-id";

/// `GET /sandboxes/{id}/network/events`.
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let limit = query.number("limit", 1..=MOST_EVENTS, USUAL_EVENTS)?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let position = match text(LAST_EVENT_ID).filter(|text| !text.is_empty()).or(query.text("after")) {
        None => Position::default(),
        Some(text) => Position::parse(text)
            .ok_or_else(|| invalid("after", "must be the number of an event, or a cursor that was given out"))?,
    };
    let sandbox = app.sandbox(&id)?;
    if sandbox.row().spec.network == Shape::None {
        let message = "the sandbox was made without a way out: nothing leaves it, and nothing is told";
        return Err(ApiError::conflict(code::POLICY_NOT_SUPPORTED, message));
    }
    let egress = app.network.egress.as_ref().ok_or_else(|| silent(&ControlError::Gone))?;
    let wants_stream = text(header::ACCEPT.as_str()).is_some_and(|accept| accept.contains("text/event-stream"));
    if wants_stream {
        slot.release();
        let (out, lines) = mpsc::channel(LINES);
        let restarts = egress.restarts.clone();
        let stream = Stream { control: egress.control.clone(), restarts, sandbox, position, out };
        let closing = app.closing.clone();
        app.tasks.spawn(async move {
            tokio::select! {
                _left_or_ended = stream.run() => {}
                () = closing.cancelled() => {}
            }
        });
        let lines = Sse::new(ReceiverStream::new(lines)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
        return Ok(lines.into_response());
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let answer = answer(&egress.control, &sandbox, position, limit).await.map_err(|error| silent(&error))?;
    Ok(Json(answer).into_response())
}

fn silent(error: &ControlError) -> ApiError {
    let message = format!("{}; nothing leaves sandboxes meanwhile", protocol::error::chain(error));
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code::INTERNAL_ERROR, message).retry_after(1)
}

async fn answer(
    control: &Control,
    sandbox: &Sandbox,
    mut position: Position,
    limit: usize,
) -> Result<NetworkEvents, ControlError> {
    let mut answer = NetworkEvents::default();
    loop {
        let said = control.verdicts(sandbox.id().as_str(), position.sequence()).await?;
        let mut is_all = said.events.len() < EVENTS_PER_PACKET;
        for told in position.advance(&said, limit - answer.events.len()) {
            match told {
                Told::Restarted => {
                    answer.restarted = true;
                    is_all = false;
                }
                Told::Lost(count) => answer.lost += count,
                Told::Event(event) => answer.events.push(*event),
            }
        }
        if is_all || answer.events.len() >= limit {
            answer.next = position.to_string();
            return Ok(answer);
        }
    }
}

/// One reader of a sandbox's events.
struct Stream {
    control: Control,
    restarts: watch::Receiver<u64>,
    sandbox: Arc<Sandbox>,
    position: Position,
    out: mpsc::Sender<Result<Line, Infallible>>,
}

/// The reader has gone.
struct Left;

impl Stream {
    /// Tells until the reader leaves or the sandbox ends.
    async fn run(mut self) -> Result<(), Left> {
        let sandbox = self.sandbox.clone();
        let ended = sandbox.wait(|row| !row.state.is_live(), Duration::MAX);
        let out = self.out.clone();
        tokio::select! {
            never_but_left = self.follow() => return never_but_left,
            () = out.closed() => return Err(Left),
            _ended = ended => {}
        }
        // Its last words are kept for a while.
        if let Ok(answer) = answer(&self.control, &sandbox, self.position, usize::MAX).await {
            self.lost(answer.lost).await?;
            for event in answer.events {
                self.event(&event).await?;
            }
        }
        self.notice("ended", json!({ "kind": "ended", "message": "the sandbox has ended" })).await
    }

    /// Tells for as long as the sandbox lives.
    async fn follow(&mut self) -> Result<(), Left> {
        let sandbox = self.sandbox.clone();
        let id = sandbox.id().as_str();
        loop {
            self.restarts.borrow_and_update();
            if let Ok(mut watch) = self.control.watch(Some(id), self.position.sequence()).await {
                while let Some(said) = watch.next().await {
                    let mut position = self.position;
                    let told = position.advance(&said, usize::MAX);
                    let is_other = told.contains(&Told::Restarted);
                    self.tell(told).await?;
                    // Not before: what was not passed on yet is told again.
                    self.position = position;
                    if is_other {
                        // It was asked for what comes after an event of another process.
                        watch = match self.control.watch(Some(id), self.position.sequence()).await {
                            Ok(watch) => watch,
                            Err(_gone) => break,
                        };
                    }
                }
            }
            tokio::select! {
                changed = self.restarts.changed() => if changed.is_err() { std::future::pending().await },
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn tell(&self, told: Vec<Told>) -> Result<(), Left> {
        for told in told {
            match told {
                Told::Restarted => {
                    let message = "the egress process was started anew; what it had not told yet is lost";
                    self.notice("restarted", json!({ "kind": "restarted", "message": message })).await?;
                }
                Told::Lost(count) => self.lost(count).await?,
                Told::Event(event) => self.event(&event).await?,
            }
        }
        Ok(())
    }

    async fn event(&self, event: &NetworkEvent) -> Result<(), Left> {
        let data = serde_json::to_string(event).expect("an event has only text keys");
        self.line(Line::default().id(&event.cursor).event(&event.kind).data(data)).await
    }

    async fn lost(&self, count: u64) -> Result<(), Left> {
        match count {
            0 => Ok(()),
            count => {
                let message = format!("{count} events were not kept");
                self.notice("lost", json!({ "kind": "lost", "message": message, "lost": count })).await
            }
        }
    }

    async fn notice(&self, kind: &str, what: serde_json::Value) -> Result<(), Left> {
        self.line(Line::default().event(kind).data(what.to_string())).await
    }

    async fn line(&self, line: Line) -> Result<(), Left> {
        self.out.send(Ok(line)).await.map_err(|_| Left)
    }
}
