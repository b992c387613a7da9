//! Snapshots: what the rows say is made true.
//!
//! A row comes before its snapshot and goes after it. A snapshot that was being taken when the server was killed is looked
//! for at the next start: it is wholly there, or it has failed and nothing of it is left. What the runtime has and no row
//! knows is removed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use lifecycle::runtime::{ErrorKind, RuntimeError};
use lifecycle::snapshot::{Origin, SnapshotId, Snapshots, State, Taken};
use lifecycle::state;
use protocol::error::code;

use crate::app::App;
use crate::driver::Sandbox;
use crate::errors::ApiError;
use crate::store::{SnapshotKind, SnapshotRow};

/// Between two rounds of removing what could not be removed before, or is nobody's any more.
const ROUND: Duration = Duration::from_secs(30);

/// Snapshots of forks whose sandboxes are not stored yet: nobody stands on them, and still they stay.
#[derive(Default)]
pub(crate) struct Forking(Mutex<HashSet<SnapshotId>>);

impl Forking {
    fn set(&self) -> std::sync::MutexGuard<'_, HashSet<SnapshotId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the snapshot of a fork until all its sandboxes are stored; then it goes if none is.
pub(crate) struct Held {
    app: Arc<App>,
    id: SnapshotId,
}

impl Held {
    /// Keeps the snapshot that will have this id.
    fn new(app: &Arc<App>, id: &SnapshotId) -> Self {
        app.forking.set().insert(id.clone());
        Self { app: app.clone(), id: id.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.app.forking.set().remove(&self.id);
        release(&self.app, &self.id);
    }
}

/// Accepts a snapshot of a sandbox and begins to take it.
///
/// # Errors
/// The sandbox is neither running nor paused, the name is taken, or there are none here.
pub(crate) async fn begin(
    app: &Arc<App>,
    sandbox: &Arc<Sandbox>,
    name: Option<String>,
) -> Result<SnapshotRow, ApiError> {
    Ok(accept(app, sandbox, new_id(), name, SnapshotKind::Asked).await?.0)
}

fn new_id() -> SnapshotId {
    SnapshotId::parse(&uuid::Uuid::new_v4().hyphenated().to_string()).expect("a UUID is an id")
}

/// Stores a snapshot's row and begins to take it; what is returned is the row, and how it will end.
async fn accept(
    app: &Arc<App>,
    sandbox: &Arc<Sandbox>,
    id: SnapshotId,
    name: Option<String>,
    kind: SnapshotKind,
) -> Result<(SnapshotRow, tokio::task::JoinHandle<SnapshotRow>), ApiError> {
    means(app).map_err(|error| ApiError::not_implemented(code::SNAPSHOT_NOT_IMPLEMENTED, error.message))?;
    let source = sandbox.row();
    if !matches!(source.state, state::State::Running | state::State::Paused) {
        let message = format!("the sandbox is {}; a snapshot is taken of one that is Running or Paused", source.state);
        return Err(ApiError::conflict(code::SNAPSHOT_INVALID_SOURCE_STATE, message));
    }
    let now = app.now();
    let row = SnapshotRow {
        id,
        sandbox: sandbox.id().to_string(),
        name,
        kind,
        image: source.spec.image.clone(),
        layers: source.layers.clone(),
        state: State::Creating,
        reason: "snapshot_accepted".to_owned(),
        message: "Snapshot creation accepted.".to_owned(),
        transition_at: now,
        created_at: now,
        taken: None,
    };
    let (work, sandbox, begun) = (app.clone(), sandbox.clone(), row.clone());
    // Once it is asked for it is done, also when the asker goes.
    let (stored, told) = tokio::sync::oneshot::channel();
    let task = app.tasks.spawn(async move {
        match work.store.insert_snapshot(&begun).await {
            Ok(()) => {
                // The asker may have gone.
                let _ = stored.send(Ok(()));
                let outcome = sandbox.copy(begun.id.clone()).await;
                let ended = end(&work, begun, outcome).await;
                // Whoever asked for forks may have gone meanwhile.
                release(&work, &ended.id);
                ended
            }
            Err(error) => {
                // As above.
                let _ = stored.send(Err(error));
                begun
            }
        }
    });
    match told.await {
        Ok(Ok(())) => Ok((row, task)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ApiError::internal("the snapshot was not stored; try again")),
    }
}

/// Takes the snapshot that forks stand on; it stays at least as long as what is returned.
///
/// # Errors
/// As [`begin`], and why it could not be taken.
pub(crate) async fn for_forks(app: &Arc<App>, sandbox: &Arc<Sandbox>) -> Result<(Origin, Held), ApiError> {
    // Before anything of it is there: whoever asked may go at any time.
    let held = Held::new(app, &new_id());
    let (_, task) = accept(app, sandbox, held.id.clone(), None, SnapshotKind::Fork).await?;
    let ended = task.await.map_err(|_| ApiError::internal("the sandbox's files were not copied to the end"))?;
    match ended.origin() {
        Some(origin) => Ok((origin, held)),
        None => Err(ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            code::SNAPSHOT_CREATE_FAILED,
            format!("the sandbox's files could not be copied: {}", ended.message),
        )),
    }
}

/// Where a sandbox comes from that names a snapshot; `None` where there are none.
///
/// # Errors
/// There is no such snapshot, or it is not ready.
pub(crate) async fn origin(app: &App, id: &str) -> Result<Option<Origin>, ApiError> {
    if means(app).is_err() {
        return Ok(None);
    }
    let Some(row) = app.store.snapshot(id).await? else {
        let mut missing = ApiError::missing(code::SNAPSHOT_NOT_FOUND, "snapshot", id);
        missing.message.insert_str(0, "snapshotId: ");
        return Err(missing);
    };
    match row.origin() {
        Some(origin) => Ok(Some(origin)),
        None => {
            let message = format!("snapshotId: the snapshot is {}: {}", row.state, row.message);
            Err(ApiError::conflict(code::SNAPSHOT_NOT_READY, message))
        }
    }
}

/// Removes a snapshot on which no sandbox stands. Once it is asked for it is done, also when the asker goes.
///
/// # Errors
/// There is no such snapshot, it is being taken, or sandboxes stand on it.
pub(crate) async fn remove(app: &Arc<App>, id: String) -> Result<(), ApiError> {
    let work = app.clone();
    let removed = app.tasks.spawn(async move {
        let row = work.store.let_snapshot_go(&id, work.now()).await?;
        take_away(&work, &row.id).await.map_err(|error| {
            let message = format!("the snapshot could not be removed, and it is tried until it is: {}", error.message);
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, code::SNAPSHOT_DELETE_FAILED, message)
        })
    });
    removed.await.unwrap_or_else(|_| Err(ApiError::internal("the snapshot was not removed to the end; try again")))
}

/// Removes the snapshot of a fork when nobody stands on it any more; any other stays. May be called for any.
pub(crate) fn release(app: &Arc<App>, id: &SnapshotId) {
    let (work, id) = (app.clone(), id.clone());
    app.tasks.spawn(async move {
        if let Err(error) = release_now(&work, &id).await {
            tracing::warn!(snapshot_id = %id, error = %error.message, "the snapshot of a fork could not be removed; it is tried again");
        }
    });
}

async fn release_now(app: &App, id: &SnapshotId) -> Result<(), RuntimeError> {
    let Some(row) = app.store.snapshot(id.as_str()).await.map_err(|error| stored(&error))? else { return Ok(()) };
    let is_free = row.kind == SnapshotKind::Fork && row.state != State::Creating && !app.forking.set().contains(id);
    if !is_free || !app.store.sandboxes_on(id).await.map_err(|error| stored(&error))?.is_empty() {
        return Ok(());
    }
    match app.store.let_snapshot_go(id.as_str(), app.now()).await {
        Ok(_) => take_away(app, id).await,
        // Somebody began to stand on it just now, or removed it.
        Err(crate::store::Error::Snapshot(_)) => Ok(()),
        Err(error) => Err(stored(&error)),
    }
}

/// Settles, before anybody is served, what a killed server left half done.
pub(crate) async fn recover(app: &App) {
    let Ok(snapshots) = means(app) else { return };
    let there = match snapshots.list().await {
        Ok(there) => there,
        Err(error) => {
            tracing::warn!(error = %error, "the runtime could not list its snapshots");
            return;
        }
    };
    let rows = match app.store.all_snapshots().await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(error = %protocol::error::chain(&error), "snapshots could not be read");
            return;
        }
    };
    for mut row in rows.into_iter().filter(|row| row.state == State::Creating) {
        match there.iter().find(|(id, _)| *id == row.id) {
            Some((_, taken)) => {
                row.taken = Some(taken.clone());
                enter(
                    app,
                    &mut row,
                    State::Ready,
                    "snapshot_recovery_ready",
                    "Snapshot was found whole after a restart.",
                );
            }
            None => {
                let message =
                    "the server was restarted before the snapshot was whole; nothing of it is left, take it again";
                enter(app, &mut row, State::Failed, "snapshot_recovery_missing_image", message);
            }
        }
        store_end(app, &row).await;
    }
    round(app).await;
}

/// Removes what is still to be removed, in rounds, until the server ends.
pub(crate) async fn keep(app: Arc<App>) {
    if means(&app).is_err() {
        return;
    }
    loop {
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(ROUND) => {}
        }
        round(&app).await;
    }
}

async fn round(app: &App) {
    let Ok(snapshots) = means(app) else { return };
    // Asked first: what is taken meanwhile has a row before the runtime has it.
    let there = snapshots.list().await;
    let rows = match app.store.all_snapshots().await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(error = %protocol::error::chain(&error), "snapshots could not be read");
            return;
        }
    };
    for row in &rows {
        let done = match (row.state, row.kind) {
            (State::Deleting, _) => take_away(app, &row.id).await,
            (State::Ready | State::Failed, SnapshotKind::Fork) => release_now(app, &row.id).await,
            _ => Ok(()),
        };
        if let Err(error) = done {
            tracing::warn!(snapshot_id = %row.id, error = %error, "a snapshot could not be removed; it is tried again");
        }
    }
    let there = match there {
        Ok(there) => there,
        Err(error) => return tracing::warn!(error = %error, "the runtime could not list its snapshots"),
    };
    let is_nobodys = |id: &SnapshotId| !rows.iter().any(|row| row.id == *id && row.state != State::Failed);
    for (id, _) in there.iter().filter(|(id, _)| is_nobodys(id)) {
        tracing::warn!(snapshot_id = %id, "removing a snapshot that nobody remembers");
        if let Err(error) = snapshots.remove(id).await {
            tracing::warn!(snapshot_id = %id, error = %error, "it could not be removed; it is tried again");
        }
    }
}

/// Stores how a snapshot ended.
async fn end(app: &App, mut row: SnapshotRow, outcome: Option<Result<Taken, RuntimeError>>) -> SnapshotRow {
    match outcome {
        Some(Ok(taken)) => {
            tracing::info!(snapshot_id = %row.id, sandbox_id = row.sandbox, bytes = taken.bytes, frozen_ms = %taken.frozen.as_millis(), "snapshot is ready");
            row.taken = Some(taken);
            enter(app, &mut row, State::Ready, "snapshot_runtime_ready", "Snapshot is ready.");
        }
        Some(Err(error)) => {
            tracing::warn!(snapshot_id = %row.id, sandbox_id = row.sandbox, error = %error, "a snapshot failed");
            let reason = match error.kind {
                ErrorKind::Exhausted => "snapshot_no_space",
                ErrorKind::NotFound => "snapshot_source_ended",
                ErrorKind::Unsupported => "snapshot_unsupported",
                _ => "snapshot_runtime_failed",
            };
            enter(app, &mut row, State::Failed, reason, &error.message);
        }
        // The server ends; the next start sees what came of it.
        None => return row,
    }
    store_end(app, &row).await;
    row
}

fn enter(app: &App, row: &mut SnapshotRow, state: State, reason: &str, message: &str) {
    row.state = state;
    row.reason = reason.to_owned();
    row.message = message.to_owned();
    row.transition_at = app.now();
}

async fn store_end(app: &App, row: &SnapshotRow) {
    if let Err(error) = app.store.end_snapshot(row).await {
        // It stays `Creating` until the next start, which looks again.
        tracing::error!(snapshot_id = %row.id, error = %protocol::error::chain(&error), "the end of a snapshot could not be stored");
    }
}

/// Removes a snapshot whose row says so, and the row.
async fn take_away(app: &App, id: &SnapshotId) -> Result<(), RuntimeError> {
    means(app)?.remove(id).await?;
    app.store.forget_snapshot(id).await.map_err(|error| stored(&error))
}

fn stored(error: &crate::store::Error) -> RuntimeError {
    RuntimeError::new(ErrorKind::Internal, protocol::error::chain(error))
}

/// Snapshots of this server's runtime.
fn means(app: &App) -> Result<&dyn Snapshots, RuntimeError> {
    if app.leased {
        let message = "snapshots outlive sandboxes: they need a server (`osb server`)";
        return Err(RuntimeError::new(ErrorKind::Unsupported, message));
    }
    app.runtime.snapshots().ok_or_else(|| {
        let message = "no snapshots can be taken on this machine: they need the native runtime as root, with disk images \
                       and a cgroup freezer, and not gVisor";
        RuntimeError::new(ErrorKind::Unsupported, message)
    })
}
