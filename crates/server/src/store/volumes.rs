//! Named volumes and who has them: written before a volume is made, and removed after it is gone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use lifecycle::runtime::StoredVolume;
use lifecycle::spec::SandboxId;
use lifecycle::volume::Claim;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::{Error, Row, Store, sql, to_its_end};

/// Most named volumes of one server: each is a row, a directory and an entry of the list.
const MAX_NAMED: i64 = 4096;

pub(super) const SCHEMA: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS volumes (
        name TEXT PRIMARY KEY,
        created_at INTEGER NOT NULL,
        size_bytes INTEGER,
        created_by TEXT,
        owner TEXT,
        delete_at_end INTEGER NOT NULL,
        going INTEGER NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS volume_uses (
        volume TEXT NOT NULL,
        sandbox_id TEXT NOT NULL,
        PRIMARY KEY (volume, sandbox_id)
    )",
    "CREATE INDEX IF NOT EXISTS volume_uses_of_sandbox ON volume_uses (sandbox_id)",
];

/// What is remembered of a named volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRow {
    pub(crate) name: String,
    pub(crate) created_at: Timestamp,
    pub(crate) size_bytes: Option<u64>,
    /// The sandbox whose create made it.
    pub(crate) created_by: Option<String>,
    /// Whether it goes with that sandbox.
    pub(crate) delete_at_end: bool,
    /// The sandboxes that have it.
    pub(crate) sandboxes: Vec<String>,
}

/// Why volumes cannot be had as they were asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It does not exist and is not to be made.
    #[error("there is no volume \"{0}\"")]
    Missing(String),
    /// It exists, and was to be made.
    #[error("there is a volume \"{0}\" already")]
    Exists(String),
    /// It exists with another size limit.
    #[error("volume \"{name}\" has {} and not the one that was asked for; leave `storage` out to take it as it is", .bytes.map_or("no size limit".to_owned(), |bytes| format!("a size limit of {bytes} bytes")))]
    OtherSize {
        /// Which one.
        name: String,
        /// What it has.
        bytes: Option<u64>,
    },
    /// It is being removed.
    #[error("volume \"{0}\" is being removed; try again when it is gone")]
    Going(String),
    /// Sandboxes have it.
    #[error("volume \"{name}\" is used by {}; end them first", .sandboxes.join(", "))]
    InUse {
        /// Which one.
        name: String,
        /// Who has it.
        sandboxes: Vec<String>,
    },
    /// There are as many as there may be.
    #[error("there are {MAX_NAMED} volumes already; remove some")]
    TooMany,
}

impl Store {
    /// Remembers a volume that is about to be made by itself.
    pub(crate) async fn insert_volume(&self, row: &VolumeRow) -> Result<(), Error> {
        let (store, row) = (self.clone(), row.clone());
        to_its_end("store a volume", async move {
            let op = sql("store a volume");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            match find(&mut tx, &row.name).await? {
                Some((_, true)) => return Err(Refused::Going(row.name).into()),
                Some(_) => return Err(Refused::Exists(row.name).into()),
                None => insert(&mut tx, &row).await?,
            }
            tx.commit().await.map_err(&op)
        })
        .await
    }

    /// Remembers volumes that are there and that no row knows.
    pub(crate) async fn adopt_volumes(&self, found: Vec<StoredVolume>, at: Timestamp) -> Result<(), Error> {
        let store = self.clone();
        to_its_end("store volumes", async move {
            let op = sql("store volumes");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            // Of sandboxes that a version without volumes has ended.
            let stale = "DELETE FROM volume_uses WHERE sandbox_id NOT IN (SELECT id FROM sandboxes)";
            sqlx::query(stale).execute(&mut *tx).await.map_err(&op)?;
            for volume in found {
                if find(&mut tx, &volume.name).await?.is_none() {
                    tracing::info!(volume = %volume.name, "a volume is there that no row knows; it is remembered");
                    let row = VolumeRow {
                        name: volume.name,
                        created_at: at,
                        size_bytes: volume.bytes,
                        created_by: None,
                        delete_at_end: false,
                        sandboxes: Vec::new(),
                    };
                    insert(&mut tx, &row).await?;
                }
            }
            tx.commit().await.map_err(&op)
        })
        .await
    }

    /// Every volume that is not being removed, by name.
    pub(crate) async fn volumes(&self) -> Result<Vec<VolumeRow>, Error> {
        let store = self.clone();
        to_its_end("list volumes", async move {
            let op = sql("list volumes");
            let mut tx = store.reader.begin().await.map_err(&op)?;
            let rows = sqlx::query("SELECT * FROM volumes WHERE going = 0 ORDER BY name").fetch_all(&mut *tx).await;
            let rows = rows.map_err(&op)?;
            let uses =
                sqlx::query("SELECT volume, sandbox_id FROM volume_uses ORDER BY sandbox_id").fetch_all(&mut *tx).await;
            let mut by_volume: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for row in uses.map_err(&op)? {
                by_volume.entry(row.get("volume")).or_default().push(row.get("sandbox_id"));
            }
            rows.iter().map(|row| read(row, by_volume.remove(row.get::<&str, _>("name")).unwrap_or_default())).collect()
        })
        .await
    }

    /// One volume, unless it is being removed.
    pub(crate) async fn volume(&self, name: &str) -> Result<Option<VolumeRow>, Error> {
        let (store, name) = (self.clone(), name.to_owned());
        to_its_end("read a volume", async move {
            let mut tx = store.reader.begin().await.map_err(sql("read a volume"))?;
            Ok(find(&mut tx, &name).await?.filter(|(_, going)| !going).map(|(row, _)| row))
        })
        .await
    }

    /// Marks a volume that nobody has as being removed. One that is marked already stays so.
    pub(crate) async fn let_volume_go(&self, name: &str) -> Result<(), Error> {
        let (store, name) = (self.clone(), name.to_owned());
        to_its_end("store a volume's end", async move {
            let op = sql("store a volume's end");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            match find(&mut tx, &name).await? {
                None => return Err(Refused::Missing(name).into()),
                Some((row, _)) if !row.sandboxes.is_empty() => {
                    return Err(Refused::InUse { name, sandboxes: row.sandboxes }.into());
                }
                Some(_) => {}
            }
            sqlx::query("UPDATE volumes SET going = 1 WHERE name = ?")
                .bind(&name)
                .execute(&mut *tx)
                .await
                .map_err(&op)?;
            tx.commit().await.map_err(&op)
        })
        .await
    }

    /// Forgets a volume that is gone.
    pub(crate) async fn forget_volume(&self, name: &str) -> Result<(), Error> {
        let (store, name) = (self.clone(), name.to_owned());
        to_its_end("forget a volume", async move {
            let statement = sqlx::query("DELETE FROM volumes WHERE name = ? AND going = 1").bind(name);
            statement.execute(&store.writer).await.map(drop).map_err(sql("forget a volume"))
        })
        .await
    }

    /// Volumes that are being removed.
    pub(crate) async fn volumes_going(&self) -> Result<Vec<String>, Error> {
        let store = self.clone();
        to_its_end("list volumes", async move {
            let names = sqlx::query_scalar("SELECT name FROM volumes WHERE going = 1");
            names.fetch_all(&store.reader).await.map_err(sql("list volumes"))
        })
        .await
    }

    /// Takes a sandbox's volumes from it, and names those that are to be removed with it: that it made, that nobody else
    /// has, and that were to go, or all of them where the sandbox could not be made. The same again if asked again.
    pub(crate) async fn release_volumes(&self, id: &SandboxId, failed: bool) -> Result<Vec<String>, Error> {
        let (store, id) = (self.clone(), id.as_str().to_owned());
        to_its_end("release volumes", async move {
            let op = sql("release volumes");
            let mut tx = store.writer.begin().await.map_err(&op)?;
            sqlx::query("DELETE FROM volume_uses WHERE sandbox_id = ?")
                .bind(&id)
                .execute(&mut *tx)
                .await
                .map_err(&op)?;
            sqlx::query(
                "UPDATE volumes SET going = 1 WHERE owner = ?1 AND (delete_at_end = 1 OR ?2)
                 AND NOT EXISTS (SELECT 1 FROM volume_uses WHERE volume = name)",
            )
            .bind(&id)
            .bind(failed)
            .execute(&mut *tx)
            .await
            .map_err(&op)?;
            let going = sqlx::query_scalar("SELECT name FROM volumes WHERE owner = ? AND going = 1");
            let going = going.bind(&id).fetch_all(&mut *tx).await.map_err(&op)?;
            // What stays now is nobody's, and goes by a call of its own only.
            sqlx::query("UPDATE volumes SET owner = NULL, delete_at_end = 0 WHERE owner = ? AND going = 0")
                .bind(&id)
                .execute(&mut *tx)
                .await
                .map_err(&op)?;
            tx.commit().await.map_err(&op)?;
            Ok(going)
        })
        .await
    }
}

/// Gives a new sandbox its named volumes; those that do not exist are remembered as made by it.
pub(super) async fn claim(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, row: &Row) -> Result<(), Error> {
    let claims: BTreeMap<&str, &Claim> =
        row.spec.volumes.iter().filter_map(|volume| volume.claim()).map(|claim| (claim.name.as_str(), claim)).collect();
    for (name, claim) in claims {
        match find(tx, name).await? {
            Some((_, true)) => return Err(Refused::Going(name.to_owned()).into()),
            Some((found, _)) if claim.bytes.is_some() && claim.bytes != found.size_bytes => {
                return Err(Refused::OtherSize { name: name.to_owned(), bytes: found.size_bytes }.into());
            }
            Some(_) => {}
            None if !claim.create => return Err(Refused::Missing(name.to_owned()).into()),
            None => {
                let volume = VolumeRow {
                    name: name.to_owned(),
                    created_at: row.created_at,
                    size_bytes: claim.bytes.or(claim.default_bytes),
                    created_by: Some(row.id.as_str().to_owned()),
                    delete_at_end: claim.delete_at_end,
                    sandboxes: Vec::new(),
                };
                insert(tx, &volume).await?;
            }
        }
        sqlx::query("INSERT OR IGNORE INTO volume_uses (volume, sandbox_id) VALUES (?, ?)")
            .bind(name)
            .bind(row.id.as_str())
            .execute(&mut **tx)
            .await
            .map_err(sql("store who has a volume"))?;
    }
    Ok(())
}

/// A volume, and whether it is being removed.
async fn find(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, name: &str) -> Result<Option<(VolumeRow, bool)>, Error> {
    let op = sql("read a volume");
    let found = sqlx::query("SELECT * FROM volumes WHERE name = ?").bind(name).fetch_optional(&mut **tx).await;
    let Some(found) = found.map_err(&op)? else { return Ok(None) };
    let sandboxes = sqlx::query_scalar("SELECT sandbox_id FROM volume_uses WHERE volume = ? ORDER BY sandbox_id");
    let sandboxes = sandboxes.bind(name).fetch_all(&mut **tx).await.map_err(&op)?;
    Ok(Some((read(&found, sandboxes)?, found.get("going"))))
}

async fn insert(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, row: &VolumeRow) -> Result<(), Error> {
    let op = sql("store a volume");
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM volumes").fetch_one(&mut **tx).await.map_err(&op)?;
    if count >= MAX_NAMED {
        return Err(Refused::TooMany.into());
    }
    sqlx::query(
        "INSERT INTO volumes (name, created_at, size_bytes, created_by, owner, delete_at_end, going)
         VALUES (?1, ?2, ?3, ?4, ?4, ?5, 0)",
    )
    .bind(&row.name)
    .bind(row.created_at.as_microsecond())
    .bind(row.size_bytes.and_then(|bytes| i64::try_from(bytes).ok()))
    .bind(&row.created_by)
    .bind(row.delete_at_end)
    .execute(&mut **tx)
    .await
    .map(drop)
    .map_err(&op)
}

fn read(row: &SqliteRow, sandboxes: Vec<String>) -> Result<VolumeRow, Error> {
    let name: String = row.get("name");
    let created_at = Timestamp::from_microsecond(row.get("created_at"))
        .map_err(|_| Error::Damaged { id: name.clone(), column: "volumes.created_at" })?;
    Ok(VolumeRow {
        created_at,
        size_bytes: row.get::<Option<i64>, _>("size_bytes").map(i64::unsigned_abs),
        created_by: row.get("created_by"),
        delete_at_end: row.get("delete_at_end"),
        sandboxes,
        name,
    })
}
