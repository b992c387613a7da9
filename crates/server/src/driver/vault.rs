//! Changes of a sandbox's credential vault. What holds is what the egress process has sealed; the row follows it.

use egress::{ControlError, Failure, Refusal, Shown};
use lifecycle::state::State;
use protocol::error::code;

use super::Driver;
use crate::errors::ApiError;
use crate::network::{Credentials, VaultChange, vault_error};

impl Driver {
    /// Changes the vault. Hosts that it will bind are stored before, those that it does bind afterwards: whoever dies
    /// meanwhile, no host that is bound is forgotten.
    pub(super) async fn change_vault(&mut self, change: &VaultChange) -> Result<Option<Shown>, ApiError> {
        let Some(before) = self.row.credentials.clone().filter(|_| self.row.spec.credential_proxy) else {
            return Err(vault_error(
                Failure::Vault { refusal: Refusal::Absent, message: "credential vault not found".to_owned() }.into(),
            ));
        };
        if !matches!(self.row.state, State::Running | State::Paused) {
            let message = format!("the sandbox is {}; its vault cannot be changed now", self.row.state);
            return Err(ApiError::conflict(code::INVALID_STATE, message));
        }
        let ahead = before.before(change);
        self.remember(ahead.clone()).await?;
        let (app, id) = (self.app.clone(), self.row.id.clone());
        let changed = app.network.change_vault(&app, &id, &self.row.spec, &ahead, change).await;
        let after = match &changed {
            Ok(shown) => ahead.after(shown.as_ref()),
            Err(ControlError::Failed(Failure::Vault { .. })) => before,
            // It may have been changed all the same; that is found out later.
            Err(_) => ahead,
        };
        if let Ok(shown) = &changed {
            let (revision, hosts) = (after.revision, after.bound.len());
            tracing::info!(sandbox_id = %id, revision, hosts, "credential vault changed");
            for warning in shown.iter().flat_map(|shown| &shown.warnings) {
                tracing::warn!(sandbox_id = %id, warning, "credential vault");
            }
        }
        if let Err(error) = self.remember(after).await {
            // The vault is as it was asked to be; what is stored of it is in doubt, and asked for later.
            tracing::warn!(sandbox_id = %id, error = error.message, "what a vault holds could not be stored");
        }
        changed.map_err(vault_error)
    }

    /// Finds out what the vault holds where that is in doubt.
    pub(super) async fn look_at_vault(&mut self) {
        let Some(credentials) = self.row.credentials.clone() else { return };
        let after = match self.app.network.vault(&self.row.id).await {
            Ok(shown) => credentials.after(Some(&shown)),
            Err(ControlError::Failed(Failure::Vault { refusal: Refusal::Absent, .. })) => credentials.after(None),
            // Lost, or nobody says: what was bound stays bound.
            Err(_) => return,
        };
        if let Err(error) = self.remember(after).await {
            tracing::warn!(sandbox_id = %self.row.id, error = error.message, "what a vault holds could not be stored");
        }
    }

    async fn remember(&mut self, credentials: Credentials) -> Result<(), ApiError> {
        if self.row.credentials.as_ref() == Some(&credentials) {
            return Ok(());
        }
        self.app.store.set_credentials(&self.row.id, &credentials).await?;
        self.row.credentials = Some(credentials);
        self.show();
        Ok(())
    }
}
