//! One context and its keeper: the only task that talks with its interpreter.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use protocol::execd::context::{BUSY_ERROR_NAME, CodeContext, DEAD_ERROR_NAME};
use protocol::execd::output::StreamName;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::cell::{self, After, Cell};
use super::events::Events;
use super::interpreter::{Interpreter, Runner};
use super::lines::{Forms, Line};
use super::talk::Happening;
use crate::command::OnDisconnect;
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};
use crate::http::ByteSender;

/// Bytes of a stream that are kept between cells, the newest: what a thread prints comes with the next cell.
const MAX_HELD_BYTES: usize = 16 * 1024;
/// Things shown between cells that are kept, the newest.
const MAX_HELD_FORMS: usize = 8;
/// Bytes of what an interpreter said before it failed to start that are shown.
const MAX_LAST_WORDS: usize = 2000;
/// Wait for the end of a context; killing takes a moment, a process stuck in the kernel takes for ever.
const END_WAIT: Duration = Duration::from_secs(10);

/// How a context is set up.
pub struct Setup {
    /// What was asked for and is shown.
    pub cwd: Option<String>,
    /// Where interpreters start.
    pub directory: String,
    /// Bytes that an interpreter may take.
    pub memory_bytes: Option<u64>,
    /// Time without a run after which it is deleted.
    pub idle: Option<Duration>,
}

/// A context.
pub struct Context {
    /// Its id.
    pub id: String,
    /// What runs its language.
    pub runner: Runner,
    setup: Setup,
    cells: mpsc::Sender<Cell>,
    busy: watch::Sender<bool>,
    /// How often a run was asked to stop.
    stops: watch::Sender<u64>,
    deleted: watch::Sender<bool>,
    /// Whether the first interpreter became ready.
    started: watch::Sender<Option<std::result::Result<(), String>>>,
    gone: watch::Sender<bool>,
}

impl Context {
    /// Makes a context, whose keeper starts its interpreter at once.
    pub fn start(daemon: &Rc<Daemon>, id: String, runner: Runner, setup: Setup) -> Rc<Self> {
        let (cells, asked) = mpsc::channel(1);
        let context = Rc::new(Self {
            id,
            runner,
            setup,
            cells,
            busy: watch::Sender::new(false),
            stops: watch::Sender::new(0),
            deleted: watch::Sender::new(false),
            started: watch::Sender::new(None),
            gone: watch::Sender::new(false),
        });
        let keeper = Keeper { daemon: Rc::clone(daemon), context: Rc::clone(&context), cells: asked };
        tokio::task::spawn_local(keeper.run());
        context
    }

    /// As it is shown to clients.
    pub fn shown(&self) -> CodeContext {
        CodeContext {
            id: Some(self.id.clone()),
            language: Some(self.runner.name().into()),
            cwd: self.setup.cwd.clone(),
        }
    }

    /// Waits until its first interpreter is ready.
    ///
    /// # Errors
    /// 500 when it could not be started.
    pub async fn ready(&self) -> Result<()> {
        let mut started = self.started.subscribe();
        let outcome = match started.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        let why = match outcome {
            Some(Ok(())) => return Ok(()),
            Some(Err(why)) => why,
            None => "was given up".into(),
        };
        Err(ApiError::runtime(format!("the {} interpreter {why}", self.runner.name())))
    }

    /// Hands a cell to the keeper; one that comes while another runs is refused on its stream.
    pub fn run(context: &Rc<Self>, code: String, sender: ByteSender, on_disconnect: OnDisconnect) {
        let cell = Cell { code, sender, on_disconnect, stops: context.stops.subscribe() };
        if *context.busy.borrow() {
            let why = "session is busy: another run goes on in this context; wait for its end or interrupt it";
            return cell::refuse(context, cell.sender, BUSY_ERROR_NAME, why);
        }
        context.busy.send_replace(true);
        if let Err(unsent) = context.cells.try_send(cell) {
            context.busy.send_replace(false);
            let why = "the context is deleted";
            cell::refuse(context, unsent.into_inner().sender, DEAD_ERROR_NAME, why);
        }
    }

    /// Whether a run goes on.
    pub fn is_busy(&self) -> bool {
        *self.busy.borrow()
    }

    /// Interrupts the run that goes on, if one does, and waits for its end; false when it did not end in time.
    pub async fn interrupt(&self) -> bool {
        let mut busy = self.busy.subscribe();
        if !*busy.borrow() {
            return true;
        }
        self.stops.send_modify(|count| *count += 1);
        // The next change is this run's end, whatever begins after it.
        matches!(timeout(cell::INTERRUPT_LIMIT + END_WAIT, busy.changed()).await, Ok(Ok(())))
    }

    /// Asks the keeper to end.
    pub fn delete(&self) {
        self.deleted.send_replace(true);
    }

    /// Waits until the keeper has ended everything; false when that takes too long.
    pub async fn gone(&self) -> bool {
        let mut gone = self.gone.subscribe();
        matches!(timeout(END_WAIT, gone.wait_for(|gone| *gone)).await, Ok(Ok(_)))
    }

    /// Tells whether it is deleted.
    pub fn deleted(&self) -> watch::Receiver<bool> {
        self.deleted.subscribe()
    }
}

/// What came between cells.
#[derive(Default)]
pub struct Held {
    texts: [VecDeque<u8>; 2],
    dropped: [u64; 2],
    forms: VecDeque<Forms>,
}

impl Held {
    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Text(stream, text) => {
                let index = usize::from(stream == StreamName::Stderr);
                self.texts[index].extend(text);
                let beyond = self.texts[index].len().saturating_sub(MAX_HELD_BYTES);
                self.texts[index].drain(..beyond);
                self.dropped[index] += beyond as u64;
            }
            Happening::Line(Line::Display { data } | Line::Result { data, .. }) => {
                self.forms.push_back(data);
                if self.forms.len() > MAX_HELD_FORMS {
                    self.forms.pop_front();
                }
            }
            Happening::Line(_) | Happening::Died(_) => {}
        }
    }

    /// Tells what came since the last cell, and forgets it.
    pub fn tell(&mut self, events: &mut Events) {
        for (index, stream) in [StreamName::Stdout, StreamName::Stderr].into_iter().enumerate() {
            let dropped = std::mem::take(&mut self.dropped[index]);
            if dropped > 0 {
                let note = format!("[execd: {dropped} bytes that were printed between runs are not kept]\n");
                events.output(StreamName::Stderr, note.as_bytes());
            }
            let text: Vec<u8> = std::mem::take(&mut self.texts[index]).into();
            if !text.is_empty() {
                events.output(stream, &text);
            }
        }
        self.forms.drain(..).for_each(|forms| events.display(forms));
    }
}

struct Keeper {
    daemon: Rc<Daemon>,
    context: Rc<Context>,
    cells: mpsc::Receiver<Cell>,
}

/// What the keeper does next.
enum Next {
    Run(Option<Cell>),
    News(Happening),
    End,
}

impl Keeper {
    async fn run(mut self) {
        let context = Rc::clone(&self.context);
        match start(&self.daemon, &context).await {
            Ok(talk) => {
                context.started.send_replace(Some(Ok(())));
                self.keep(talk).await;
            }
            Err(why) => {
                context.started.send_replace(Some(Err(why)));
            }
        }
        self.daemon.contexts.forget(&context.id);
        self.cells.close();
        while let Ok(cell) = self.cells.try_recv() {
            cell::refuse(&context, cell.sender, DEAD_ERROR_NAME, "the context was deleted");
        }
        context.busy.send_replace(false);
        context.gone.send_replace(true);
    }

    async fn keep(&mut self, talk: Interpreter) {
        let context = Rc::clone(&self.context);
        let mut deleted = context.deleted();
        let mut talk = Some(talk);
        let mut held = Held::default();
        let mut idle_since = Instant::now();
        loop {
            let next = tokio::select! {
                _ = deleted.wait_for(|deleted| *deleted) => Next::End,
                cell = self.cells.recv() => Next::Run(cell),
                news = news(&mut talk) => Next::News(news),
                () = idle(context.setup.idle, idle_since) => Next::End,
            };
            match next {
                Next::Run(Some(cell)) => {
                    let is_deleted = self.cell(&mut talk, &mut held, cell).await;
                    idle_since = Instant::now();
                    if is_deleted {
                        break;
                    }
                }
                Next::News(Happening::Died(_)) => end(&mut talk).await,
                Next::News(happening) => held.take(happening),
                Next::Run(None) | Next::End => break,
            }
        }
        end(&mut talk).await;
    }

    /// Runs a cell, with a new interpreter where the last one died; true when the context is deleted.
    async fn cell(&mut self, talk: &mut Option<Interpreter>, held: &mut Held, cell: Cell) -> bool {
        let context = Rc::clone(&self.context);
        bury(talk, held).await;
        if talk.is_none() {
            match start(&self.daemon, &context).await {
                Ok(fresh) => *talk = Some(fresh),
                Err(why) => {
                    let why = format!("the {} interpreter {why}", context.runner.name());
                    cell::refuse(&context, cell.sender, DEAD_ERROR_NAME, &why);
                    context.busy.send_replace(false);
                    return *context.deleted.borrow();
                }
            }
        }
        let Some(living) = talk else { return false };
        let after = cell::run(&context, living, held, cell).await;
        // Before anything is waited for: a client that has read the last event may ask for the next run.
        context.busy.send_replace(false);
        if let After::Dead = after {
            end(talk).await;
        }
        matches!(after, After::Deleted)
    }
}

/// Starts an interpreter and waits until it is ready.
async fn start(daemon: &Rc<Daemon>, context: &Context) -> std::result::Result<Interpreter, String> {
    let limit = context.runner.start_limit();
    let mut said = Vec::new();
    let outcome = timeout(limit, async {
        let mut interpreter = context.runner.start(daemon, &context.setup).await?;
        match until_ready(&mut interpreter, &mut said).await {
            Ok(()) => Ok(interpreter),
            Err(why) => {
                interpreter.end().await;
                Err(format!("{why} before it was ready"))
            }
        }
    });
    let mut deleted = context.deleted();
    let outcome = tokio::select! {
        _ = deleted.wait_for(|deleted| *deleted) => return Err("was not waited for: the context is deleted".into()),
        outcome = outcome => outcome,
    };
    let why = match outcome {
        Ok(Ok(interpreter)) => return Ok(interpreter),
        Ok(Err(why)) => why,
        Err(_) => format!("was not ready within {} s", limit.as_secs()),
    };
    Err(match String::from_utf8_lossy(&said).trim() {
        "" => why,
        said => format!("{why}: {said}"),
    })
}

async fn until_ready(interpreter: &mut Interpreter, said: &mut Vec<u8>) -> std::result::Result<(), String> {
    loop {
        match interpreter.next().await {
            Happening::Line(Line::Ready) => return Ok(()),
            Happening::Line(_) => {}
            Happening::Text(_, text) => {
                let room = MAX_LAST_WORDS - said.len();
                said.extend_from_slice(&text[..text.len().min(room)]);
            }
            Happening::Died(why) => return Err(why),
        }
    }
}

/// Ends an interpreter that has died since its last cell and whose death has not been read yet; its last words are kept.
async fn bury(talk: &mut Option<Interpreter>, held: &mut Held) {
    let Some(dead) = talk.as_mut().filter(|talk| talk.has_ended()) else { return };
    loop {
        match dead.next().await {
            Happening::Died(_) => break,
            happening => held.take(happening),
        }
    }
    end(talk).await;
}

/// Ends what is left of an interpreter.
async fn end(talk: &mut Option<Interpreter>) {
    if let Some(talk) = talk.take() {
        talk.end().await;
    }
}

async fn news(talk: &mut Option<Interpreter>) -> Happening {
    match talk {
        Some(talk) => talk.next().await,
        None => std::future::pending().await,
    }
}

async fn idle(limit: Option<Duration>, since: Instant) {
    match limit {
        Some(limit) => sleep((since + limit).saturating_duration_since(Instant::now())).await,
        None => std::future::pending().await,
    }
}
