//! Named volumes: what the rows say is made true.
//!
//! A row comes before its volume and goes after it. A row that is marked as going stays until the volume is gone, however
//! often that must be tried; a volume without a row is remembered at the next start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use lifecycle::runtime::{ErrorKind, RuntimeError, Volumes};
use lifecycle::spec::{SandboxId, SandboxSpec};
use lifecycle::volume::Volume;
use protocol::error::code;
use tokio::sync::OwnedMutexGuard;

use crate::app::App;
use crate::errors::ApiError;
use crate::store::{Error, Refused, VolumeRow};

/// Between two rounds of removing what could not be removed before.
const ROUND: Duration = Duration::from_secs(30);

/// Changes of one volume come one after the other, each to its end.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(name.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

/// Makes a volume by itself. Once it is asked for it is done, also when the asker goes.
pub(crate) async fn make(app: &Arc<App>, row: VolumeRow) -> Result<(), ApiError> {
    let work = app.clone();
    let made = app.tasks.spawn(async move {
        work.store.insert_volume(&row).await?;
        let made = ensure(&work, &row.name).await;
        if let Err(error) = made {
            // Unless a sandbox has it by now, which fails or succeeds for itself.
            if work.store.let_volume_go(&row.name).await.is_ok() {
                finish(&work, &row.name).await;
            }
            return Err(failed(&error));
        }
        Ok(())
    });
    made.await.unwrap_or_else(|_| Err(ApiError::internal("the volume was not made to the end; try again")))
}

/// Removes a volume that nobody has. Once it is asked for it is done, also when the asker goes.
pub(crate) async fn remove(app: &Arc<App>, name: String) -> Result<(), ApiError> {
    let work = app.clone();
    let removed = app.tasks.spawn(async move {
        match work.store.let_volume_go(&name).await {
            Err(Error::Volume(Refused::Missing(_))) => {
                return Err(ApiError::missing(code::VOLUME_NOT_FOUND, "volume", &name));
            }
            other => other?,
        }
        take_away(&work, &name).await.map_err(|error| failed(&error))
    });
    removed.await.unwrap_or_else(|_| Err(ApiError::internal("the volume was not removed to the end; try again")))
}

/// Makes those of a sandbox's named volumes that are not there yet.
pub(crate) async fn prepare(app: &Arc<App>, spec: &SandboxSpec) -> Result<(), RuntimeError> {
    for claim in spec.volumes.iter().filter_map(Volume::claim) {
        let (work, name) = (app.clone(), claim.name.clone());
        // To its end, also when the create is given up: one that is made behind its removal would be nobody's.
        let made = app.tasks.spawn(async move { ensure(&work, &name).await });
        let lost = || RuntimeError::new(ErrorKind::Internal, "a volume was not made to the end");
        made.await.unwrap_or_else(|_| Err(lost()))?;
    }
    Ok(())
}

/// Makes a volume as its row says, unless it exists.
async fn ensure(app: &App, name: &str) -> Result<(), RuntimeError> {
    let _turn = app.volume_turns.take(name).await;
    match app.store.volume(name).await.map_err(|error| stored(&error))? {
        Some(row) => means(app)?.ensure(name, row.size_bytes).await,
        None => Err(RuntimeError::new(ErrorKind::Internal, format!("volume \"{name}\" was removed meanwhile"))),
    }
}

/// Removes a volume whose row says so, and the row.
async fn take_away(app: &App, name: &str) -> Result<(), RuntimeError> {
    let _turn = app.volume_turns.take(name).await;
    // Somebody else may have removed it meanwhile, and a third made another of that name.
    let going = app.store.volumes_going().await.map_err(|error| stored(&error))?;
    if !going.iter().any(|going| going == name) {
        return Ok(());
    }
    means(app)?.remove(name).await?;
    app.store.forget_volume(name).await.map_err(|error| stored(&error))
}

fn stored(error: &Error) -> RuntimeError {
    RuntimeError::new(ErrorKind::Internal, protocol::error::chain(error))
}

/// Takes a sandbox's volumes from it that has ended, and removes those that go with it. May be repeated.
///
/// # Errors
/// What could not be removed, to be tried again.
pub(crate) async fn release(
    app: &App,
    id: &SandboxId,
    spec: &SandboxSpec,
    came_to_be: CameToBe,
) -> Result<(), RuntimeError> {
    if spec.volumes.iter().all(|volume| volume.claim().is_none()) {
        return Ok(());
    }
    let going = app.store.release_volumes(id, came_to_be == CameToBe::No).await;
    for name in going.map_err(|error| stored(&error))? {
        take_away(app, &name).await?;
    }
    Ok(())
}

/// Whether a sandbox could be made. What one that could not has made is undone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CameToBe {
    Yes,
    No,
}

/// Remembers volumes that are there and that no row knows, before anybody asks for one.
pub(crate) async fn adopt(app: &App) {
    let Ok(volumes) = means(app) else { return };
    if app.leased {
        return;
    }
    match volumes.list().await {
        Ok(found) => {
            if let Err(error) = app.store.adopt_volumes(found, app.now()).await {
                tracing::warn!(error = %protocol::error::chain(&error), "volumes could not be remembered");
            }
        }
        Err(error) => tracing::warn!(error = %error, "the runtime could not list its volumes"),
    }
}

/// Removes what is still to be removed, in rounds, until the server ends.
pub(crate) async fn keep(app: Arc<App>) {
    if app.leased || means(&app).is_err() {
        return;
    }
    loop {
        match app.store.volumes_going().await {
            Ok(names) => {
                for name in names {
                    finish(&app, &name).await;
                }
            }
            Err(error) => tracing::warn!(error = %protocol::error::chain(&error), "volumes could not be listed"),
        }
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(ROUND) => {}
        }
    }
}

/// Removes a volume whose row says so; what fails is tried again in the next round.
async fn finish(app: &App, name: &str) {
    if let Err(error) = take_away(app, name).await {
        tracing::warn!(volume = name, error = %error, "a volume could not be removed; it is tried again");
    }
}

fn means(app: &App) -> Result<&dyn Volumes, RuntimeError> {
    app.runtime.volumes().ok_or_else(|| {
        let message = format!("the runtime {} has no named volumes", app.runtime.name());
        RuntimeError::new(ErrorKind::Unsupported, message)
    })
}

fn failed(error: &RuntimeError) -> ApiError {
    match error.kind {
        ErrorKind::Unsupported => ApiError::bad_request(code::NOT_SUPPORTED, error.message.clone()),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL_ERROR, error.message.clone()),
    }
}
