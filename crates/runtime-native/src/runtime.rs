//! The server's half: images on one side, the jailer on the other, [`lifecycle::runtime::Runtime`] in front.
//!
//! Has no privilege and touches no sandbox itself. What it writes: the boot configuration, into a memory file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use image::unpack::{Compression, LayerStats, Unpack, UnpackError};
use image::{Credentials, EnsureOptions, LayerId, Store};
use lifecycle::runtime::{
    BoxFuture, Capabilities, Create, Created, ErrorKind, ExecdAddress, Observed, Pause, PullAuth, Runtime, RuntimeError,
};
use lifecycle::spec::{HOST_IMAGE, SandboxId, SandboxSpec};
use protocol::execd::boot::BootConfig;
use rustix::fs::MemfdFlags;
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, OnceCell};

use crate::client::JailerClient;
use crate::error::{Context, Failure, Kind, Result};
use crate::paths::Paths;
use crate::wire::{Plan, PlanLimits, Reply, Request};

/// How long execd has from the jailer's first step to its first answer: a loaded machine needs seconds.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// What every request may take beyond the work that it names.
const MARGIN: Duration = Duration::from_secs(10);
/// Unpacking the largest layer that is allowed, on a slow disk.
const UNPACK_DEADLINE: Duration = Duration::from_secs(3600);
/// Memory of a sandbox that asks for none, in bytes (published default of the clients).
const DEFAULT_MEMORY_BYTES: u64 = 2 << 30;
/// Processes of a sandbox that asks for no limit (published default `docker.pids_limit`).
const DEFAULT_PIDS: u64 = 4096;
/// Room for inotify events: one is at most 272 bytes.
const EVENT_BYTES: usize = 16 * 1024;
/// The search path of processes whose image names none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the runtime is told at its start.
pub struct Settings {
    /// The data directory that the jailer uses.
    pub data_dir: PathBuf,
    /// Where the image store keeps blobs and manifests.
    pub images_dir: PathBuf,
    /// Registries that speak plain HTTP, beside those on loopback.
    pub plain_http_hosts: Vec<String>,
    /// Between TERM and KILL when a sandbox is ended.
    pub grace: Duration,
    /// When given, every sandbox ends once the other end of this pipe is closed.
    pub lease: Option<OwnedFd>,
}

/// Sandboxes of the native runtime.
pub struct NativeRuntime {
    jailer: Arc<JailerClient>,
    images: Store,
    settings: Settings,
    paths: Paths,
    capabilities: Capabilities,
    host_layer: OnceCell<String>,
    ends: Mutex<Ends>,
}

/// Exit records as they appear.
struct Ends {
    watch: AsyncFd<OwnedFd>,
    found: std::collections::VecDeque<SandboxId>,
}

impl NativeRuntime {
    /// Talks to the jailer on `socket`, which must have been told the same data directory.
    ///
    /// # Errors
    /// When the jailer does not answer, or the image store cannot be opened.
    pub async fn connect(socket: OwnedFd, settings: Settings) -> Result<Self> {
        let jailer = Arc::new(JailerClient::new(socket)?);
        let (reply, _) = jailer.ask(&Request::Probe, &[], MARGIN).await?;
        let Reply::Probed(probe) = reply else { return Err(unexpected(&reply)) };
        let unpacker = Arc::new(JailerUnpack(jailer.clone()));
        let images = Store::open(&settings.images_dir, unpacker).await.map_err(|error| Failure::internal(with_causes(&error)))?;
        let paths = Paths::new(&settings.data_dir);
        let ends = Mutex::new(Ends { watch: watch(&paths)?, found: std::collections::VecDeque::new() });
        let capabilities = probe.capabilities;
        Ok(Self { jailer, images, settings, paths, capabilities, host_layer: OnceCell::new(), ends })
    }

    /// Goes on with another jailer.
    pub fn replace(&self, socket: OwnedFd) {
        if let Err(error) = self.jailer.replace(socket) {
            tracing::error!(error = %error, "cannot take the new jailer over");
        }
    }

    /// The image store, for the API of images.
    pub fn images(&self) -> &Store {
        &self.images
    }

    async fn ask(&self, request: Request, work: Duration) -> Result<Reply> {
        Ok(self.jailer.ask(&request, &[], work + MARGIN).await?.0)
    }

    /// The layer of the `host` image: made when it is asked for first.
    async fn host_layer(&self) -> Result<String> {
        let make = || async {
            match self.ask(Request::HostImage, UNPACK_DEADLINE).await? {
                Reply::Host { layer } => Ok(layer),
                other => Err(unexpected(&other)),
            }
        };
        self.host_layer.get_or_try_init(make).await.cloned()
    }

    async fn base(&self, spec: &SandboxSpec, auth: Option<PullAuth>, progress: &(dyn Fn(String) + Send + Sync)) -> Result<Base> {
        if spec.image == HOST_IMAGE {
            let layers = vec![self.host_layer().await?];
            return Ok(Base { layers, host_programs: true, ..Base::default() });
        }
        let platform = spec.platform.as_ref().map(|p| format!("{}/{}", p.os, p.arch).parse::<image::Platform>());
        let platform = platform.transpose().map_err(|error| Failure::new(Kind::Image, with_causes(&error)))?;
        let options = EnsureOptions {
            credentials: auth.map(|auth| Credentials { username: auth.username, password: auth.password.into() }),
            platform,
            plain_http_hosts: self.settings.plain_http_hosts.clone(),
        };
        let report = |now: image::Progress| progress(now.to_string());
        let image = self.images.ensure(&spec.image, options, &report).await;
        let image = image.map_err(|error| Failure::new(Kind::Image, with_causes(&error)))?;
        Ok(Base {
            layers: image.layers.iter().map(|layer| layer.as_str().to_owned()).collect(),
            host_programs: false,
            env: image.config.env.into_iter().collect(),
            cwd: image.config.working_dir.filter(|dir| !dir.is_empty()),
            user: image.config.user.filter(|user| !user.is_empty()),
        })
    }

    async fn make(&self, request: Create<'_>) -> Result<Created> {
        let spec = request.spec;
        let base = self.base(spec, request.pull_auth, request.progress).await?;
        (request.progress)("starting".to_owned());
        let mut env = base.env;
        env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
        env.extend(spec.env.clone());
        let boot = BootConfig {
            sandbox_id: request.id.to_string(),
            token: Some(request.token.to_owned()),
            env,
            entrypoint: spec.argv(),
            cwd: base.cwd,
            user: None,
            grace_ms: millis(self.settings.grace),
        };
        let boot = memory_file(&boot)?;
        let user_mode = self.capabilities.mode == "user";
        let plan = Plan {
            id: request.id.clone(),
            layers: base.layers,
            host_programs: base.host_programs,
            user: base.user,
            limits: PlanLimits {
                cpu_millis: spec.limits.cpu_millis,
                memory_bytes: spec.limits.memory_bytes.or((!user_mode).then_some(DEFAULT_MEMORY_BYTES)),
                pids: spec.limits.pids.or(Some(DEFAULT_PIDS)),
                disk_bytes: spec.limits.disk_bytes,
                disk_inodes: spec.limits.disk_inodes,
            },
            leased: self.settings.lease.is_some(),
            start_deadline_ms: millis(START_DEADLINE),
            grace_ms: millis(self.settings.grace),
        };
        let mut fds = vec![boot.as_fd()];
        fds.extend(self.settings.lease.as_ref().map(AsFd::as_fd));
        match self.jailer.ask(&Request::Create(Box::new(plan)), &fds, START_DEADLINE + MARGIN).await?.0 {
            Reply::Created { receipt } => Ok(Created { receipt: *receipt }),
            other => Err(unexpected(&other)),
        }
    }

    async fn set(&self, request: Request) -> std::result::Result<(), RuntimeError> {
        match self.ask(request, Duration::ZERO).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other).into()),
        }
    }
}

/// What an image gives a sandbox.
#[derive(Default)]
struct Base {
    layers: Vec<String>,
    host_programs: bool,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    user: Option<String>,
}

impl Runtime for NativeRuntime {
    fn name(&self) -> &'static str {
        "native"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn create<'a>(&'a self, request: Create<'a>) -> BoxFuture<'a, std::result::Result<Created, RuntimeError>> {
        Box::pin(async move { Ok(self.make(request).await?) })
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId, grace: Duration) -> BoxFuture<'a, std::result::Result<(), RuntimeError>> {
        let request = Request::Destroy { id: id.clone(), grace_ms: millis(grace) };
        Box::pin(async move {
            match self.ask(request, grace).await? {
                Reply::Done => Ok(()),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn observe<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, std::result::Result<Observed, RuntimeError>> {
        Box::pin(async move {
            match self.ask(Request::Inspect { id: id.clone() }, Duration::ZERO).await? {
                Reply::Observed { observed } => Ok(observed.into()),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, std::result::Result<Vec<SandboxId>, RuntimeError>> {
        Box::pin(async move {
            match self.ask(Request::List, Duration::ZERO).await? {
                Reply::Listed { ids } => Ok(ids),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn next_end(&self) -> BoxFuture<'_, SandboxId> {
        Box::pin(async move {
            let mut ends = self.ends.lock().await;
            loop {
                if let Some(id) = ends.found.pop_front() {
                    return id;
                }
                if let Err(error) = ends.wait().await {
                    // Callers also look periodically; this only loses the hint.
                    tracing::error!(error = %error, "cannot watch exit records");
                    std::future::pending::<()>().await;
                }
            }
        })
    }

    fn execd(&self, id: &SandboxId) -> ExecdAddress {
        ExecdAddress::Unix(self.paths.socket(id))
    }

    fn console<'a>(&'a self, id: &'a SandboxId, max_bytes: usize) -> BoxFuture<'a, std::result::Result<Vec<u8>, RuntimeError>> {
        Box::pin(async move {
            let request = Request::Console { id: id.clone(), max_bytes: max_bytes as u64 };
            let (reply, memory) = self.jailer.ask(&request, &[], MARGIN).await?;
            let (Reply::Console, Some(memory)) = (&reply, memory) else { return Err(unexpected(&reply).into()) };
            let mut text = Vec::new();
            let mut file = File::from(memory);
            file.rewind()
                .and_then(|()| file.take(max_bytes as u64).read_to_end(&mut text))
                .map_err(|error| RuntimeError::new(ErrorKind::Internal, format!("read the console: {error}")))?;
            Ok(text)
        })
    }

    fn pause(&self) -> Option<&dyn Pause> {
        self.capabilities.pause.then_some(self as &dyn Pause)
    }
}

impl Pause for NativeRuntime {
    fn pause<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, std::result::Result<(), RuntimeError>> {
        Box::pin(self.set(Request::Pause { id: id.clone() }))
    }

    fn resume<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, std::result::Result<(), RuntimeError>> {
        Box::pin(self.set(Request::Resume { id: id.clone() }))
    }
}

impl Ends {
    /// Waits for at least one event and takes in what there is.
    async fn wait(&mut self) -> std::io::Result<()> {
        let mut ready = self.watch.readable().await?;
        let mut space = [std::mem::MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = inotify::Reader::new(ready.get_inner(), &mut space);
        loop {
            match reader.next() {
                Ok(event) => {
                    let id = event.file_name().and_then(|name| SandboxId::parse(name.to_str().ok()?));
                    self.found.extend(id);
                    if reader.is_buffer_empty() && !self.found.is_empty() {
                        return Ok(());
                    }
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}

fn watch(paths: &Paths) -> Result<AsyncFd<OwnedFd>> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).op("watch exit records")?;
    // A record is complete when it gets its name.
    inotify::add_watch(&watch, paths.exits(), inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CREATE)
        .op(format!("watch {}", paths.exits().display()))?;
    crate::sys::watched(watch).map_err(|error| Failure::internal(format!("watch exit records: {error}")))
}

/// Unpacks layers by the jailer's confined child.
struct JailerUnpack(Arc<JailerClient>);

impl JailerUnpack {
    async fn ask(&self, request: Request, blob: Option<&File>) -> std::result::Result<Reply, UnpackError> {
        let fds: Vec<_> = blob.into_iter().map(AsFd::as_fd).collect();
        let answer = self.0.ask(&request, &fds, UNPACK_DEADLINE).await;
        answer.map(|(reply, _)| reply).map_err(|failure| UnpackError::Process { reason: failure.message })
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = std::result::Result<T, UnpackError>> + Send + 'a>>;

impl Unpack for JailerUnpack {
    fn unpack<'a>(&'a self, blob: File, layer: &'a LayerId, compression: Compression) -> Answer<'a, LayerStats> {
        let compression = match compression {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        let request = Request::Unpack { layer: layer.as_str().to_owned(), compression: compression.to_owned() };
        Box::pin(async move {
            match self.ask(request, Some(&blob)).await? {
                Reply::Unpacked { entries, bytes } => Ok(LayerStats { entries, bytes, ..LayerStats::default() }),
                other => Err(UnpackError::Process { reason: unexpected(&other).message }),
            }
        })
    }

    fn has<'a>(&'a self, layer: &'a LayerId) -> Answer<'a, bool> {
        Box::pin(async move {
            match self.ask(Request::HasLayer { layer: layer.as_str().to_owned() }, None).await? {
                Reply::Has { present } => Ok(present),
                other => Err(UnpackError::Process { reason: unexpected(&other).message }),
            }
        })
    }

    fn remove<'a>(&'a self, layer: &'a LayerId) -> Answer<'a, ()> {
        Box::pin(async move {
            match self.ask(Request::RemoveLayer { layer: layer.as_str().to_owned() }, None).await? {
                Reply::Done => Ok(()),
                other => Err(UnpackError::Process { reason: unexpected(&other).message }),
            }
        })
    }
}

/// A boot configuration as execd reads it: memory that never had a name on a disk, since it holds the token.
fn memory_file(boot: &BootConfig) -> Result<OwnedFd> {
    let text = serde_json::to_vec(boot).map_err(|error| Failure::internal(format!("write the boot configuration: {error}")))?;
    let mut file = File::from(rustix::fs::memfd_create("boot", MemfdFlags::CLOEXEC).op("make memory for the boot configuration")?);
    file.write_all(&text).and_then(|()| file.rewind()).op("write the boot configuration")?;
    Ok(file.into())
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::internal(format!("the jailer gave an answer of another kind: {reply:?}"))
}

/// An error and its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.ends_with(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}
