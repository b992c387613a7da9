//! Sandboxes are made: one, one whatever is sent again, or many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode};
use lifecycle::admit::{Admitted, Rules, admit};
use lifecycle::runtime::PullAuth;
use lifecycle::snapshot::{Origin, SnapshotId, Standing};
use lifecycle::spec::{SandboxSpec, Taping};
use lifecycle::state;
use protocol::egress::NetworkPolicy;
use protocol::error::code;
use protocol::headers;
use protocol::lifecycle::{
    self as wire_types, BatchItem, BatchRequest, BatchResponse, CreateSandboxRequest, ItemError,
};
use protocol::snapshot::ForkRequest;
use serde_json::{Map, Value};

use super::body::Body;
use super::query::Query;
use crate::app::App;
use crate::driver::{self, Sandbox, Start};
use crate::errors::ApiError;
use crate::middleware::Slot;
use crate::network::Credentials;
use crate::pools;
use crate::snapshots;
use crate::store::{Inserted, Once, Row};
use crate::warm::{self, Place};
use crate::wire::{self, View};

type Shared = State<Arc<App>>;

/// Longest `?wait=` of a create.
const MAX_WAIT_SECONDS: f64 = 600.0;
/// Sandboxes of one batch; the bound of a body's bytes stands beside it.
const MAX_BATCH: usize = 1000;
/// Bytes of all creates of one batch, each with what all of them have: as many as sixteen bodies.
const MAX_BATCH_BYTES: usize = 32 * 1024 * 1024;
/// Longest `Idempotency-Key`.
const MAX_KEY_BYTES: usize = 255;
/// Says of an answer that it is about an earlier create with the same key.
const REPLAYED: &str = "idempotent-replayed";
/// Fields of an item that are joined with those of the batch; any other replaces the batch's.
const JOINED: [&str; 2] = ["env", "metadata"];

/// What a create came to.
struct Made {
    sandbox: Arc<Sandbox>,
    answer: wire_types::Sandbox,
    /// Whether an earlier one with the same key made it.
    is_replay: bool,
}

/// `POST /sandboxes`: 202 as soon as the sandbox is remembered; with `?wait=N` when it runs or failed.
pub(super) async fn one(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let wait = Query::of(&uri).seconds("wait", MAX_WAIT_SECONDS)?;
    let once = key(&headers)?.map(|key| Once::new(key, &body));
    let mut made = make(&app, wire::decode(&body)?, once, app.warm.until(), None).await?;
    settle(&app, slot, std::slice::from_mut(&mut made), wait).await;
    let mut response = (StatusCode::ACCEPTED, Json(made.answer)).into_response();
    if made.is_replay {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// `POST /sandboxes/batch`: many by one call, each accepted or refused by itself; 400 when none was accepted.
pub(super) async fn many(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let wait = Query::of(&uri).seconds("wait", MAX_WAIT_SECONDS)?;
    let key = key(&headers)?;
    let BatchRequest { sandbox, items } = wire::decode(&body)?;
    if items.is_empty() || items.len() > MAX_BATCH {
        return Err(ApiError::bad_request(
            code::INVALID_PARAMETER,
            format!("items: must be 1 to {MAX_BATCH} objects, here are {}", items.len()),
        ));
    }
    let mut bodies = Vec::with_capacity(items.len());
    let mut bytes = 0;
    for item in items {
        let body = Bytes::from(Value::Object(join(&sandbox, item)).to_string());
        bytes += body.len();
        if bytes > MAX_BATCH_BYTES {
            return Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                code::INVALID_REQUEST_BODY,
                format!(
                    "items: with what is in sandbox they are longer than {MAX_BATCH_BYTES} bytes; send fewer at a time"
                ),
            ));
        }
        bodies.push(body);
    }
    let until = app.warm.until();
    let mut outcomes = Vec::with_capacity(bodies.len());
    for (place, merged) in bodies.into_iter().enumerate() {
        let once = key.as_ref().map(|key| Once::new(format!("{key}/{place}"), &merged));
        outcomes.push(match wire::decode(&merged) {
            Ok(request) => make(&app, request, once, until, None).await,
            Err(error) => Err(error),
        });
    }
    Ok(answer(&app, slot, outcomes, wait).await)
}

/// `POST /sandboxes/{id}/fork`: many from the files of one as they are now, each accepted or refused by itself.
pub(super) async fn fork(
    State(app): Shared,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let wait = Query::of(&uri).seconds("wait", MAX_WAIT_SECONDS)?;
    if key(&headers)?.is_some() {
        let message = "Idempotency-Key: a fork is of a moment, and cannot be sent again; leave it out";
        return Err(ApiError::bad_request(code::INVALID_PARAMETER, message));
    }
    let sandbox = app.sandbox(&id)?;
    let asked: Option<ForkRequest> = if body.is_empty() { None } else { wire::decode(&body)? };
    let asked = asked.unwrap_or_default();
    let count = asked.count.unwrap_or(1);
    let Some(count) = usize::try_from(count).ok().filter(|count| (1..=MAX_BATCH).contains(count)) else {
        let message = format!("count: must be 1 to {MAX_BATCH}, here is {count}");
        return Err(ApiError::bad_request(code::INVALID_PARAMETER, message));
    };
    let source = sandbox.row();
    // Before the source stands still for what cannot be.
    admission(&app, forked(&source.spec, &asked, UNTAKEN), Some(untaken(&source)), Some(&source))?;
    let (origin, held) = snapshots::for_forks(&app, &sandbox).await?;
    let request = forked(&source.spec, &asked, origin.id.as_str());
    let like = Like { row: &source, origin };
    let mut outcomes = Vec::with_capacity(count);
    for _ in 0..count {
        outcomes.push(make(&app, request.clone(), None, app.warm.until(), Some(&like)).await);
    }
    drop(held);
    Ok(answer(&app, slot, outcomes, wait).await)
}

/// Stands for the id of a snapshot that is not taken yet.
const UNTAKEN: &str = "untaken";

/// What a fork would come from, as far as its admission looks at that.
fn untaken(source: &Row) -> Origin {
    Origin {
        id: SnapshotId::parse(UNTAKEN).expect("a word is an id"),
        image: source.spec.image.clone(),
        standing: Standing { layers: Vec::new(), host_programs: false, env: Vec::new(), working_dir: None, user: None },
    }
}

/// A fork as a create: what its source has, under what was asked for. [`SandboxSpec::take_over`] adds the rest.
fn forked(source: &SandboxSpec, asked: &ForkRequest, snapshot: &str) -> CreateSandboxRequest {
    let mut env: BTreeMap<_, _> = source.env.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    env.extend(asked.env.clone().unwrap_or_default());
    CreateSandboxRequest {
        snapshot_id: Some(snapshot.to_owned()),
        timeout: asked.timeout.or(source.timeout_seconds.and_then(|seconds| i64::try_from(seconds).ok())),
        resource_limits: Some(BTreeMap::new()),
        env: Some(env),
        metadata: asked.metadata.clone(),
        entrypoint: Some(asked.entrypoint.clone().unwrap_or_else(|| source.entrypoint.clone())),
        network_policy: source.policy.clone(),
        credential_proxy: Some(wire_types::CredentialProxyConfig { enabled: source.credential_proxy }),
        ..CreateSandboxRequest::default()
    }
}

/// The answer for many, once they are settled if the caller wants to wait for that.
async fn answer(app: &App, slot: Slot, outcomes: Vec<Result<Made, ApiError>>, wait: Option<Duration>) -> Response {
    let mut made = Vec::with_capacity(outcomes.len());
    let mut answers = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        answers.push(match outcome {
            Ok(one) => {
                made.push(one);
                Ok(made.len() - 1)
            }
            Err(error) => Err(ItemError { code: error.code, message: error.message }),
        });
    }
    settle(app, slot, &mut made, wait).await;
    let (accepted, refused) = (made.len() as u64, (answers.len() - made.len()) as u64);
    let items = answers.into_iter().map(|answer| match answer {
        Ok(at) => BatchItem { sandbox: Some(made[at].answer.clone()), error: None },
        Err(error) => BatchItem { sandbox: None, error: Some(error) },
    });
    let items: Vec<BatchItem> = items.collect();
    let status = if accepted == 0 { StatusCode::BAD_REQUEST } else { StatusCode::ACCEPTED };
    let first = items.iter().enumerate().find_map(|(place, item)| item.error.as_ref().map(|error| (place, error)));
    let (code, message) = match (accepted, first) {
        (0, Some((place, error))) => (
            Some(error.code.clone()),
            Some(format!("none of the {refused} was accepted; items.{place}: {}", error.message)),
        ),
        _ => (None, None),
    };
    (status, Json(BatchResponse { accepted, refused, items, code, message })).into_response()
}

/// An item over what all of the batch have.
fn join(all: &Map<String, Value>, item: Map<String, Value>) -> Map<String, Value> {
    let mut joined = all.clone();
    for (field, value) in item {
        match (joined.get_mut(&field), value) {
            (Some(Value::Object(common)), Value::Object(own)) if JOINED.contains(&field.as_str()) => common.extend(own),
            (_, value) => {
                joined.insert(field, value);
            }
        }
    }
    joined
}

/// The caller's name for this create, under which it happens once.
fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(headers::IDEMPOTENCY_KEY) else { return Ok(None) };
    let is_visible = |key: &&str| key.bytes().all(|byte| byte.is_ascii_graphic());
    match value.to_str().ok().filter(is_visible) {
        Some(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(ApiError::bad_request(
            code::INVALID_PARAMETER,
            format!("Idempotency-Key: must be 1 to {MAX_KEY_BYTES} visible ASCII characters without spaces"),
        )),
    }
}

/// Waits until each of them runs or failed, as long as the caller wants to.
async fn settle(app: &App, slot: Slot, made: &mut [Made], wait: Option<Duration>) {
    let Some(wait) = wait.filter(|wait| !wait.is_zero()) else { return };
    slot.release();
    let until = tokio::time::Instant::now() + wait;
    for one in made {
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        if let Some(row) = one.sandbox.wait(|row| row.state != state::State::Pending, left).await {
            one.answer = wire::sandbox(&row, View::Detail, app.runtime.name());
        }
    }
}

/// What a fork takes over.
struct Like<'a> {
    /// Its source.
    row: &'a Row,
    /// The snapshot of it.
    origin: Origin,
}

/// Whether a request can be obeyed, and what it comes to.
fn admission(
    app: &App,
    request: CreateSandboxRequest,
    origin: Option<Origin>,
    like: Option<&Row>,
) -> Result<Admitted, ApiError> {
    let capabilities = app.capabilities();
    let mut admitted = admit(request, &capabilities, &Rules { origin, ..pools::rules(app) })?;
    if let Some(source) = like {
        admitted.spec.take_over(&source.spec);
        admitted.vault_demands = source.credentials.as_ref().map(|known| known.demands.clone()).unwrap_or_default();
    }
    if let Taping::Replay { recording } = &admitted.spec.taping {
        app.network.shelf.check(recording)?;
    }
    admitted.spec.network = app.network.shape(admitted.spec.policy.as_ref(), &capabilities.network)?;
    Ok(admitted)
}

/// Accepts one. A pool that is full is waited for until then.
async fn make(
    app: &Arc<App>,
    request: CreateSandboxRequest,
    once: Option<Once>,
    until: tokio::time::Instant,
    like: Option<&Like<'_>>,
) -> Result<Made, ApiError> {
    let (request, out_of) = pools::resolve(app, request).await?;
    let origin = match (like, &request.snapshot_id) {
        (Some(like), _) => Some(like.origin.clone()),
        // With an image beside it the request is refused for that.
        (None, Some(id)) if request.image.is_none() => snapshots::origin(app, id).await?,
        (None, _) => None,
    };
    let mut admitted = admission(app, request, origin, like.map(|like| like.row))?;
    (admitted.spec.pool, admitted.spec.template) = (out_of.pool, out_of.template);
    let now = app.now();
    let expires_at = admitted
        .spec
        .timeout_seconds
        .map(|seconds| {
            let lifetime = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            now.checked_add(lifetime).map_err(|_| {
                ApiError::bad_request(code::INVALID_PARAMETER, "timeout: the date of the end cannot be represented")
            })
        })
        .transpose()?;
    let place = pools::place(app, &admitted.spec, until).await?;
    let id = place.as_ref().map_or_else(warm::new_id, |place| place.id().clone());
    let credentials = admitted.spec.needs_authority().then(|| Credentials::new(admitted.vault_demands));
    if admitted.spec.credential_proxy && admitted.spec.policy.as_ref().is_some_and(NetworkPolicy::allows_by_default) {
        tracing::warn!(sandbox_id = %id, "a sandbox with credentials allows by default; a policy that denies is safer");
    }
    let row = Row {
        id,
        spec: admitted.spec,
        state: state::State::Pending,
        reason: "ACCEPTED".to_owned(),
        message: "Sandbox is being made.".to_owned(),
        transition_at: now,
        created_at: now,
        expires_at,
        exit: None,
        receipt: None,
        layers: Vec::new(),
        failure_code: None,
        credentials,
    };
    let answer = wire::sandbox(&row, View::Created, app.runtime.name());
    match accept(app, row, admitted.pull_auth, once, place).await? {
        Accepted::New(sandbox) => Ok(Made { sandbox, answer, is_replay: false }),
        Accepted::Earlier(sandbox) => {
            let answer = wire::sandbox(&sandbox.row(), View::Created, app.runtime.name());
            Ok(Made { sandbox, answer, is_replay: true })
        }
    }
}

enum Accepted {
    New(Arc<Sandbox>),
    Earlier(Arc<Sandbox>),
}

/// Remembers a sandbox and gives it a driver: both, whether or not the caller stays.
async fn accept(
    app: &Arc<App>,
    row: Row,
    auth: Option<PullAuth>,
    once: Option<Once>,
    place: Option<Place>,
) -> Result<Accepted, ApiError> {
    let app_of_task = app.clone();
    let accepted = app.tasks.spawn(async move {
        let app = app_of_task;
        let _turn = match once {
            Some(_) => Some(app.keyed.lock().await),
            None => None,
        };
        match app.store.insert(&row, once).await? {
            Inserted::New => {
                let sandbox = driver::spawn(&app, row, Start::Fresh(auth));
                if let Some(place) = place {
                    place.use_up();
                }
                Ok(Accepted::New(sandbox))
            }
            Inserted::Full => Err(ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                code::TOO_MANY_REQUESTS,
                "Idempotency-Key: this server remembers no more of them within a day; create without one",
            )),
            Inserted::Earlier { is_same: false, .. } => Err(ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                code::IDEMPOTENCY_KEY_REUSED,
                "Idempotency-Key: came with another body before; a new create needs a key of its own",
            )),
            Inserted::Earlier { id, .. } => match app.sandboxes.get(&id) {
                Some(sandbox) => Ok(Accepted::Earlier(sandbox)),
                None => Err(ApiError::conflict(
                    code::IDEMPOTENCY_KEY_SPENT,
                    format!("Idempotency-Key: its sandbox \"{id}\" is gone; a new create needs a key of its own"),
                )),
            },
        }
    });
    accepted.await.unwrap_or_else(|_| Err(ApiError::internal("the create was not finished; try again")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn an_item_joins_its_variables_and_labels_and_replaces_the_rest() {
        let all = object(json!({"env": {"A": "1", "B": "1"}, "entrypoint": ["a", "b"], "timeout": 60}));
        let item = object(json!({"env": {"B": "2"}, "metadata": {"n": "1"}, "entrypoint": ["c"], "timeout": null}));
        let expected =
            json!({"env": {"A": "1", "B": "2"}, "metadata": {"n": "1"}, "entrypoint": ["c"], "timeout": null});
        assert_eq!(Value::Object(join(&all, item)), expected);
    }

    #[test]
    fn a_key_is_short_and_visible() {
        let key_of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(headers::IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).expect("a value"));
            key(&headers)
        };
        assert_eq!(key_of(b"run-7").expect("a key"), Some("run-7".to_owned()));
        for bad in [&b""[..], b"a b", "\u{e9}".as_bytes(), &[b'a'; 256]] {
            assert!(key_of(bad).is_err(), "{bad:?}");
        }
        assert_eq!(key(&HeaderMap::new()).expect("none"), None);
    }
}
