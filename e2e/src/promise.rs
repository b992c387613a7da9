//! What a client was promised about a sandbox, and whether the server keeps it however often it was killed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;

use crate::census::Census;
use crate::client::Client;
use crate::server::Server;

/// In this time a background command has written its lines.
const WRITTEN: Duration = Duration::from_secs(10);
/// In this time everything of deleted sandboxes must be gone.
const SETTLE: Duration = Duration::from_secs(15);
/// Between two counts.
const COUNT: Duration = Duration::from_millis(20);
/// What is the same for so long stays.
const STEADY: Duration = Duration::from_millis(300);

/// What a client was promised about one sandbox.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The id that was answered.
    pub id: String,
    /// Deadlines that may be in force: more than one after a renewal without an answer.
    pub deadlines: Vec<String>,
    /// A background command whose start was answered, and what it writes.
    pub background: Option<(String, String)>,
}

impl Promise {
    /// What an answered create promises.
    #[must_use]
    pub fn new((id, deadline): (String, Option<String>)) -> Self {
        Self { id, deadlines: deadline.into_iter().collect(), background: None }
    }

    /// Asks for another deadline, so many seconds from now; whether that was answered with yes.
    pub async fn renew(&mut self, client: &Client, seconds: u64) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
        let wanted = rfc3339(now + seconds);
        let path = format!("/sandboxes/{}/renew-expiration", self.id);
        match client.call("POST", &path, Some(&json!({"expiresAt": wanted}))).await {
            Ok(answer) if answer.status == 200 => {
                self.deadlines = vec![wanted];
                return true;
            }
            Ok(_) => {}
            Err(_) => self.deadlines.push(wanted),
        }
        false
    }

    /// Holds the server to it; says how it was kept.
    ///
    /// # Errors
    /// It was not.
    pub async fn check(&self, client: &Client) -> Result<String> {
        // The look-up waits for a create that is still under way.
        let at = client.endpoint(&self.id).await;
        let detail = client.get(&self.id).await?;
        let state = detail["status"]["state"].as_str().unwrap_or_default();
        if state == "Failed" {
            let cause = detail["status"]["message"].as_str().unwrap_or_default();
            anyhow::ensure!(!cause.is_empty(), "Failed without a cause: {detail}");
            let reason = detail["status"]["reason"].as_str().unwrap_or_default();
            return Ok(format!("Failed {reason}: {}", cause.chars().take(90).collect::<String>()));
        }
        anyhow::ensure!(state == "Running", "state {state}: {detail}");
        let at = at?;
        let echo = client.run(&at, "echo still here").await?;
        anyhow::ensure!(echo.stdout == "still here\n" && echo.exit_code == Some(0), "echo gave {echo:?}");
        let deadline = detail["expiresAt"].as_str().unwrap_or_default();
        anyhow::ensure!(
            self.deadlines.iter().any(|wanted| to_the_second(wanted) == to_the_second(deadline)),
            "deadline {deadline}, promised {:?}",
            self.deadlines
        );
        if let Some((id, expected)) = &self.background {
            let patience = Instant::now() + WRITTEN;
            loop {
                let logs = client.logs(&at, id).await?;
                if logs == *expected {
                    break;
                }
                let so_far = expected.starts_with(&logs) && Instant::now() < patience;
                anyhow::ensure!(so_far, "background logs are {logs:?}");
                tokio::time::sleep(COUNT).await;
            }
        }
        Ok("Running".into())
    }
}

/// Takes the census until it stays the same for a moment, or is within `wanted`.
pub async fn settled(server: &Server, wanted: Option<&Census>) -> Census {
    let deadline = Instant::now() + SETTLE;
    let mut last = Census::take(server);
    let mut since = Instant::now();
    loop {
        let done = wanted.map_or(since.elapsed() >= STEADY, |wanted| last.within(wanted));
        if done || Instant::now() > deadline {
            return last;
        }
        tokio::time::sleep(COUNT).await;
        let now = Census::take(server);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// The part of a timestamp down to the second.
fn to_the_second(timestamp: &str) -> &str {
    timestamp.get(..19).unwrap_or(timestamp)
}

fn rfc3339(unix_seconds: u64) -> String {
    const DAY: u64 = 86_400;
    let (mut days, rest) = (unix_seconds / DAY, unix_seconds % DAY);
    let mut year = 1970;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", month + 1, days + 1, rest / 3600, rest / 60 % 60, rest % 60)
}
