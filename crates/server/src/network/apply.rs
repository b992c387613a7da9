//! Puts one sandbox's network in force, changes it, takes it away.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use egress::{Beside, ControlError, Failure};
use lifecycle::runtime::Listeners;
use lifecycle::spec::{Network as Shape, SandboxId, SandboxSpec};

use super::{Credentials, Network};
use crate::app::App;

impl Network {
    /// Has a sandbox that was just made served. `listeners` are missing where an earlier try took them.
    ///
    /// # Errors
    /// Why nobody serves it.
    pub(crate) async fn serve(
        &self,
        app: &App,
        id: &SandboxId,
        spec: &SandboxSpec,
        credentials: Option<&Credentials>,
        listeners: Option<Listeners>,
    ) -> Result<(), String> {
        if spec.network == Shape::None {
            return Ok(());
        }
        if let Some(listeners) = listeners {
            let listeners = egress::Listeners::from_array(listeners.into_array());
            self.held().insert(id.clone(), Arc::new(listeners));
        }
        self.attach(app, id, spec, credentials).await
    }

    /// Attaches a sandbox to the egress process, with the sockets that are held here, there, or made anew.
    pub(crate) async fn attach(
        &self,
        app: &App,
        id: &SandboxId,
        spec: &SandboxSpec,
        credentials: Option<&Credentials>,
    ) -> Result<(), String> {
        let control = self.control().ok_or("this server has no egress process")?;
        let held = self.held().get(id).cloned();
        let listeners = match held {
            Some(listeners) => listeners,
            None => {
                let listeners = Arc::new(self.find_listeners(app, id).await?);
                self.held().insert(id.clone(), listeners.clone());
                listeners
            }
        };
        let names = self.names_of(id).map_err(|error| format!("open the sandbox's file of names: {error}"))?;
        let source = self.source(spec.policy.as_ref());
        let expected = credentials.map(Credentials::expected);
        let (revision, names) = (spec.policy_revision, names.as_fd());
        let recording = self.shelf.recording_of(id, &spec.taping, self.config.recording_max_bytes);
        let recording = recording.map_err(|error| format!("open the sandbox's recording: {error}"))?;
        let recording = recording.as_ref().map(|(taping, file)| (*taping, file.as_fd()));
        let beside = Beside { credentials: expected.as_ref(), recording };
        let attached = control.attach(id.as_str(), &listeners, names, revision, &source, beside).await;
        attached.map_err(|error| format!("serve the sandbox's network: {}", protocol::error::chain(&error)))
    }

    async fn find_listeners(&self, app: &App, id: &SandboxId) -> Result<egress::Listeners, String> {
        let control = self.control().ok_or("this server has no egress process")?;
        match control.listeners(id.as_str()).await {
            Ok(listeners) => return Ok(listeners),
            Err(ControlError::Failed(Failure::NotAttached)) => {}
            Err(error) => return Err(protocol::error::chain(&error)),
        }
        let network = app.runtime.network().ok_or("this runtime gives sandboxes no network")?;
        let listeners = network.listen(id).await.map_err(|error| error.message)?;
        Ok(egress::Listeners::from_array(listeners.into_array()))
    }

    /// Puts the policy of this specification in force in a living sandbox: first with the egress process, which cuts the
    /// connections that it forbids, then with the kernel.
    ///
    /// # Errors
    /// Why it is not, or not everywhere.
    pub(crate) async fn put(
        &self,
        app: &App,
        id: &SandboxId,
        spec: &SandboxSpec,
        credentials: Option<&Credentials>,
    ) -> Result<(), String> {
        let Shape::Steered { reachable } = &spec.network else { return Ok(()) };
        let control = self.control().ok_or("this server has no egress process")?;
        let source = self.source(spec.policy.as_ref());
        match control.set_policy(id.as_str(), spec.policy_revision, &source).await {
            Ok(cut) => tracing::info!(sandbox_id = %id, revision = spec.policy_revision, cut, "policy in force"),
            Err(ControlError::Failed(Failure::NotAttached)) => self.attach(app, id, spec, credentials).await?,
            Err(error) => return Err(format!("set the policy: {}", protocol::error::chain(&error))),
        }
        let network = app.runtime.network().ok_or("this runtime gives sandboxes no network")?;
        network.steer(id, reachable).await.map_err(|error| error.message)
    }

    /// Has a sandbox served no more and forgets its names and its credentials.
    pub(crate) async fn end(&self, id: &SandboxId, spec: &SandboxSpec) {
        if spec.network == Shape::None {
            return;
        }
        self.held().remove(id);
        if let Some(control) = self.control()
            && let Err(error) = control.detach(id.as_str()).await
        {
            // A process that is gone serves nobody, and its successor is told of living sandboxes only.
            tracing::debug!(sandbox_id = %id, error = %protocol::error::chain(&error), "not detached");
        }
        if spec.needs_authority()
            && let Some(control) = self.control()
            && let Err(error) = control.forget(id.as_str()).await
        {
            // Its successor is told to forget what no sandbox has.
            tracing::debug!(sandbox_id = %id, error = %protocol::error::chain(&error), "credentials not forgotten yet");
        }
        self.forget_names(id);
    }
}
