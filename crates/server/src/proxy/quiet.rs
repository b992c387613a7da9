//! Whether something runs in a sandbox, by the word of its daemons. Their word is the sandbox's own: it can keep itself
//! awake, as a command that never ends can.

use std::sync::Arc;
use std::time::Duration;

use ingress::EXECD_PORT;
use lifecycle::spec::SandboxId;
use protocol::execd::activity::Activity;

use super::{backend, isolated};
use crate::app::App;
use crate::errors::ApiError;

/// Where a daemon tells it.
const PATH: &str = "/v1/activity";
/// Most bytes of its answer.
const MAX_ANSWER_BYTES: usize = 4 * 1024;

/// How long nothing has run; `None` while something does.
pub(crate) async fn quiet(app: &Arc<App>, id: &SandboxId) -> Result<Option<Duration>, ApiError> {
    let execd = backend(app, id, EXECD_PORT);
    let Activity { running, quiet_ms } = isolated::ask(app, &execd, PATH, MAX_ANSWER_BYTES).await?;
    if running > 0 {
        return Ok(None);
    }
    if let Some(runtime) = app.runtime.isolated() {
        let sessions = runtime.list(id).await.map_err(|error| ApiError::internal(error.message))?;
        for session in sessions.iter().filter(|session| session.alive) {
            let session = isolated::to_session(runtime, id, &execd, &session.record.id);
            let activity: Activity = isolated::ask(app, &session, PATH, MAX_ANSWER_BYTES).await?;
            if activity.running > 0 {
                return Ok(None);
            }
        }
    }
    Ok(Some(quiet_ms.map_or(Duration::MAX, Duration::from_millis)))
}
