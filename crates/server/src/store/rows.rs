//! One sandbox's row and events: written by its driver alone.

use jiff::Timestamp;
use lifecycle::runtime::{Exit, Receipt};
use lifecycle::spec::{SandboxId, SandboxSpec};
use lifecycle::state::State;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::{Error, Inserted, Once, Store, once, sql, to_its_end};
use crate::network::Credentials;

/// Events kept for one sandbox; a loop of pauses must not fill the disk.
const MAX_EVENTS: i64 = 500;

/// Everything that is remembered of one sandbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: SandboxId,
    pub(crate) spec: SandboxSpec,
    pub(crate) state: State,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) transition_at: Timestamp,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) exit: Option<Exit>,
    pub(crate) receipt: Option<Receipt>,
    /// Layers of its image, lowest first; a prune must not take them.
    pub(crate) layers: Vec<String>,
    /// Code of the cause when it could not be made.
    pub(crate) failure_code: Option<String>,
    /// What is known of its credentials, if it was made with the credential proxy.
    pub(crate) credentials: Option<Credentials>,
}

impl Row {
    /// Whether its network should be served: it is neither being made nor ended.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, State::Running | State::Pausing | State::Paused | State::Resuming)
    }
}

/// One entry of a sandbox's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventRow {
    pub(crate) at: Timestamp,
    pub(crate) state: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

pub(super) const COLUMNS: &str =
    "id, state, reason, message, transition_at, created_at, expires_at, spec, exit, receipt, layers, failure_code,
     (SELECT record FROM credentials WHERE sandbox_id = id) AS credentials";

/// The same without what lists do not show and is long.
pub(super) const LISTED: &str =
    "id, state, reason, message, transition_at, created_at, expires_at, spec, exit, failure_code,
     NULL AS receipt, NULL AS layers, NULL AS credentials";

impl Store {
    /// Remembers a new sandbox, with its first event; one that is to be made once, unless it was.
    pub(crate) async fn insert(&self, row: &Row, once: Option<Once>) -> Result<Inserted, Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store a new sandbox", async move { store.insert_now(&row, once.as_ref()).await }).await
    }

    /// Stores the state that the row is in now, with an event.
    pub(crate) async fn transition(&self, row: &Row) -> Result<(), Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store a sandbox's state", async move { store.transition_now(&row).await }).await
    }

    /// Adds an event with the row's reason and message; its state stays.
    pub(crate) async fn note(&self, row: &Row) -> Result<(), Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store an event", async move { store.note_now(&row).await }).await
    }

    /// Stores a new deadline.
    pub(crate) async fn set_deadline(&self, id: &SandboxId, at: Timestamp) -> Result<(), Error> {
        let (store, id) = (self.clone(), id.clone());
        to_its_end("store a deadline", async move { store.set_deadline_now(&id, at).await }).await
    }

    /// Stores the labels that the specification has now.
    pub(crate) async fn set_metadata(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), Error> {
        let (store, id, spec) = (self.clone(), id.clone(), spec.clone());
        to_its_end("store metadata", async move { store.set_metadata_now(&id, &spec).await }).await
    }

    /// Stores what is known of a sandbox's credentials.
    pub(crate) async fn set_credentials(&self, id: &SandboxId, credentials: &Credentials) -> Result<(), Error> {
        let (store, id, credentials) = (self.clone(), id.clone(), credentials.clone());
        to_its_end("store what a vault holds", async move { store.set_credentials_now(&id, &credentials).await }).await
    }

    /// Keeps the end of an ended sandbox's console.
    pub(crate) async fn set_console(&self, id: &SandboxId, tail: &[u8]) -> Result<(), Error> {
        let (store, id, tail) = (self.clone(), id.clone(), tail.to_vec());
        to_its_end("store a console", async move { store.set_console_now(&id, &tail).await }).await
    }

    /// The kept end of an ended sandbox's console.
    pub(crate) async fn console(&self, id: &SandboxId) -> Result<Option<Vec<u8>>, Error> {
        let (store, id) = (self.clone(), id.clone());
        to_its_end("read a console", async move { store.console_now(&id).await }).await
    }

    /// Removes everything of a sandbox.
    pub(crate) async fn forget(&self, id: &SandboxId) -> Result<(), Error> {
        let (store, id) = (self.clone(), id.clone());
        to_its_end("remove a sandbox", async move { store.forget_now(&id).await }).await
    }

    /// The newest events of a sandbox, oldest of them first.
    pub(crate) async fn events(&self, id: &SandboxId, limit: u32) -> Result<Vec<EventRow>, Error> {
        let (store, id) = (self.clone(), id.clone());
        to_its_end("read events", async move { store.events_now(&id, limit).await }).await
    }
}

/// The statements.
impl Store {
    async fn insert_now(&self, row: &Row, once: Option<&Once>) -> Result<Inserted, Error> {
        let op = sql("store a new sandbox");
        let mut tx = self.writer.begin().await.map_err(&op)?;
        if let Some(once) = once {
            let taken = once::take(&mut tx, once, row.id.as_str(), row.created_at).await?;
            if taken != Inserted::New {
                return Ok(taken);
            }
        }
        super::volumes::claim(&mut tx, row).await?;
        super::snapshots::stand_on(&mut tx, row).await?;
        sqlx::query(
            "INSERT INTO sandboxes (id, state, reason, message, transition_at, created_at, expires_at, spec, metadata)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(row.id.as_str())
        .bind(row.state.as_str())
        .bind(&row.reason)
        .bind(&row.message)
        .bind(row.transition_at.as_microsecond())
        .bind(row.created_at.as_microsecond())
        .bind(row.expires_at.map(Timestamp::as_microsecond))
        .bind(json(&row.spec))
        .bind(json(&row.spec.metadata))
        .execute(&mut *tx)
        .await
        .map_err(&op)?;
        if let Some(credentials) = &row.credentials {
            put_credentials(&mut tx, &row.id, credentials).await?;
        }
        insert_event(&mut tx, row).await?;
        tx.commit().await.map_err(&op)?;
        Ok(Inserted::New)
    }

    async fn transition_now(&self, row: &Row) -> Result<(), Error> {
        let op = sql("store a sandbox's state");
        let mut tx = self.writer.begin().await.map_err(&op)?;
        sqlx::query(
            "UPDATE sandboxes SET state = ?, reason = ?, message = ?, transition_at = ?, exit = ?, receipt = ?, layers = ?,
             failure_code = ? WHERE id = ?",
        )
        .bind(row.state.as_str())
        .bind(&row.reason)
        .bind(&row.message)
        .bind(row.transition_at.as_microsecond())
        .bind(row.exit.as_ref().map(json))
        .bind(row.receipt.as_ref().map(json))
        .bind((!row.layers.is_empty()).then(|| json(&row.layers)))
        .bind(&row.failure_code)
        .bind(row.id.as_str())
        .execute(&mut *tx)
        .await
        .map_err(&op)?;
        if let Some(credentials) = &row.credentials {
            put_credentials(&mut tx, &row.id, credentials).await?;
        }
        insert_event(&mut tx, row).await?;
        tx.commit().await.map_err(&op)
    }

    async fn note_now(&self, row: &Row) -> Result<(), Error> {
        let op = sql("store an event");
        let mut tx = self.writer.begin().await.map_err(&op)?;
        insert_event(&mut tx, row).await?;
        tx.commit().await.map_err(&op)
    }

    async fn set_deadline_now(&self, id: &SandboxId, at: Timestamp) -> Result<(), Error> {
        sqlx::query("UPDATE sandboxes SET expires_at = ? WHERE id = ?")
            .bind(at.as_microsecond())
            .bind(id.as_str())
            .execute(&self.writer)
            .await
            .map(drop)
            .map_err(sql("store a deadline"))
    }

    async fn set_metadata_now(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), Error> {
        sqlx::query("UPDATE sandboxes SET spec = ?, metadata = ? WHERE id = ?")
            .bind(json(spec))
            .bind(json(&spec.metadata))
            .bind(id.as_str())
            .execute(&self.writer)
            .await
            .map(drop)
            .map_err(sql("store metadata"))
    }

    async fn set_credentials_now(&self, id: &SandboxId, credentials: &Credentials) -> Result<(), Error> {
        let op = sql("store what a vault holds");
        let mut tx = self.writer.begin().await.map_err(&op)?;
        put_credentials(&mut tx, id, credentials).await?;
        tx.commit().await.map_err(&op)
    }

    async fn set_console_now(&self, id: &SandboxId, tail: &[u8]) -> Result<(), Error> {
        sqlx::query("INSERT OR REPLACE INTO consoles (sandbox_id, tail) VALUES (?, ?)")
            .bind(id.as_str())
            .bind(tail)
            .execute(&self.writer)
            .await
            .map(drop)
            .map_err(sql("store a console"))
    }

    async fn console_now(&self, id: &SandboxId) -> Result<Option<Vec<u8>>, Error> {
        sqlx::query_scalar("SELECT tail FROM consoles WHERE sandbox_id = ?")
            .bind(id.as_str())
            .fetch_optional(&self.reader)
            .await
            .map_err(sql("read a console"))
    }

    async fn forget_now(&self, id: &SandboxId) -> Result<(), Error> {
        let op = sql("remove a sandbox");
        let mut tx = self.writer.begin().await.map_err(&op)?;
        for statement in [
            "DELETE FROM events WHERE sandbox_id = ?",
            "DELETE FROM consoles WHERE sandbox_id = ?",
            "DELETE FROM credentials WHERE sandbox_id = ?",
            "DELETE FROM volume_uses WHERE sandbox_id = ?",
            "DELETE FROM sandboxes WHERE id = ?",
        ] {
            sqlx::query(statement).bind(id.as_str()).execute(&mut *tx).await.map_err(&op)?;
        }
        tx.commit().await.map_err(&op)
    }

    async fn events_now(&self, id: &SandboxId, limit: u32) -> Result<Vec<EventRow>, Error> {
        let rows =
            sqlx::query("SELECT at, state, reason, message FROM events WHERE sandbox_id = ? ORDER BY seq DESC LIMIT ?")
                .bind(id.as_str())
                .bind(limit)
                .fetch_all(&self.reader)
                .await
                .map_err(sql("read events"))?;
        rows.iter()
            .rev()
            .map(|row| {
                Ok(EventRow {
                    at: instant(row.get("at")).ok_or_else(|| damaged(id.as_str(), "events.at"))?,
                    state: row.get("state"),
                    reason: row.get("reason"),
                    message: row.get("message"),
                })
            })
            .collect()
    }

    /// Every sandbox, for a start.
    pub(crate) async fn load(&self) -> Result<Vec<Row>, Error> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM sandboxes")))
            .fetch_all(&self.writer)
            .await
            .map_err(sql("read all sandboxes"))?;
        rows.iter().map(read).collect()
    }
}

async fn put_credentials(
    tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
    id: &SandboxId,
    credentials: &Credentials,
) -> Result<(), Error> {
    sqlx::query("INSERT OR REPLACE INTO credentials (sandbox_id, record) VALUES (?, ?)")
        .bind(id.as_str())
        .bind(json(credentials))
        .execute(&mut **tx)
        .await
        .map(drop)
        .map_err(sql("store what a vault holds"))
}

async fn insert_event(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, row: &Row) -> Result<(), Error> {
    let op = sql("store an event");
    sqlx::query("INSERT INTO events (sandbox_id, at, state, reason, message) VALUES (?, ?, ?, ?, ?)")
        .bind(row.id.as_str())
        .bind(row.transition_at.as_microsecond())
        .bind(row.state.as_str())
        .bind(&row.reason)
        .bind(&row.message)
        .execute(&mut **tx)
        .await
        .map_err(&op)?;
    sqlx::query(
        "DELETE FROM events WHERE sandbox_id = ?1 AND seq <=
         (SELECT seq FROM events WHERE sandbox_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(row.id.as_str())
    .bind(MAX_EVENTS)
    .execute(&mut **tx)
    .await
    .map(drop)
    .map_err(&op)
}

pub(super) fn read(row: &SqliteRow) -> Result<Row, Error> {
    let id: String = row.get("id");
    let bad = |column| damaged(&id, column);
    let parse_option = |column: &'static str| -> Option<String> { row.get(column) };
    Ok(Row {
        spec: serde_json::from_str(row.get("spec")).map_err(|_| bad("spec"))?,
        state: row.get::<&str, _>("state").parse().map_err(|()| bad("state"))?,
        reason: row.get("reason"),
        message: row.get("message"),
        transition_at: instant(row.get("transition_at")).ok_or_else(|| bad("transition_at"))?,
        created_at: instant(row.get("created_at")).ok_or_else(|| bad("created_at"))?,
        expires_at: row
            .get::<Option<i64>, _>("expires_at")
            .map(|at| instant(at).ok_or_else(|| bad("expires_at")))
            .transpose()?,
        exit: parse_option("exit").map(|text| serde_json::from_str(&text).map_err(|_| bad("exit"))).transpose()?,
        receipt: parse_option("receipt")
            .map(|text| serde_json::from_str(&text).map_err(|_| bad("receipt")))
            .transpose()?,
        layers: parse_option("layers")
            .map(|text| serde_json::from_str(&text).map_err(|_| bad("layers")))
            .transpose()?
            .unwrap_or_default(),
        failure_code: row.get("failure_code"),
        credentials: parse_option("credentials")
            .map(|text| serde_json::from_str(&text).map_err(|_| bad("credentials")))
            .transpose()?,
        id: SandboxId::parse(&id).ok_or_else(|| damaged(&id, "id"))?,
    })
}

fn damaged(id: &str, column: &'static str) -> Error {
    Error::Damaged { id: id.to_owned(), column }
}

fn instant(microseconds: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(microseconds).ok()
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("these types have string keys and no failing serializer")
}
