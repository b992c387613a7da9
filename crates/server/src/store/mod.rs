//! The durable record of every sandbox, in SQLite.
//!
//! One connection writes, a few read (write-ahead log). A write is on its way to the disk when the call
//! returns: a killed server loses nothing, a machine that loses power may lose the last moments, and then the
//! runtime is asked what is true. One process owns a database file: a second one is refused.

mod list;
mod once;
mod pools;
mod rows;
mod snapshots;
mod volumes;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

pub(crate) use list::Filter;
pub(crate) use once::{Inserted, Once};
pub(crate) use pools::{PoolRow, Stored};
pub(crate) use rows::Row;
pub use snapshots::Refused as SnapshotRefused;
pub(crate) use snapshots::{Kind as SnapshotKind, SnapshotFilter, SnapshotRow};
pub use volumes::Refused;
pub(crate) use volumes::VolumeRow;

/// Readers beside the one writer: lists must not wait for a write.
const READERS: u32 = 2;
/// How long a statement waits for a lock of the other connections.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages of SQLite's cache for each connection (negative: KiB). Rows are small; memory is budgeted.
const CACHE_KIB: &str = "-512";
/// Version of the tables below, kept in `user_version`.
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: [&str; 8] = [
    "CREATE TABLE IF NOT EXISTS sandboxes (
        id TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        message TEXT NOT NULL,
        transition_at INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        spec TEXT NOT NULL,
        metadata TEXT NOT NULL,
        exit TEXT,
        receipt TEXT,
        layers TEXT,
        failure_code TEXT
    )",
    "CREATE INDEX IF NOT EXISTS sandboxes_newest ON sandboxes (created_at DESC, id DESC)",
    "CREATE TABLE IF NOT EXISTS events (
        seq INTEGER PRIMARY KEY,
        sandbox_id TEXT NOT NULL,
        at INTEGER NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        message TEXT NOT NULL
    )",
    "CREATE INDEX IF NOT EXISTS events_of_sandbox ON events (sandbox_id, seq)",
    "CREATE TABLE IF NOT EXISTS consoles (sandbox_id TEXT PRIMARY KEY, tail BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS credentials (sandbox_id TEXT PRIMARY KEY, record TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS creates (
        key TEXT PRIMARY KEY,
        digest TEXT NOT NULL,
        sandbox_id TEXT NOT NULL,
        at INTEGER NOT NULL
    )",
    "CREATE INDEX IF NOT EXISTS creates_oldest ON creates (at)",
];

/// The database.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    writer: SqlitePool,
    reader: SqlitePool,
    /// Held as long as the store lives: one owner for each file.
    _lock: Option<std::sync::Arc<std::fs::File>>,
}

/// Why the record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory or the lock file beside the database cannot be used.
    #[error("open \"{}\"", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// Another server owns the file.
    #[error("\"{}\" is in use by another server; stop it, or give this one a database of its own (store.path)", .0.display())]
    InUse(PathBuf),
    /// The file was written by a newer version.
    #[error(
        "the database has format {found}, this program knows {SCHEMA_VERSION}; use the newer program or another file"
    )]
    Newer {
        /// Its format.
        found: i64,
    },
    /// A statement failed.
    #[error("{op}")]
    Sql {
        /// What was being done.
        op: &'static str,
        /// The database's words.
        source: sqlx::Error,
    },
    /// Volumes cannot be had as they were asked for.
    #[error(transparent)]
    Volume(#[from] Refused),
    /// A pool or template does not read back.
    #[error("row of pool or template \"{name}\" is damaged in {column}")]
    DamagedPool {
        /// Which one.
        name: String,
        /// Which column.
        column: &'static str,
    },
    /// Snapshots cannot be had as they were asked for.
    #[error(transparent)]
    Snapshot(#[from] SnapshotRefused),
    /// The row of a snapshot does not read back.
    #[error("row of snapshot \"{id}\" is damaged in {column}")]
    DamagedSnapshot {
        /// Which snapshot.
        id: String,
        /// Which column.
        column: &'static str,
    },
    /// A row does not read back.
    #[error("row of sandbox \"{id}\" is damaged in {column}")]
    Damaged {
        /// Which sandbox.
        id: String,
        /// Which column.
        column: &'static str,
    },
}

/// Runs a database operation to its end even when whoever asked goes away: a caller that hangs up must neither
/// leave half a write behind nor disturb the one connection that writes.
async fn to_its_end<T: Send + 'static>(
    op: &'static str,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or(Err(Error::Sql { op, source: sqlx::Error::WorkerCrashed }))
}

/// Names the operation of a failed statement.
fn sql(op: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Sql { op, source }
}

impl Store {
    /// Opens the file, makes it when it is not there, and takes it for this process alone.
    pub(crate) async fn open(path: &Path) -> Result<Self, Error> {
        let lock = lock(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal);
        Self::connect(options, READERS, Some(lock)).await
    }

    /// A database that lives as long as this process.
    pub(crate) async fn in_memory() -> Result<Self, Error> {
        let options = SqliteConnectOptions::new().in_memory(true);
        Self::connect(options, 0, None).await
    }

    async fn connect(options: SqliteConnectOptions, readers: u32, lock: Option<std::fs::File>) -> Result<Self, Error> {
        let options = options.busy_timeout(BUSY_TIMEOUT).pragma("cache_size", CACHE_KIB);
        let pool = |connections: u32| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .min_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
        };
        let writer = pool(1).connect_with(options.clone()).await.map_err(sql("open the database"))?;
        let found: i64 =
            sqlx::query_scalar("PRAGMA user_version").fetch_one(&writer).await.map_err(sql("read the format"))?;
        if found > SCHEMA_VERSION {
            return Err(Error::Newer { found });
        }
        for statement in SCHEMA.into_iter().chain(volumes::SCHEMA).chain(pools::SCHEMA).chain(snapshots::SCHEMA) {
            sqlx::query(statement).execute(&writer).await.map_err(sql("make the tables"))?;
        }
        sqlx::query("PRAGMA user_version = 1").execute(&writer).await.map_err(sql("write the format"))?;
        // A database in memory belongs to its one connection.
        let reader = match readers {
            0 => writer.clone(),
            n => pool(n).connect_with(options.read_only(true)).await.map_err(sql("open the database to read"))?,
        };
        Ok(Self { writer, reader, _lock: lock.map(std::sync::Arc::new) })
    }

    /// Waits for what is under way and closes the file.
    pub(crate) async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }
}

/// Takes the file `<path>.lock`; it stays, because removing it would race with the next owner.
fn lock(path: &Path) -> Result<std::fs::File, Error> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let open = |path: &Path, source| Error::Open { path: path.to_owned(), source };
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|e| open(parent, e))?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&name)
        .map_err(|e| open(&name, e))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(path.to_owned())),
        Err(errno) => Err(open(&name, errno.into())),
    }
}
