//! Snapshots: written before one is taken, and removed after nothing of it is left.

use jiff::Timestamp;
use lifecycle::snapshot::{Origin, SnapshotId, State, Taken};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, Sqlite};

use super::list::{Listed, Page, only_states};
use super::{Error, Row, Store, sql, to_its_end};

/// Most snapshots of one server: each is a row, a record and at least one directory.
const MAX_SNAPSHOTS: i64 = 10_000;

pub(super) const SCHEMA: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS snapshots (
        id TEXT PRIMARY KEY,
        sandbox_id TEXT NOT NULL,
        name TEXT,
        kind TEXT NOT NULL,
        image TEXT NOT NULL,
        layers TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        message TEXT NOT NULL,
        transition_at INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        taken TEXT
    )",
    "CREATE INDEX IF NOT EXISTS snapshots_newest ON snapshots (created_at DESC, id DESC)",
    "CREATE INDEX IF NOT EXISTS snapshots_of_sandbox ON snapshots (sandbox_id)",
];

/// The columns that [`read`] needs.
const COLUMNS: &str =
    "id, sandbox_id, name, kind, image, layers, state, reason, message, transition_at, created_at, taken";

/// What is remembered of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRow {
    pub(crate) id: SnapshotId,
    /// The sandbox that it is taken of.
    pub(crate) sandbox: String,
    pub(crate) name: Option<String>,
    pub(crate) kind: Kind,
    /// The image of the sandbox.
    pub(crate) image: String,
    /// Layers of that image, which it needs from the beginning.
    pub(crate) layers: Vec<String>,
    pub(crate) state: State,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) transition_at: Timestamp,
    pub(crate) created_at: Timestamp,
    /// What the runtime said of it; `Ready` ones have it.
    pub(crate) taken: Option<Taken>,
}

impl SnapshotRow {
    /// What a sandbox that is made from it comes from, once it is ready.
    pub(crate) fn origin(&self) -> Option<Origin> {
        let taken = self.taken.as_ref().filter(|_| self.state == State::Ready)?;
        Some(Origin { id: self.id.clone(), image: self.image.clone(), standing: taken.standing.clone() })
    }
}

/// Why there is a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A client asked for it; it stays until a client removes it.
    Asked,
    /// Forks stand on it; it goes with the last of them and is in no list.
    Fork,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Fork => "fork",
        }
    }
}

/// Why something cannot be done with snapshots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is none with this id.
    #[error("there is no snapshot \"{0}\"")]
    Missing(String),
    /// Another one has the name.
    #[error("name: snapshot {id} has the name \"{name}\" already; choose another one, or remove that snapshot")]
    NameTaken {
        /// The name.
        name: String,
        /// Which one has it.
        id: String,
    },
    /// One of the same sandbox is being taken.
    #[error("snapshot {0} of this sandbox is being taken; try again when it is ready")]
    AtWork(String),
    /// It is not ready to be used.
    #[error("snapshot \"{id}\" is {state}: {message}")]
    NotReady {
        /// Which one.
        id: String,
        /// What it is.
        state: String,
        /// Why.
        message: String,
    },
    /// It is being taken and cannot be removed yet.
    #[error("snapshot \"{0}\" is being taken; remove it when that has ended")]
    Creating(String),
    /// Sandboxes stand on it.
    #[error("snapshot \"{id}\" is what {} made from; end {} first", stand(.sandboxes), .sandboxes.join(", "))]
    InUse {
        /// Which one.
        id: String,
        /// Who stands on it.
        sandboxes: Vec<String>,
    },
    /// There are as many as there may be.
    #[error("there are {MAX_SNAPSHOTS} snapshots already; remove some")]
    TooMany,
}

fn stand(sandboxes: &[String]) -> String {
    if sandboxes.len() == 1 { "a sandbox is".to_owned() } else { format!("{} sandboxes are", sandboxes.len()) }
}

/// Which snapshots a list shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotFilter {
    /// Taken of this sandbox.
    pub(crate) sandbox: Option<String>,
    /// With exactly this name.
    pub(crate) name: Option<String>,
    /// In any of these; a word that is no state matches nothing.
    pub(crate) states: Option<Vec<State>>,
}

impl Store {
    /// Remembers a snapshot that is about to be taken.
    pub(crate) async fn insert_snapshot(&self, row: &SnapshotRow) -> Result<(), Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store a snapshot", async move { store.insert_snapshot_now(&row).await }).await
    }

    async fn insert_snapshot_now(&self, row: &SnapshotRow) -> Result<(), Error> {
        let op = sql("store a snapshot");
        let mut tx = self.writer.begin().await.map_err(&op)?;
        let at_work = "SELECT id FROM snapshots WHERE sandbox_id = ? AND state = 'Creating'";
        let at_work: Option<String> =
            sqlx::query_scalar(at_work).bind(&row.sandbox).fetch_optional(&mut *tx).await.map_err(&op)?;
        if let Some(id) = at_work {
            return Err(Refused::AtWork(id).into());
        }
        if let Some(name) = &row.name {
            let same = "SELECT id FROM snapshots WHERE name = ? AND state IN ('Creating', 'Ready')";
            let same: Option<String> =
                sqlx::query_scalar(same).bind(name).fetch_optional(&mut *tx).await.map_err(&op)?;
            if let Some(id) = same {
                return Err(Refused::NameTaken { name: name.clone(), id }.into());
            }
        }
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM snapshots").fetch_one(&mut *tx).await.map_err(&op)?;
        if count >= MAX_SNAPSHOTS {
            return Err(Refused::TooMany.into());
        }
        sqlx::query(
            "INSERT INTO snapshots (id, sandbox_id, name, kind, image, layers, state, reason, message, transition_at, created_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(row.id.as_str())
        .bind(&row.sandbox)
        .bind(&row.name)
        .bind(row.kind.as_str())
        .bind(&row.image)
        .bind(json(&row.layers))
        .bind(row.state.as_str())
        .bind(&row.reason)
        .bind(&row.message)
        .bind(row.transition_at.as_microsecond())
        .bind(row.created_at.as_microsecond())
        .execute(&mut *tx)
        .await
        .map_err(&op)?;
        tx.commit().await.map_err(&op)
    }

    /// Stores how taking a snapshot ended; one that has ended before stays as it is.
    pub(crate) async fn end_snapshot(&self, row: &SnapshotRow) -> Result<(), Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store the end of a snapshot", async move {
            sqlx::query(
                "UPDATE snapshots SET state = ?, reason = ?, message = ?, transition_at = ?, taken = ?
                 WHERE id = ? AND state = 'Creating'",
            )
            .bind(row.state.as_str())
            .bind(&row.reason)
            .bind(&row.message)
            .bind(row.transition_at.as_microsecond())
            .bind(row.taken.as_ref().map(json))
            .bind(row.id.as_str())
            .execute(&store.writer)
            .await
            .map(drop)
            .map_err(sql("store the end of a snapshot"))
        })
        .await
    }

    /// Marks a snapshot as being removed, on which no sandbox stands. One that is marked already stays so.
    pub(crate) async fn let_snapshot_go(&self, id: &str, at: Timestamp) -> Result<SnapshotRow, Error> {
        let (store, id) = (self.clone(), id.to_owned());
        to_its_end("store a snapshot's end", async move {
            let op = sql("store a snapshot's end");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            let row = find(&mut tx, &id).await?.ok_or_else(|| Refused::Missing(id.clone()))?;
            if row.state == State::Creating {
                return Err(Refused::Creating(id).into());
            }
            let sandboxes = sandboxes_on(&mut tx, &id).await?;
            if !sandboxes.is_empty() {
                return Err(Refused::InUse { id, sandboxes }.into());
            }
            sqlx::query(
                "UPDATE snapshots SET state = 'Deleting', reason = 'snapshot_deleting', message = ?, transition_at = ?
                 WHERE id = ? AND state <> 'Deleting'",
            )
            .bind("Snapshot is being deleted.")
            .bind(at.as_microsecond())
            .bind(&id)
            .execute(&mut *tx)
            .await
            .map_err(&op)?;
            tx.commit().await.map_err(&op)?;
            Ok(row)
        })
        .await
    }

    /// Forgets a snapshot of which nothing is left.
    pub(crate) async fn forget_snapshot(&self, id: &SnapshotId) -> Result<(), Error> {
        let (store, id) = (self.clone(), id.clone());
        to_its_end("forget a snapshot", async move {
            let statement = "DELETE FROM snapshots WHERE id = ? AND state IN ('Deleting', 'Failed')";
            let done = sqlx::query(statement).bind(id.as_str()).execute(&store.writer).await;
            done.map(drop).map_err(sql("forget a snapshot"))
        })
        .await
    }

    /// One snapshot.
    pub(crate) async fn snapshot(&self, id: &str) -> Result<Option<SnapshotRow>, Error> {
        let (store, id) = (self.clone(), id.to_owned());
        to_its_end("read a snapshot", async move {
            let mut tx = store.reader.begin().await.map_err(sql("read a snapshot"))?;
            find(&mut tx, &id).await
        })
        .await
    }

    /// Every snapshot, also those that are in no list.
    pub(crate) async fn all_snapshots(&self) -> Result<Vec<SnapshotRow>, Error> {
        let store = self.clone();
        to_its_end("read all snapshots", async move {
            let rows = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM snapshots")));
            let rows = rows.fetch_all(&store.reader).await.map_err(sql("read all snapshots"))?;
            rows.iter().map(read).collect()
        })
        .await
    }

    /// Sandboxes that stand on a snapshot.
    pub(crate) async fn sandboxes_on(&self, id: &SnapshotId) -> Result<Vec<String>, Error> {
        let (store, id) = (self.clone(), id.clone());
        to_its_end("read who stands on a snapshot", async move {
            let mut tx = store.reader.begin().await.map_err(sql("read who stands on a snapshot"))?;
            sandboxes_on(&mut tx, id.as_str()).await
        })
        .await
    }

    /// The `page`-th page (from 1) of `size` snapshots, newest first, and how many there are in all.
    pub(crate) async fn snapshots(
        &self,
        filter: SnapshotFilter,
        page: u64,
        size: u64,
    ) -> Result<Page<SnapshotRow>, Error> {
        let store = self.clone();
        let of = Listed { op: "list snapshots", table: "snapshots", columns: COLUMNS, read };
        to_its_end(of.op, async move { store.page(&of, |query| restrict(query, &filter), page, size).await }).await
    }
}

/// Refuses a new sandbox that comes from a snapshot which is not ready any more.
pub(super) async fn stand_on(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, row: &Row) -> Result<(), Error> {
    let Some(origin) = &row.spec.origin else { return Ok(()) };
    let id = origin.id.as_str();
    match find(tx, id).await? {
        Some(found) if found.state == State::Ready => Ok(()),
        Some(found) => {
            Err(Refused::NotReady { id: id.to_owned(), state: found.state.to_string(), message: found.message }.into())
        }
        None => Err(Refused::Missing(id.to_owned()).into()),
    }
}

async fn sandboxes_on(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, id: &str) -> Result<Vec<String>, Error> {
    let statement = "SELECT id FROM sandboxes WHERE json_extract(spec, '$.origin.id') = ?
                     AND state NOT IN ('Terminated', 'Failed') ORDER BY created_at, id";
    let ids = sqlx::query_scalar(statement).bind(id).fetch_all(&mut **tx).await;
    ids.map_err(sql("read who stands on a snapshot"))
}

async fn find(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, id: &str) -> Result<Option<SnapshotRow>, Error> {
    let statement = format!("SELECT {COLUMNS} FROM snapshots WHERE id = ?");
    let found = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(id).fetch_optional(&mut **tx).await;
    found.map_err(sql("read a snapshot"))?.as_ref().map(read).transpose()
}

fn restrict(query: &mut QueryBuilder<Sqlite>, filter: &SnapshotFilter) {
    query.push(" WHERE kind = 'asked'");
    if let Some(sandbox) = &filter.sandbox {
        query.push(" AND sandbox_id = ").push_bind(sandbox.clone());
    }
    if let Some(name) = &filter.name {
        query.push(" AND name = ").push_bind(name.clone());
    }
    if let Some(states) = &filter.states {
        only_states(query, states.iter().map(|state| state.as_str()));
    }
}

fn read(row: &SqliteRow) -> Result<SnapshotRow, Error> {
    let id: String = row.get("id");
    let bad = |column| Error::DamagedSnapshot { id: id.clone(), column };
    let instant = |column| Timestamp::from_microsecond(row.get(column)).map_err(|_| bad(column));
    let taken: Option<String> = row.get("taken");
    Ok(SnapshotRow {
        id: SnapshotId::parse(&id).ok_or_else(|| bad("id"))?,
        sandbox: row.get("sandbox_id"),
        name: row.get("name"),
        kind: if row.get::<&str, _>("kind") == Kind::Fork.as_str() { Kind::Fork } else { Kind::Asked },
        image: row.get("image"),
        layers: serde_json::from_str(row.get("layers")).map_err(|_| bad("layers"))?,
        state: State::parse(row.get("state")).ok_or_else(|| bad("state"))?,
        reason: row.get("reason"),
        message: row.get("message"),
        transition_at: instant("transition_at")?,
        created_at: instant("created_at")?,
        taken: taken.map(|text| serde_json::from_str(&text).map_err(|_| bad("taken"))).transpose()?,
    })
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("these types have string keys and no failing serializer")
}
