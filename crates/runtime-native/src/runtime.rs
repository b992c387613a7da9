//! [`NativeRuntime`]: the [`Runtime`] of this machine, as the server sees it.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lifecycle::runtime::{
    BoxFuture, Capabilities, Create, Created, ErrorKind, ExecdAddress, Listeners, Observed, Pause, Runtime,
    RuntimeError,
};
use lifecycle::spec::{HOST_IMAGE, Network, SandboxId};
use protocol::execd::boot::BootConfig;
use protocol::hooks::DEFAULT_TIMEOUT_SECONDS;
use tokio::sync::{Mutex, mpsc};

use crate::client::{Client, Steered};
use crate::error::{Failure, Kind, Result};
use crate::exits;
use crate::gvisor;
use crate::paths::Paths;
use crate::trust::{self, Authority};
use crate::unpacker::JailerUnpack;
use crate::user::memory_file;
use crate::wire::{Kernel, Plan, PlanLimits, Reply, Request};

mod network;
mod sessions;
mod snapshots;
mod volumes;
mod warm;

/// Longest wait for an answer that needs no waiting for a sandbox.
const QUICK_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for execd inside a new sandbox.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// What a create may take beyond that: making a disk of an unusual size, undoing what failed.
const CREATE_MARGIN: Duration = Duration::from_secs(60);
/// How often a create is asked for again that found its directory going: what a killed worker left is undone while
/// the next one begins. Who wants no sandbox any more drops the call.
const UNDONE_ATTEMPTS: u32 = 3;
/// What a destroy may take beyond the grace: thousands of processes on a loaded machine.
const DESTROY_MARGIN: Duration = Duration::from_secs(60);
/// How long the host image's layer is taken for granted; an upgrade of the machine changes it.
const HOST_IMAGE_AGE: Duration = Duration::from_secs(60);
/// Processes of a sandbox when the request names no number: real work fits, a fork bomb stays small.
const DEFAULT_PIDS: u64 = 4096;
/// Search path where the image has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the server tells its runtime.
pub struct Settings {
    /// The jailer's data directory.
    pub data_dir: PathBuf,
    /// Where blobs and references of images are kept.
    pub images_dir: PathBuf,
    /// Registries that speak plain HTTP, beside loopback.
    pub plain_http_hosts: Vec<String>,
    /// Time between TERM and KILL where the sandbox ends by itself or with its lease.
    pub grace: Duration,
    /// Read end of a pipe whose write end the engine holds; leased sandboxes end when that closes.
    pub lease: Option<OwnedFd>,
}

/// Sandboxes on this machine.
pub struct NativeRuntime {
    client: Client,
    paths: Paths,
    images: image::Store,
    settings: Settings,
    capabilities: Capabilities,
    /// What can be done about isolated sessions.
    sessions: lifecycle::isolated::Means,
    ends: Mutex<mpsc::Receiver<SandboxId>>,
    host: Mutex<Option<(Instant, HostLayer)>>,
    /// Sandboxes that nobody has yet.
    waiting: warm::Waiting,
}

/// What the host image is at the moment.
#[derive(Clone)]
struct HostLayer {
    layer: String,
    env: Vec<(String, String)>,
    working_dir: Option<String>,
}

/// What an image means for a plan.
struct Stand {
    layers: Vec<String>,
    host_programs: bool,
    env: Vec<(String, String)>,
    working_dir: Option<String>,
    user: Option<String>,
}

impl NativeRuntime {
    /// Asks the jailer what it can do, opens the image store and begins to watch for ends. The client can be given
    /// another jailer at any time, also while this waits for one.
    ///
    /// # Errors
    /// When no jailer answers or a directory cannot be used.
    pub async fn connect(client: Client, settings: Settings) -> Result<Self> {
        let (capabilities, sessions) = match client.ask(&Request::Probe, &[], QUICK_DEADLINE).await?.0 {
            Reply::Probed(probe) => (probe.capabilities, probe.sessions),
            other => return Err(unexpected(&other)),
        };
        let paths = Paths::new(&settings.data_dir);
        let ends = exits::watch(&paths.exits())?;
        let unpacker = Arc::new(JailerUnpack::new(client.clone()));
        let images = image::Store::open(&settings.images_dir, unpacker).await;
        let images = images
            .map_err(|error| Failure::internal(format!("open the image store: {}", protocol::error::chain(&error))))?;
        let host = Mutex::new(None);
        Ok(Self {
            client,
            paths,
            images,
            settings,
            capabilities,
            sessions,
            ends: Mutex::new(ends),
            host,
            waiting: warm::Waiting::default(),
        })
    }

    /// The image store that sandboxes are made from.
    pub fn images(&self) -> &image::Store {
        &self.images
    }

    async fn ask(
        &self,
        request: &Request,
        deadline: Duration,
    ) -> std::result::Result<(Reply, Vec<OwnedFd>), RuntimeError> {
        Ok(self.client.ask(request, &[], deadline).await?)
    }

    async fn make(&self, request: Create<'_>) -> std::result::Result<Created, RuntimeError> {
        let (plan, boot) = self.plan(&request).await?;
        let text = serde_json::to_vec(&boot).map_err(|_| Failure::internal("encode the boot configuration"))?;
        let boot = memory_file("boot", &text)?;
        let (id, is_steered) = (request.id, plan.network != Network::None);
        let deadline = Duration::from_millis(plan.start_deadline_ms) + CREATE_MARGIN;
        let was_steered = AtomicBool::new(false);
        let steered = |sockets| {
            // Others than four mean nothing; the sockets are made anew then.
            if let Ok(sockets) = <[OwnedFd; 4]>::try_from(sockets) {
                was_steered.store(true, Ordering::Relaxed);
                (request.listening)(Listeners::from(sockets));
            }
        };
        let answer = match self.claim(&plan, boot.as_fd(), deadline, &steered).await? {
            Some(answer) => answer,
            None => self.make_anew(plan, boot.as_fd(), deadline, &steered).await?,
        };
        match answer {
            (Reply::Created { receipt }, _) => {
                let listeners = match is_steered && !was_steered.load(Ordering::Relaxed) {
                    true => self.listen_again(id).await?,
                    false => None,
                };
                Ok(Created { receipt: *receipt, listeners })
            }
            (other, _) => Err(unexpected(&other).into()),
        }
    }

    async fn make_anew(
        &self,
        plan: Plan,
        boot: BorrowedFd<'_>,
        deadline: Duration,
        steered: Steered<'_>,
    ) -> std::result::Result<(Reply, Vec<OwnedFd>), RuntimeError> {
        let mut fds = vec![boot];
        if plan.leased {
            let lease = self.settings.lease.as_ref();
            fds.push(lease.ok_or_else(|| Failure::internal("a leased sandbox needs an engine with a lease"))?.as_fd());
        }
        let request = Request::Create(Box::new(plan));
        let until = Instant::now() + deadline;
        let mut attempts = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.client.ask_hearing(&request, &fds, left, steered).await {
                Err(failure) if failure.kind == Kind::NotFound && attempts < UNDONE_ATTEMPTS => attempts += 1,
                answer => return Ok(answer?),
            }
        }
    }

    /// What a create means for the jailer and for execd.
    async fn plan(&self, request: &Create<'_>) -> std::result::Result<(Plan, BootConfig), RuntimeError> {
        let spec = request.spec;
        let limits = self.limits(&spec.limits)?;
        let is_steered = spec.network != Network::None;
        if is_steered && self.network().is_none() {
            let message = "networkPolicy: this machine cannot give a sandbox a way out; the kernel needs nf_tables with \
                           tproxy and reject, and IPv6";
            return Err(RuntimeError::new(ErrorKind::Unsupported, message));
        }
        let stand = match &spec.origin {
            Some(origin) => self.restored(origin).await?,
            None if spec.image == HOST_IMAGE => self.host_image().await?,
            None => self.image(request).await?,
        };
        let mut env: BTreeMap<String, String> = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
        env.extend(stand.env.clone());
        env.extend(spec.env.clone());
        let authority = request.authority.map(|pem| {
            let java_home = env.get("JAVA_HOME").filter(|path| path.len() <= trust::MAX_JAVA_HOME_BYTES).cloned();
            // Also over what the caller asked for: these files hold the image's roots as well.
            env.extend(trust::ENVIRONMENT.map(|(name, path)| (name.to_owned(), path.to_owned())));
            Authority { pem: pem.to_owned(), java_home }
        });
        let grace_ms = self.settings.grace.as_millis() as u64;
        let boot = BootConfig {
            sandbox_id: request.id.to_string(),
            token: Some(request.token.to_owned()),
            env,
            entrypoint: spec.argv(),
            cwd: stand.working_dir.clone(),
            user: None,
            grace_ms,
            hooks: spec.hooks.clone(),
            isolated: None,
        };
        let hook_seconds =
            spec.hooks.pre_start.as_ref().map(|hook| hook.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS));
        let start_deadline = START_DEADLINE + Duration::from_secs(hook_seconds.unwrap_or(0).into());
        let plan = Plan {
            id: request.id.clone(),
            layers: stand.layers,
            host_programs: stand.host_programs,
            user: stand.user,
            working_dir: stand.working_dir,
            limits,
            kernel: self.kernel(),
            network: spec.network.clone(),
            authority,
            volumes: spec.volumes.clone(),
            image_env: stand.env,
            leased: spec.leased,
            start_deadline_ms: start_deadline.as_millis() as u64,
            grace_ms,
        };
        Ok((plan, boot))
    }

    /// On which kernel sandboxes run.
    fn kernel(&self) -> Kernel {
        if self.capabilities.isolation.kind == gvisor::NAME { Kernel::Gvisor } else { Kernel::Host }
    }

    /// The limits to enforce; refuses what this machine cannot enforce, by the field's name.
    fn limits(&self, asked: &lifecycle::spec::Limits) -> std::result::Result<PlanLimits, RuntimeError> {
        let means = |name: &str| self.capabilities.limits.get(name).map_or("none", String::as_str);
        let rows = [
            ("cpu", asked.cpu_millis),
            ("memory", asked.memory_bytes),
            ("pids", asked.pids),
            ("disk", asked.disk_bytes),
            ("inodes", asked.disk_inodes),
        ];
        for (name, value) in rows {
            if value.is_some() && means(name) == "none" {
                let message =
                    format!("resourceLimits.{name}: this machine cannot enforce it; `osb doctor` says what is missing");
                return Err(RuntimeError::new(ErrorKind::Unsupported, message));
            }
        }
        if !self.capabilities.fractional_cpu && asked.cpu_millis.is_some_and(|millis| millis % 1000 != 0) {
            let message = "resourceLimits.cpu: only whole cores can be enforced here; ask for 1, 2, ... or run as root";
            return Err(RuntimeError::new(ErrorKind::Unsupported, message));
        }
        Ok(PlanLimits {
            cpu_millis: asked.cpu_millis,
            memory_bytes: asked.memory_bytes,
            pids: asked.pids.or_else(|| means("pids").starts_with("cgroup").then_some(DEFAULT_PIDS)),
            disk_bytes: asked.disk_bytes,
            disk_inodes: asked.disk_inodes,
        })
    }

    async fn host_image(&self) -> std::result::Result<Stand, RuntimeError> {
        let mut known = self.host.lock().await;
        let fresh = known.as_ref().filter(|(asked, _)| asked.elapsed() < HOST_IMAGE_AGE).map(|(_, host)| host.clone());
        let host = match fresh {
            Some(host) => host,
            None => match self.ask(&Request::HostImage, QUICK_DEADLINE).await?.0 {
                Reply::Host { layer, env, working_dir } => {
                    let host = HostLayer { layer, env, working_dir };
                    *known = Some((Instant::now(), host.clone()));
                    host
                }
                other => return Err(unexpected(&other).into()),
            },
        };
        Ok(Stand {
            layers: vec![host.layer],
            host_programs: true,
            env: host.env,
            working_dir: host.working_dir,
            user: None,
        })
    }

    async fn image(&self, request: &Create<'_>) -> std::result::Result<Stand, RuntimeError> {
        let unusable = |message: String| RuntimeError::new(ErrorKind::Image, message);
        let platform =
            request.spec.platform.as_ref().map(|platform| format!("{}/{}", platform.os, platform.arch).parse());
        let platform = platform.transpose().map_err(|error| unusable(format!("platform: {error}")))?;
        let credentials = request.pull_auth.as_ref().map(|login| image::Credentials {
            username: login.username.clone(),
            password: login.password.clone().into(),
        });
        let options =
            image::EnsureOptions { credentials, platform, plain_http_hosts: self.settings.plain_http_hosts.clone() };
        let progress = |progress: image::Progress| (request.progress)(progress.to_string());
        let image = self.images.ensure(&request.spec.image, options, &progress).await;
        let image = image.map_err(|error| unusable(protocol::error::chain(&error)))?;
        Ok(Stand {
            layers: image.layers.iter().map(|layer| layer.as_str().to_owned()).collect(),
            host_programs: false,
            env: image.config.env,
            working_dir: image.config.working_dir,
            user: image.config.user.filter(|user| !matches!(user.as_str(), "" | "0" | "root" | "0:0" | "root:root")),
        })
    }
}

impl Runtime for NativeRuntime {
    fn name(&self) -> &'static str {
        "native"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn create<'a>(&'a self, request: Create<'a>) -> BoxFuture<'a, std::result::Result<Created, RuntimeError>> {
        Box::pin(self.make(request))
    }

    fn destroy<'a>(
        &'a self,
        id: &'a SandboxId,
        grace: Duration,
    ) -> BoxFuture<'a, std::result::Result<(), RuntimeError>> {
        Box::pin(async move {
            self.forget_waiting(id);
            let request = Request::Destroy { id: id.clone(), grace_ms: grace.as_millis() as u64 };
            done(self.ask(&request, grace + DESTROY_MARGIN).await?.0)
        })
    }

    fn observe<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, std::result::Result<Observed, RuntimeError>> {
        Box::pin(async move {
            let deadline = START_DEADLINE + CREATE_MARGIN;
            match self.ask(&Request::Inspect { id: id.clone() }, deadline).await?.0 {
                Reply::Observed { observed } => Ok(observed.into()),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, std::result::Result<Vec<SandboxId>, RuntimeError>> {
        Box::pin(async move {
            match self.ask(&Request::List, QUICK_DEADLINE).await?.0 {
                Reply::Listed { ids } => Ok(ids),
                other => Err(unexpected(&other).into()),
            }
        })
    }

    fn next_end(&self) -> BoxFuture<'_, SandboxId> {
        Box::pin(async move {
            match self.ends.lock().await.recv().await {
                Some(id) => id,
                // The watch failed and said so in the log; callers observe periodically as well.
                None => std::future::pending().await,
            }
        })
    }

    fn execd(&self, id: &SandboxId) -> ExecdAddress {
        ExecdAddress::Unix(self.paths.socket(id))
    }

    fn console<'a>(
        &'a self,
        id: &'a SandboxId,
        max_bytes: usize,
    ) -> BoxFuture<'a, std::result::Result<Vec<u8>, RuntimeError>> {
        Box::pin(async move {
            let request = Request::Console { id: id.clone(), max_bytes: max_bytes as u64 };
            let (reply, fds) = self.ask(&request, QUICK_DEADLINE).await?;
            let (Reply::Console, Some(memory)) = (&reply, fds.into_iter().next()) else {
                return Err(unexpected(&reply).into());
            };
            let mut text = Vec::new();
            let read = std::fs::File::from(memory).take(max_bytes as u64).read_to_end(&mut text);
            read.map_err(|error| Failure::internal(format!("read the console: {error}")))?;
            Ok(text)
        })
    }

    fn pause(&self) -> Option<&dyn Pause> {
        self.capabilities.pause.then_some(self)
    }

    fn isolated(&self) -> Option<&dyn lifecycle::isolated::Isolated> {
        // They are mounts and namespaces of the machine's kernel, which is not the one that programs have there.
        (self.kernel() == Kernel::Host).then_some(self as _)
    }

    fn sockets(&self) -> Option<&dyn lifecycle::runtime::Sockets> {
        Some(self)
    }

    fn volumes(&self) -> Option<&dyn lifecycle::runtime::Volumes> {
        Some(self)
    }

    fn warm(&self) -> Option<&dyn lifecycle::warm::Warm> {
        // A kernel in user space is started with what it is told, and told nothing later.
        (self.kernel() == Kernel::Host).then_some(self as _)
    }

    fn snapshots(&self) -> Option<&dyn lifecycle::snapshot::Snapshots> {
        self.capabilities.snapshots.then_some(self)
    }

    fn network(&self) -> Option<&dyn lifecycle::runtime::Network> {
        (self.capabilities.network == "egress").then_some(self)
    }
}

impl Pause for NativeRuntime {
    fn pause<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, std::result::Result<(), RuntimeError>> {
        Box::pin(async move { done(self.ask(&Request::Pause { id: id.clone() }, QUICK_DEADLINE).await?.0) })
    }

    fn resume<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, std::result::Result<(), RuntimeError>> {
        Box::pin(async move { done(self.ask(&Request::Resume { id: id.clone() }, QUICK_DEADLINE).await?.0) })
    }
}

fn done(reply: Reply) -> std::result::Result<(), RuntimeError> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other).into()),
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::internal(format!("the jailer gave an answer to another question: {reply:?}"))
}
