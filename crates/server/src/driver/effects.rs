//! What drivers have the runtime do. Every effect may be dropped at any await and run again.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::runtime::{BoxFuture, Create, ErrorKind, Observed, PullAuth, Receipt, RuntimeError};
use lifecycle::spec::HOST_IMAGE;
use lifecycle::state::{Event, PauseCause, State};
use protocol::error::code;
use protocol::hooks::Moment;
use secrecy::ExposeSecret as _;
use tokio::sync::mpsc;

use super::Driver;
use crate::app::App;
use crate::errors::create_failure_code;
use crate::network::Credentials;
use crate::volumes::{self, CameToBe};

/// First wait before a failed removal is tried again; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait between two tries of a removal.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Bytes of an ended sandbox's console that are kept.
pub(crate) const CONSOLE_BYTES: usize = 64 * 1024;

/// How an effect ended.
pub(super) enum Outcome {
    Created {
        receipt: Box<Receipt>,
        /// Layers of its image.
        layers: Vec<String>,
        /// What is known of its credentials.
        credentials: Option<Box<Credentials>>,
    },
    Event(Event),
    /// What the runtime has of a sandbox that was found in the database.
    Found(Result<Observed, RuntimeError>),
    /// Leftovers of an ended sandbox could not be removed.
    CleanFailed,
    Done,
}

/// Whether an earlier try may have left something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leftovers {
    None,
    Possible,
}

impl Driver {
    pub(super) fn create(&self, auth: Option<PullAuth>, leftovers: Leftovers) -> BoxFuture<'static, Outcome> {
        let (app, id, spec, view) = (self.app.clone(), self.row.id.clone(), self.row.spec.clone(), self.view.clone());
        let mut credentials = self.row.credentials.clone();
        Box::pin(async move {
            if leftovers == Leftovers::Possible
                && let Err(error) = app.runtime.destroy(&id, Duration::ZERO).await
            {
                return failed(&error);
            }
            if spec.private_pull && auth.is_none() {
                return Outcome::Event(Event::CreateFailed {
                    code: code::IMAGE_PULL_FAILED.to_owned(),
                    message: "the server was restarted before the image was there, and credentials of a pull are \
                              never stored: create the sandbox again"
                        .to_owned(),
                });
            }
            if let Err(error) = volumes::prepare(&app, &spec).await {
                return failed(&error);
            }
            let progress = move |sentence: String| {
                view.send_if_modified(|row| {
                    let pending = row.state == State::Pending;
                    if pending {
                        Arc::make_mut(row).message = sentence;
                    }
                    pending
                });
            };
            let authority = match app.network.authority(&id, &spec).await {
                Ok(authority) => authority,
                Err(message) => return failed(&RuntimeError::new(ErrorKind::Internal, message)),
            };
            if let (Some(credentials), Some(pem)) = (&mut credentials, &authority) {
                credentials.authority.clone_from(pem);
            }
            let token = app.auth.token(id.as_str());
            let (early, mut arriving) = mpsc::unbounded_channel();
            let making = async {
                let listening = move |listeners| drop(early.send(listeners));
                let request = Create {
                    id: &id,
                    spec: &spec,
                    token: token.expose_secret(),
                    authority: authority.as_deref(),
                    pull_auth: auth,
                    progress: &progress,
                    listening: &listening,
                };
                app.runtime.create(request).await
            };
            // The network is served while the rest of the sandbox is being made.
            let serving = async {
                let mut served = None;
                while let Some(listeners) = arriving.recv().await {
                    let listeners = Some(listeners);
                    served = Some(app.network.serve(&app, &id, &spec, credentials.as_ref(), listeners).await);
                }
                served
            };
            let (created, served) = tokio::join!(making, serving);
            match created {
                Ok(created) => {
                    let served = match served {
                        Some(served) => served,
                        None => app.network.serve(&app, &id, &spec, credentials.as_ref(), created.listeners).await,
                    };
                    if let Err(message) = served {
                        // What was made is removed as all that is left of a failed sandbox is.
                        return failed(&RuntimeError::new(ErrorKind::Internal, message));
                    }
                    let layers = match &spec.origin {
                        Some(origin) => origin.standing.layers.clone(),
                        None => layers_of(&app, &spec.image).await,
                    };
                    Outcome::Created {
                        receipt: Box::new(created.receipt),
                        layers,
                        credentials: credentials.map(Box::new),
                    }
                }
                Err(error) => failed(&error),
            }
        })
    }

    pub(super) fn pause(&self) -> BoxFuture<'static, Outcome> {
        let (app, id, hook) = (self.app.clone(), self.row.id.clone(), self.due(Moment::BeforePause));
        let cause = PauseCause::of(&self.row.reason);
        let accesses = (self.row.state == State::Pausing && cause == PauseCause::Idle).then(|| self.accesses.clone());
        Box::pin(async move {
            if accesses.is_some_and(|accesses| accesses.is_used()) {
                return Outcome::Event(Event::PauseCalledOff);
            }
            let Some(pause) = app.runtime.pause() else {
                return Outcome::Event(Event::PauseFailed { message: no_pause(app.runtime.name()) });
            };
            if let Some(hook) = hook
                && let Err(message) = hook.run().await
            {
                return Outcome::Event(Event::PauseRefused { message });
            }
            Outcome::Event(match pause.pause(&id).await {
                Ok(()) => Event::Paused(cause),
                Err(error) => Event::PauseFailed { message: error.message },
            })
        })
    }

    pub(super) fn resume(&self) -> BoxFuture<'static, Outcome> {
        let (app, id, hook) = (self.app.clone(), self.row.id.clone(), self.due(Moment::AfterResume));
        Box::pin(async move {
            let Some(pause) = app.runtime.pause() else {
                return Outcome::Event(Event::ResumeFailed { message: no_pause(app.runtime.name()) });
            };
            if let Err(error) = pause.resume(&id).await {
                return Outcome::Event(Event::ResumeFailed { message: error.message });
            }
            if let Some(hook) = hook {
                // It runs again, however that went: the failure is an event.
                let _ = hook.run().await;
            }
            Outcome::Event(Event::Resumed)
        })
    }

    pub(super) fn destroy(&self) -> BoxFuture<'static, Outcome> {
        let (app, id, grace, wait) = (self.app.clone(), self.row.id.clone(), self.grace, self.retry_wait());
        let (spec, came_to_be) = (self.row.spec.clone(), self.came_to_be());
        let hook = self.due(Moment::BeforeEnd);
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            if let Some(hook) = hook {
                // Nothing keeps an end from coming: the failure is an event.
                let _ = hook.run().await;
            }
            let destroyed = app.runtime.destroy(&id, grace).await;
            app.network.end(&id, &spec).await;
            let destroyed = match destroyed {
                Ok(()) => volumes::release(&app, &id, &spec, came_to_be).await,
                Err(error) => Err(error),
            };
            Outcome::Event(match destroyed {
                Ok(()) => Event::Destroyed,
                Err(error) => {
                    tracing::warn!(sandbox_id = %id, error = %error, "a sandbox could not be removed; it is tried again");
                    Event::DestroyFailed { message: error.message }
                }
            })
        })
    }

    /// Removes what an ended sandbox left behind, and keeps the end of its console.
    pub(super) fn clean(&self) -> BoxFuture<'static, Outcome> {
        let (app, id, wait) = (self.app.clone(), self.row.id.clone(), self.retry_wait());
        let (spec, came_to_be) = (self.row.spec.clone(), self.came_to_be());
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            match app.runtime.console(&id, CONSOLE_BYTES).await {
                Ok(tail) if !tail.is_empty() => {
                    if let Err(error) = app.store.set_console(&id, &tail).await {
                        tracing::warn!(sandbox_id = %id, error = %protocol::error::chain(&error), "a console could not be kept");
                    }
                }
                Ok(_) => {}
                // Of a sandbox that could not be made there is none.
                Err(error) => {
                    tracing::debug!(sandbox_id = %id, error = %error, "no console to keep")
                }
            }
            let destroyed = app.runtime.destroy(&id, Duration::ZERO).await;
            app.network.end(&id, &spec).await;
            let destroyed = match destroyed {
                Ok(()) => volumes::release(&app, &id, &spec, came_to_be).await,
                Err(error) => Err(error),
            };
            match destroyed {
                Ok(()) => Outcome::Done,
                Err(error) => {
                    tracing::warn!(sandbox_id = %id, error = %error, "leftovers could not be removed; it is tried again");
                    Outcome::CleanFailed
                }
            }
        })
    }

    pub(super) fn observe(&self) -> BoxFuture<'static, Result<Observed, RuntimeError>> {
        let (app, id) = (self.app.clone(), self.row.id.clone());
        Box::pin(async move { app.runtime.observe(&id).await })
    }

    /// Whether it has been made. One that was deleted before is undone like one that failed.
    fn came_to_be(&self) -> CameToBe {
        if self.row.receipt.is_some() { CameToBe::Yes } else { CameToBe::No }
    }

    fn retry_wait(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            n => RETRY_FIRST.saturating_mul(1 << (n - 1).min(16)).min(RETRY_MAX),
        }
    }
}

/// The layers that an image has now, so that a prune leaves them to the sandbox that runs on them.
async fn layers_of(app: &App, image: &str) -> Vec<String> {
    let Some(images) = app.images.as_ref().filter(|_| image != HOST_IMAGE) else {
        return Vec::new();
    };
    match images.resolve(image).await {
        Ok(Some(image)) => image.layers.iter().map(ToString::to_string).collect(),
        Ok(None) => Vec::new(),
        Err(error) => {
            tracing::warn!(image, error = %protocol::error::chain(&error), "the layers of a sandbox are not known");
            Vec::new()
        }
    }
}

fn failed(error: &RuntimeError) -> Outcome {
    if error.kind == ErrorKind::Internal {
        tracing::warn!(error = %error, "a sandbox could not be made");
    }
    Outcome::Event(Event::CreateFailed { code: create_failure_code(error).to_owned(), message: error.message.clone() })
}

fn no_pause(runtime: &str) -> String {
    format!("the runtime {runtime} cannot pause sandboxes on this machine")
}
