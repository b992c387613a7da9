//! The pools of a server.

use protocol::lifecycle::{CreatePoolRequest, ListPoolsResponse, PoolResponse, UpdatePoolRequest};
use reqwest::Method;

use super::{Client, Patience, segment};
use crate::failure::Failure;

impl Client {
    /// Every pool.
    pub async fn pools(&self) -> Result<Vec<PoolResponse>, Failure> {
        let list: ListPoolsResponse = self.json(self.request(Method::GET, "/pools"), Patience::Usual).await?;
        Ok(list.items)
    }

    /// One pool.
    pub async fn pool(&self, name: &str) -> Result<PoolResponse, Failure> {
        self.json(self.request(Method::GET, &path(name)), Patience::Usual).await
    }

    /// Makes a pool; its sandboxes follow.
    pub async fn create_pool(&self, request: &CreatePoolRequest) -> Result<PoolResponse, Failure> {
        self.json(self.request(Method::POST, "/pools").json(request), Patience::Usual).await
    }

    /// Changes how many sandboxes a pool keeps.
    pub async fn update_pool(&self, name: &str, request: &UpdatePoolRequest) -> Result<PoolResponse, Failure> {
        self.json(self.request(Method::PUT, &path(name)).json(request), Patience::Usual).await
    }

    /// Removes a pool and what waits in it.
    pub async fn remove_pool(&self, name: &str) -> Result<(), Failure> {
        self.send(self.request(Method::DELETE, &path(name)), Patience::Usual).await.map(drop)
    }
}

fn path(name: &str) -> String {
    format!("/pools/{}", segment(name))
}
