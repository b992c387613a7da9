//! Pools and templates, as they were asked for. Who waits in a pool is nobody's record.

use jiff::Timestamp;
use lifecycle::pool::{Capacity, Template, WhenEmpty};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::{Error, Store, sql, to_its_end};
use crate::warm::{capacity_of, capacity_text};

pub(super) const SCHEMA: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS pools (
        name TEXT PRIMARY KEY,
        template TEXT NOT NULL,
        capacity TEXT NOT NULL,
        when_empty TEXT NOT NULL,
        revision INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS templates (
        id TEXT PRIMARY KEY,
        publish TEXT NOT NULL UNIQUE,
        record TEXT NOT NULL,
        created_at INTEGER NOT NULL
    )",
];

/// Most pools of one server: each is a stock that is looked at.
const MAX_POOLS: i64 = 256;
/// Most templates of one server.
const MAX_TEMPLATES: i64 = 4096;

/// What is remembered of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PoolRow {
    pub(crate) name: String,
    /// As it was written.
    pub(crate) template: Template,
    pub(crate) capacity: Capacity,
    pub(crate) when_empty: WhenEmpty,
    /// How often it was changed.
    pub(crate) revision: u64,
    pub(crate) created_at: Timestamp,
}

/// Whether something new was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It was.
    New,
    /// There is one of that name.
    Exists,
    /// There are as many as there may be.
    Full,
}

impl Store {
    /// Remembers a new pool.
    pub(crate) async fn insert_pool(&self, row: &PoolRow) -> Result<Stored, Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store a pool", async move {
            let op = sql("store a pool");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM pools").fetch_one(&mut *tx).await.map_err(&op)?;
            let made = sqlx::query(
                "INSERT OR IGNORE INTO pools (name, template, capacity, when_empty, revision, created_at)
                 VALUES (?, ?, ?, ?, ?, ?)",
            )
            .bind(&row.name)
            .bind(serde_json::Value::Object(row.template.clone()).to_string())
            .bind(capacity_text(&row.capacity))
            .bind(row.when_empty.as_str())
            .bind(number(row.revision))
            .bind(row.created_at.as_microsecond())
            .execute(&mut *tx)
            .await
            .map_err(&op)?;
            kept(tx, made.rows_affected() > 0, count < MAX_POOLS, "store a pool").await
        })
        .await
    }

    /// Stores the numbers that a pool has now.
    pub(crate) async fn update_pool(&self, row: &PoolRow) -> Result<(), Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store a pool's numbers", async move {
            let updated = sqlx::query("UPDATE pools SET capacity = ?, when_empty = ?, revision = ? WHERE name = ?")
                .bind(capacity_text(&row.capacity))
                .bind(row.when_empty.as_str())
                .bind(number(row.revision))
                .bind(&row.name)
                .execute(&store.writer)
                .await;
            updated.map(drop).map_err(sql("store a pool's numbers"))
        })
        .await
    }

    /// Forgets a pool; whether there was one.
    pub(crate) async fn remove_pool(&self, name: &str) -> Result<bool, Error> {
        let (store, name) = (self.clone(), name.to_owned());
        to_its_end("remove a pool", async move {
            let removed = sqlx::query("DELETE FROM pools WHERE name = ?").bind(&name).execute(&store.writer).await;
            removed.map(|removed| removed.rows_affected() > 0).map_err(sql("remove a pool"))
        })
        .await
    }

    /// Every pool, by name.
    pub(crate) async fn pools(&self) -> Result<Vec<PoolRow>, Error> {
        let store = self.clone();
        to_its_end("list pools", async move {
            let rows = sqlx::query("SELECT * FROM pools ORDER BY name").fetch_all(&store.reader).await;
            rows.map_err(sql("list pools"))?.iter().map(read).collect()
        })
        .await
    }

    /// One pool.
    pub(crate) async fn pool(&self, name: &str) -> Result<Option<PoolRow>, Error> {
        let (store, name) = (self.clone(), name.to_owned());
        to_its_end("read a pool", async move {
            let row = sqlx::query("SELECT * FROM pools WHERE name = ?").bind(&name).fetch_optional(&store.reader).await;
            row.map_err(sql("read a pool"))?.as_ref().map(read).transpose()
        })
        .await
    }

    /// Remembers a new template.
    pub(crate) async fn add_template(&self, record: &protocol::lifecycle::Template) -> Result<Stored, Error> {
        let (store, record) = (self.clone(), record.clone());
        to_its_end("store a template", async move {
            let op = sql("store a template");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            let count: i64 =
                sqlx::query_scalar("SELECT COUNT(*) FROM templates").fetch_one(&mut *tx).await.map_err(&op)?;
            let made =
                sqlx::query("INSERT OR IGNORE INTO templates (id, publish, record, created_at) VALUES (?, ?, ?, ?)")
                    .bind(&record.template_id)
                    .bind(&record.publish)
                    .bind(serde_json::to_string(&record).expect("a record is JSON"))
                    .bind(Timestamp::now().as_microsecond())
                    .execute(&mut *tx)
                    .await
                    .map_err(&op)?;
            kept(tx, made.rows_affected() > 0, count < MAX_TEMPLATES, "store a template").await
        })
        .await
    }

    /// Changes a template that is still there; a removed one stays so.
    pub(crate) async fn change_template(&self, record: &protocol::lifecycle::Template) -> Result<bool, Error> {
        let (store, record) = (self.clone(), record.clone());
        to_its_end("store a template", async move {
            let text = serde_json::to_string(&record).expect("a record is JSON");
            let changed = sqlx::query("UPDATE templates SET record = ? WHERE id = ?")
                .bind(text)
                .bind(&record.template_id)
                .execute(&store.writer)
                .await;
            changed.map(|changed| changed.rows_affected() > 0).map_err(sql("store a template"))
        })
        .await
    }

    /// Every template, newest first.
    pub(crate) async fn templates(&self) -> Result<Vec<protocol::lifecycle::Template>, Error> {
        let store = self.clone();
        to_its_end("list templates", async move {
            let rows = sqlx::query("SELECT id, record FROM templates ORDER BY created_at DESC, id DESC")
                .fetch_all(&store.reader)
                .await;
            rows.map_err(sql("list templates"))?.iter().map(read_template).collect()
        })
        .await
    }

    /// One template.
    pub(crate) async fn template(&self, id: &str) -> Result<Option<protocol::lifecycle::Template>, Error> {
        let (store, id) = (self.clone(), id.to_owned());
        to_its_end("read a template", async move {
            let row = sqlx::query("SELECT id, record FROM templates WHERE id = ?")
                .bind(&id)
                .fetch_optional(&store.reader)
                .await;
            row.map_err(sql("read a template"))?.as_ref().map(read_template).transpose()
        })
        .await
    }

    /// Forgets a template; whether there was one.
    pub(crate) async fn remove_template(&self, id: &str) -> Result<bool, Error> {
        let (store, id) = (self.clone(), id.to_owned());
        to_its_end("remove a template", async move {
            let removed = sqlx::query("DELETE FROM templates WHERE id = ?").bind(&id).execute(&store.writer).await;
            removed.map(|removed| removed.rows_affected() > 0).map_err(sql("remove a template"))
        })
        .await
    }
}

/// Keeps a row that was just inserted, if it is new and there was room.
async fn kept(
    tx: sqlx::Transaction<'_, sqlx::Sqlite>,
    is_new: bool,
    has_room: bool,
    op: &'static str,
) -> Result<Stored, Error> {
    match (is_new, has_room) {
        (false, _) => Ok(Stored::Exists),
        (true, false) => Ok(Stored::Full),
        (true, true) => tx.commit().await.map(|()| Stored::New).map_err(sql(op)),
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn read(row: &SqliteRow) -> Result<PoolRow, Error> {
    let name: String = row.get("name");
    let damaged = |column: &'static str| Error::DamagedPool { name: name.clone(), column };
    Ok(PoolRow {
        template: serde_json::from_str(row.get("template")).map_err(|_| damaged("template"))?,
        capacity: capacity_of(row.get("capacity")).ok_or_else(|| damaged("capacity"))?,
        when_empty: WhenEmpty::parse(Some(row.get("when_empty"))).map_err(|_| damaged("when_empty"))?,
        revision: row.get::<i64, _>("revision").unsigned_abs(),
        created_at: Timestamp::from_microsecond(row.get("created_at")).map_err(|_| damaged("created_at"))?,
        name: name.clone(),
    })
}

fn read_template(row: &SqliteRow) -> Result<protocol::lifecycle::Template, Error> {
    let damaged = |_| Error::DamagedPool { name: row.get("id"), column: "record" };
    serde_json::from_str(row.get("record")).map_err(damaged)
}
