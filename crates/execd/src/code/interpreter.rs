//! What runs a context's cells: a driver of ours, a Jupyter kernel, or a kernel of a Jupyter server.

use std::rc::Rc;
use std::time::Duration;

use super::context::Setup;
use super::kernel::{Kernel, Spec};
use super::language::Language;
use super::notebook::{Notebook, Offer};
use super::talk::{Happening, Talk};
use crate::daemon::Daemon;
use crate::error::{ApiError, Result};

/// An interpreter of ours that is not ready after this long is given up.
const DRIVER_START: Duration = Duration::from_secs(30);
/// A kernel may have a virtual machine to start.
const KERNEL_START: Duration = Duration::from_secs(60);

/// What can run a language here.
#[derive(Clone)]
pub enum Runner {
    /// A program of the image, with a driver of ours.
    Driver(Language),
    /// An installed kernel.
    Kernel(Rc<Spec>),
    /// A kernel of the configured Jupyter server.
    Notebook(Offer),
}

impl Runner {
    /// What runs the language of this name in this sandbox.
    ///
    /// # Errors
    /// 400 that says what is missing.
    pub async fn find(daemon: &Rc<Daemon>, name: &str) -> Result<Self> {
        if let Some(origin) = daemon.contexts.jupyter().filter(|_| name != Language::Sql.name()) {
            let origin = origin.as_ref().map_err(|why| ApiError::runtime(why.clone()))?;
            if let Some(offer) = Offer::find(origin, name).await? {
                return Ok(Self::Notebook(offer));
            }
        }
        match Language::named(name) {
            Some(language) => language.check(daemon).map(|()| Self::Driver(language)),
            None => Spec::find(daemon, name).await.map(|spec| Self::Kernel(Rc::new(spec))),
        }
    }

    /// The language, as clients name it.
    pub fn name(&self) -> &str {
        match self {
            Self::Driver(language) => language.name(),
            Self::Kernel(spec) => &spec.language,
            Self::Notebook(offer) => &offer.language,
        }
    }

    /// Whether an interpreter of it can be held to a bound of memory.
    pub fn bounds_memory(&self) -> bool {
        matches!(self, Self::Driver(_))
    }

    /// Time in which its interpreter must be ready.
    pub fn start_limit(&self) -> Duration {
        match self {
            Self::Driver(_) => DRIVER_START,
            Self::Kernel(_) | Self::Notebook(_) => KERNEL_START,
        }
    }

    /// Starts an interpreter; it says [`super::lines::Line::Ready`] when it is.
    ///
    /// # Errors
    /// Why it cannot be started, to follow its name.
    pub async fn start(&self, daemon: &Rc<Daemon>, setup: &Setup) -> std::result::Result<Interpreter, String> {
        match self {
            Self::Driver(language) => {
                let talk = Talk::start(daemon, *language, &setup.directory, setup.memory_bytes);
                talk.map(|talk| Interpreter::Driver(Box::new(talk))).map_err(|why| format!("cannot be started: {why}"))
            }
            Self::Kernel(spec) => {
                let kernel = Kernel::start(daemon, spec, &setup.directory).await;
                kernel.map(|kernel| Interpreter::Kernel(Box::new(kernel)))
            }
            Self::Notebook(offer) => {
                let notebook = Notebook::start(offer, &setup.directory).await;
                notebook.map(|notebook| Interpreter::Notebook(Box::new(notebook)))
            }
        }
    }
}

/// A living interpreter.
pub enum Interpreter {
    /// With a driver of ours.
    Driver(Box<Talk>),
    /// A kernel that execd started.
    Kernel(Box<Kernel>),
    /// A kernel that a Jupyter server started.
    Notebook(Box<Notebook>),
}

impl Interpreter {
    /// Sends a cell; it must have answered all before.
    pub async fn say(&mut self, code: &str) {
        match self {
            Self::Driver(talk) => talk.say(code),
            Self::Kernel(kernel) => kernel.say(code).await,
            Self::Notebook(notebook) => notebook.say(code).await,
        }
    }

    /// Interrupts what it runs.
    pub fn interrupt(&self) {
        match self {
            Self::Driver(talk) => talk.interrupt(),
            Self::Kernel(kernel) => kernel.interrupt(),
            Self::Notebook(notebook) => notebook.interrupt(),
        }
    }

    /// Whether its process has ended, as far as that can be seen from here; [`Happening::Died`] follows then.
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Driver(talk) => talk.has_ended(),
            Self::Kernel(kernel) => kernel.has_ended(),
            Self::Notebook(_) => false,
        }
    }

    /// Kills it; [`Happening::Died`] follows.
    pub fn kill(&self) {
        match self {
            Self::Driver(talk) => talk.kill(),
            Self::Kernel(kernel) => kernel.kill(),
            Self::Notebook(notebook) => notebook.kill(),
        }
    }

    /// Kills it with everything that it started, and waits for that.
    pub async fn end(self) {
        match self {
            Self::Driver(talk) => talk.end().await,
            Self::Kernel(kernel) => kernel.end().await,
            Self::Notebook(notebook) => notebook.end().await,
        }
    }

    /// The next thing that happens. It may be given up at any time: nothing is lost then.
    pub async fn next(&mut self) -> Happening {
        match self {
            Self::Driver(talk) => talk.next().await,
            Self::Kernel(kernel) => kernel.next().await,
            Self::Notebook(notebook) => notebook.next().await,
        }
    }
}
