//! After work execd becomes small again: what buffers and code took goes back to the host.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::{command, spawn};

/// Without an answer that ended for this long, execd is idle.
const QUIET: Duration = Duration::from_secs(1);

static ANSWERED: Notify = Notify::const_new();

/// Says that an answer has ended.
pub fn answered() {
    ANSWERED.notify_one();
}

/// Tidies up whenever work has come to rest, until execd ends.
pub async fn run() {
    loop {
        ANSWERED.notified().await;
        while timeout(QUIET, ANSWERED.notified()).await.is_ok() {}
        command::release_buffers();
        spawn::release_free_memory();
        spawn::release_code();
    }
}
