//! One run of code in a context, and what happens to it.
//!
//! One loop looks at everything that may happen: nothing in it waits for one thing alone, so a client that does
//! not read cannot keep a run from being interrupted or its context from being deleted.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use protocol::execd::context::DEAD_ERROR_NAME;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, interval_at, sleep_until};

use super::context::{Context, Held};
use super::events::Events;
use super::interpreter::Interpreter;
use super::lines::Line;
use super::talk::Happening;
use crate::command::{OnDisconnect, PING_EVERY};
use crate::http::ByteSender;

/// Bytes of events that wait for the client; then the interpreter is not read any more, and waits.
const MAX_WAITING_BYTES: usize = 64 * 1024;
/// The same once the run is to stop: its output must not keep it from stopping. What is more is not sent.
const MAX_STOPPING_BYTES: usize = 1024 * 1024;
/// Code that swallows an interrupt gets another one after this long.
const INTERRUPT_EVERY: Duration = Duration::from_secs(1);
/// Code that does not stop by interrupts is killed with its interpreter after this long.
pub const INTERRUPT_LIMIT: Duration = Duration::from_secs(10);

/// A run that was asked for.
pub struct Cell {
    /// What is run.
    pub code: String,
    /// Its client.
    pub sender: ByteSender,
    /// What the end of its client's connection does.
    pub on_disconnect: OnDisconnect,
    /// Changes when the run is to stop.
    pub stops: watch::Receiver<u64>,
}

/// How a run left its interpreter.
pub enum After {
    /// Ready for the next cell.
    Ready,
    /// It has ended.
    Dead,
    /// Its context is deleted.
    Deleted,
}

/// What a run sees next.
enum Next {
    Deleted,
    Stop,
    StopAgain,
    Send,
    Lost,
    Ping,
    Happened(Happening),
}

/// The attempt to stop a run.
struct Stop {
    next: Instant,
    kill_at: Instant,
}

struct Run<'a> {
    context: &'a Context,
    events: Events,
    client: Option<ByteSender>,
    on_disconnect: OnDisconnect,
    stop: Option<Stop>,
    was_killed: bool,
}

/// Runs a cell to its end.
pub async fn run(context: &Context, talk: &mut Interpreter, held: &mut Held, cell: Cell) -> After {
    let mut run = Run {
        context,
        events: Events::new(),
        client: Some(cell.sender),
        on_disconnect: cell.on_disconnect,
        stop: None,
        was_killed: false,
    };
    run.events.init(&context.id);
    held.tell(&mut run.events);
    talk.say(&cell.code).await;
    let after = run.until_end(talk, cell.stops).await;
    run.send_rest();
    after
}

/// Answers a run that cannot be.
pub fn refuse(context: &Context, sender: ByteSender, name: &str, why: &str) {
    let mut events = Events::new();
    events.init(&context.id);
    events.error(name, why, vec![why.to_owned()]);
    events.complete();
    let out = Bytes::from(events.out);
    tokio::task::spawn_local(async move { sender.send(Ok(out)).await });
}

impl Run<'_> {
    async fn until_end(&mut self, talk: &mut Interpreter, mut stops: watch::Receiver<u64>) -> After {
        let mut deleted = self.context.deleted();
        let mut pings: Interval = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        loop {
            let has_room = self.client.is_none() || self.stop.is_some() || self.events.out.len() < MAX_WAITING_BYTES;
            let has_events = !self.events.out.is_empty();
            let client = self.client.as_ref();
            let next_stop = self.stop.as_ref().map(|stop| stop.next);
            let next = tokio::select! {
                _ = deleted.wait_for(|deleted| *deleted) => Next::Deleted,
                _ = stops.changed() => Next::Stop,
                () = at(next_stop) => Next::StopAgain,
                () = room(client), if has_events => Next::Send,
                () = closed(client) => Next::Lost,
                _ = pings.tick(), if !has_events => Next::Ping,
                happening = talk.next(), if has_room => Next::Happened(happening),
            };
            match next {
                Next::Deleted => return self.deleted(),
                Next::Stop => self.begin_stop(talk),
                Next::StopAgain => self.go_on_stopping(talk),
                Next::Send => self.send(talk),
                Next::Lost => self.lose_client(talk),
                Next::Ping => self.events.ping(),
                Next::Happened(happening) => {
                    if let Some(after) = self.take(happening) {
                        return after;
                    }
                }
            }
        }
    }

    fn take(&mut self, happening: Happening) -> Option<After> {
        let has_room = self.events.out.len() < MAX_STOPPING_BYTES;
        match happening {
            Happening::Text(stream, text) => {
                if self.client.is_some() && has_room {
                    self.events.output(stream, &text);
                }
            }
            Happening::Line(Line::Result { count, data }) if has_room => self.events.result(count, data),
            Happening::Line(Line::Display { data }) if has_room => self.events.display(data),
            Happening::Line(Line::Error { name, value, traceback }) => self.events.error(&name, &value, traceback),
            Happening::Line(Line::Ready | Line::Result { .. } | Line::Display { .. }) => {}
            Happening::Line(Line::End) => {
                self.events.complete();
                return Some(After::Ready);
            }
            Happening::Died(why) => {
                self.died(&why);
                return Some(After::Dead);
            }
        }
        if self.client.is_none() {
            self.events.out.clear();
        }
        None
    }

    fn died(&mut self, why: &str) {
        let language = self.context.runner.name();
        let because = if self.was_killed { "it did not stop when it was interrupted, and " } else { "" };
        let text = format!(
            "{because}the {language} interpreter {why}; its variables are lost, and the next run begins with a new one"
        );
        self.events.error(DEAD_ERROR_NAME, &text, vec![text.clone()]);
        self.events.complete();
    }

    fn deleted(&mut self) -> After {
        let text = "the context was deleted while this ran";
        self.events.error(DEAD_ERROR_NAME, text, vec![text.into()]);
        self.events.complete();
        After::Deleted
    }

    fn begin_stop(&mut self, talk: &Interpreter) {
        let now = Instant::now();
        if self.stop.is_none() {
            self.stop = Some(Stop { next: now + INTERRUPT_EVERY, kill_at: now + INTERRUPT_LIMIT });
            talk.interrupt();
        }
    }

    fn go_on_stopping(&mut self, talk: &Interpreter) {
        let Some(stop) = &mut self.stop else { return };
        if stop.next < stop.kill_at {
            talk.interrupt();
        } else {
            self.was_killed = true;
            talk.kill();
        }
        stop.next += INTERRUPT_EVERY;
    }

    /// Sends what waits. There is room: nobody else sends to this client.
    fn send(&mut self, talk: &Interpreter) {
        let out = std::mem::take(&mut self.events.out);
        let client = self.client.as_ref();
        if client.is_some_and(|client| client.try_send(Ok(out.into())).is_err()) {
            self.lose_client(talk);
        }
    }

    fn lose_client(&mut self, talk: &Interpreter) {
        self.client = None;
        self.events.out = Vec::new();
        if self.on_disconnect != OnDisconnect::Continue {
            self.begin_stop(talk);
        }
    }

    /// Gives the last events to the client, who may take its time: the context is free already.
    fn send_rest(self) {
        if let Some(client) = self.client {
            let out = Bytes::from(self.events.out);
            tokio::task::spawn_local(async move { client.send(Ok(out)).await });
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Waits until something can be sent, or the client has gone.
async fn room(client: Option<&ByteSender>) {
    match client {
        Some(client) => drop(client.reserve().await),
        None => pending().await,
    }
}

async fn closed(client: Option<&ByteSender>) {
    match client {
        Some(client) => client.closed().await,
        None => pending().await,
    }
}
