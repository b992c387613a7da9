//! Creates that happen once, whatever is sent again.

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use sqlx::Row as _;

use super::{Error, sql};

/// How long a key is remembered: longer than anybody repeats a request.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// Keys that are remembered at a time, at some 200 bytes each.
const MAX_KEYS: i64 = 1_000_000;

/// A caller's name for a create, and what was asked under it.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    key: String,
    digest: String,
}

impl Once {
    /// For a create with this body.
    pub(crate) fn new(key: String, body: &[u8]) -> Self {
        Self { key, digest: Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

/// Whether a sandbox was inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It was.
    New,
    /// Its key was used before, for this sandbox; it may be gone.
    Earlier {
        /// Which.
        id: String,
        /// Whether the same was asked.
        is_same: bool,
    },
    /// It was not: too many keys are remembered.
    Full,
}

/// Takes the key for a sandbox, or tells whose it is.
pub(super) async fn take(
    tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
    once: &Once,
    id: &str,
    now: Timestamp,
) -> Result<Inserted, Error> {
    let op = sql("store the key of a create");
    let forgotten = now.saturating_sub(REMEMBERED).unwrap_or(Timestamp::MIN);
    sqlx::query("DELETE FROM creates WHERE at < ?")
        .bind(forgotten.as_microsecond())
        .execute(&mut **tx)
        .await
        .map_err(&op)?;
    let taken =
        sqlx::query("INSERT INTO creates (key, digest, sandbox_id, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING")
            .bind(&once.key)
            .bind(&once.digest)
            .bind(id)
            .bind(now.as_microsecond())
            .execute(&mut **tx)
            .await
            .map_err(&op)?;
    if taken.rows_affected() > 0 {
        // They come and go in the order of their numbers, so that nothing must be counted.
        let count: i64 = sqlx::query_scalar("SELECT max(rowid) - (SELECT min(rowid) FROM creates) FROM creates")
            .fetch_one(&mut **tx)
            .await
            .map_err(&op)?;
        return Ok(if count < MAX_KEYS { Inserted::New } else { Inserted::Full });
    }
    let row = sqlx::query("SELECT digest, sandbox_id FROM creates WHERE key = ?")
        .bind(&once.key)
        .fetch_one(&mut **tx)
        .await
        .map_err(&op)?;
    let digest: String = row.try_get("digest").map_err(&op)?;
    Ok(Inserted::Earlier { id: row.try_get("sandbox_id").map_err(&op)?, is_same: digest == once.digest })
}
