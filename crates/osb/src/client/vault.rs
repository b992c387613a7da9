//! The credential vault of a sandbox.

use protocol::vault::State;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder};
use secrecy::{ExposeSecret as _, SecretString};

use super::{Client, Patience, header_map};
use crate::failure::Failure;

/// The port of a sandbox's network policy and vault (published).
const POLICY_PORT: u16 = 18080;

impl Client {
    /// What a vault holds; no value is told. `None` where there is none.
    pub async fn vault(&self, id: &str) -> Result<Option<State>, Failure> {
        let request = self.vault_request(id, Method::GET).await?;
        match self.json(request, Patience::Usual).await {
            Ok(state) => Ok(Some(state)),
            Err(failure) if failure.code == protocol::error::code::VAULT_NOT_FOUND => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Makes a vault.
    pub async fn create_vault(&self, id: &str, request: &SecretString) -> Result<State, Failure> {
        self.write_vault(id, Method::POST, request).await
    }

    /// Changes a vault.
    pub async fn patch_vault(&self, id: &str, request: &SecretString) -> Result<State, Failure> {
        self.write_vault(id, Method::PATCH, request).await
    }

    /// Deletes a vault.
    pub async fn delete_vault(&self, id: &str) -> Result<(), Failure> {
        let request = self.vault_request(id, Method::DELETE).await?;
        self.send(request, Patience::Usual).await.map(drop)
    }

    async fn write_vault(&self, id: &str, method: Method, body: &SecretString) -> Result<State, Failure> {
        let request = self.vault_request(id, method).await?.header(CONTENT_TYPE, "application/json");
        self.json(request.body(body.expose_secret().to_owned()), Patience::Usual).await
    }

    async fn vault_request(&self, id: &str, method: Method) -> Result<RequestBuilder, Failure> {
        let endpoint = self.endpoint(id, POLICY_PORT).await?;
        let mut headers = header_map(endpoint.headers.unwrap_or_default())?;
        if self.server_proxy
            && let Some(key) = &self.key
        {
            headers.insert(protocol::headers::API_KEY, key.clone());
        }
        let url = format!("{}/credential-vault", self.with_scheme(&endpoint.endpoint));
        Ok(self.http.request(method, url).headers(headers))
    }
}
