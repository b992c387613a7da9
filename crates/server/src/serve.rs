//! The entry of this crate: a server from its start to its clean stop.

use std::path::PathBuf;
use std::sync::Arc;

use lifecycle::runtime::Runtime;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Registry};
use crate::auth::Auth;
use crate::config::Config;
use crate::driver::{self, Start, sweep};
use crate::network::{Egress, Network};
use crate::store::Store;
use crate::{accept, proxy, routes};

/// What a server is made from.
pub struct Options {
    /// The configuration in force.
    pub config: Config,
    /// The key that every call to the API must carry.
    pub api_key: SecretString,
    /// The secret from which the tokens of sandboxes are made; the same at every start.
    pub secret: [u8; 32],
    /// Where records are kept.
    pub database: Database,
    /// Whether sandboxes end with this engine.
    pub leased: bool,
    /// The egress process; without one nothing leaves a sandbox.
    pub egress: Option<Egress>,
}

/// Where records are kept.
#[derive(Clone, Debug)]
pub enum Database {
    /// In this file, which one server at a time may own.
    File(PathBuf),
    /// Nowhere: they end with this process.
    Memory,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The records cannot be used.
    #[error("open the server's database")]
    Store(#[from] crate::store::Error),
}

/// Serves until `stop`, then refuses new work, lets open requests finish for
/// `server.timeout_graceful_shutdown`, and closes the database. Sandboxes live on and are found again.
///
/// # Errors
/// The database cannot be opened, or belongs to another server.
pub async fn serve(
    options: Options,
    runtime: Arc<dyn Runtime>,
    images: Option<image::Store>,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let store = match &options.database {
        Database::File(path) => Store::open(path).await?,
        Database::Memory => Store::in_memory().await?,
    };
    let rows = store.load().await?;
    // Beside the database; an engine that keeps nothing uses the directory for what is temporary.
    let uploads = match &options.database {
        Database::File(path) => {
            let uploads = path.with_file_name("uploads");
            routes::images::sweep(&uploads);
            uploads
        }
        Database::Memory => std::env::temp_dir(),
    };
    let names = match &options.database {
        Database::File(path) => Some(path.with_file_name("names")),
        Database::Memory => None,
    };
    let recordings = match &options.database {
        Database::File(path) => Some(path.with_file_name("recordings")),
        Database::Memory => None,
    };
    let network = Network::new(options.egress, options.config.egress.clone(), names, recordings);
    network.shelf.sweep(|id| rows.iter().any(|row| row.id.as_str() == id));
    network.configure().await;
    let limit = options.config.server.limit_concurrency;
    let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
    let trust = options.config.proxy.trust_forwarded;
    let forwarded = if trust { ingress::Forwarded::Keep } else { ingress::Forwarded::Replace };
    let (ports, wanted) = ingress::Ports::new(forwarded, tasks.clone(), closing.clone());
    let warm = crate::warm::Warm::new(options.config.warm.max_memory_bytes, options.config.warm.pool_wait);
    let app = Arc::new(App {
        auth: Auth::new(&options.api_key, options.secret, options.config.ingress.keys.clone()),
        slots: (limit > 0).then(|| Arc::new(Semaphore::new(limit))),
        config: options.config,
        store,
        runtime,
        images,
        sandboxes: Registry::default(),
        network,
        warm,
        pool_turn: tokio::sync::Mutex::default(),
        volume_turns: crate::volumes::Turns::default(),
        forking: crate::snapshots::Forking::default(),
        ports,
        tasks,
        closing,
        keyed: tokio::sync::Mutex::default(),
        uploads,
        leased: options.leased,
    });
    tracing::info!(sandboxes = rows.len(), address = ?listener.local_addr().ok(), "server starts");
    crate::volumes::adopt(&app).await;
    crate::snapshots::recover(&app).await;
    for row in rows {
        driver::spawn(&app, row, Start::Found);
    }
    crate::pools::adopt(&app).await?;
    crate::templates::adopt(&app).await?;
    app.tasks.spawn(crate::warm::keep(app.clone()));
    app.tasks.spawn(crate::network::keep(app.clone()));
    app.tasks.spawn(crate::network::listen(app.clone()));
    app.tasks.spawn(crate::volumes::keep(app.clone()));
    app.tasks.spawn(crate::images::keep(app.clone()));
    app.tasks.spawn(crate::snapshots::keep(app.clone()));
    app.tasks.spawn(sweep::ends(app.clone()));
    app.tasks.spawn(sweep::rounds(app.clone()));
    app.tasks.spawn(app.ports.clone().expire());
    app.tasks.spawn(proxy::shorten(app.clone(), wanted));

    let server = &app.config.server;
    let connections = accept::accept(listener, routes::Routes::new(&app), server.timeout_keep_alive, stop).await;
    tracing::info!("server stops");
    let deadline = tokio::time::Instant::now() + server.timeout_graceful_shutdown;
    connections.close(server.timeout_graceful_shutdown).await;
    // WebSockets and tunnels get the same time as other requests.
    // What is left is ended with everything else.
    let _ = tokio::time::timeout_at(deadline, app.ports.relays_end()).await;
    app.closing.cancel();
    app.tasks.close();
    app.ports.relays_end().await;
    app.tasks.wait().await;
    app.store.close().await;
    Ok(())
}
