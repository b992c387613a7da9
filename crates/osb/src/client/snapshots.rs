//! The snapshots of a server, and forks.

use std::time::Duration;

use protocol::lifecycle::BatchResponse;
use protocol::snapshot::{CreateSnapshotRequest, ForkRequest, ListSnapshotsResponse, Snapshot};
use reqwest::Method;

use super::sandboxes::{path, with_query};
use super::{Client, Patience, segment};
use crate::failure::Failure;

/// Longest wait for a snapshot to be removed, and for a fork, whose source's files are copied first.
const LONG_PATIENCE: Duration = Duration::from_secs(3600);

/// Which snapshots a list shows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this sandbox.
    pub sandbox: Option<String>,
    /// With this name.
    pub name: Option<String>,
    /// Any of these states.
    pub states: Vec<String>,
    /// Page, from 1.
    pub page: Option<u32>,
    /// Snapshots on a page, 1 to 200.
    pub page_size: Option<u32>,
}

impl Client {
    /// Asks for a snapshot of a sandbox; the answer comes before it is taken.
    pub async fn create_snapshot(&self, sandbox: &str, name: Option<&str>) -> Result<Snapshot, Failure> {
        let body = CreateSnapshotRequest { name: name.map(str::to_owned) };
        let request = self.request(Method::POST, &path(sandbox, "/snapshots")).json(&body);
        self.json(request, Patience::Usual).await
    }

    /// One page of snapshots.
    pub async fn snapshots(&self, filter: &Filter) -> Result<ListSnapshotsResponse, Failure> {
        let mut query: Vec<(&str, String)> = filter.states.iter().map(|state| ("state", state.clone())).collect();
        query.extend(filter.sandbox.clone().map(|id| ("sandboxId", id)));
        query.extend(filter.name.clone().map(|name| ("name", name)));
        query.extend(filter.page.map(|page| ("page", page.to_string())));
        query.extend(filter.page_size.map(|size| ("pageSize", size.to_string())));
        self.json(self.request(Method::GET, &with_query("/snapshots", &query)), Patience::Usual).await
    }

    /// One snapshot.
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot, Failure> {
        self.json(self.request(Method::GET, &format!("/snapshots/{}", segment(id))), Patience::Usual).await
    }

    /// Removes a snapshot that no sandbox stands on.
    pub async fn remove_snapshot(&self, id: &str) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, &format!("/snapshots/{}", segment(id)));
        self.send(request, Patience::For(LONG_PATIENCE)).await.map(drop)
    }

    /// Makes sandboxes from the files of one as they are now; the answer comes before they answer.
    pub async fn fork(&self, sandbox: &str, request: &ForkRequest) -> Result<BatchResponse, Failure> {
        let request = self.request(Method::POST, &path(sandbox, "/fork")).json(request);
        self.json(request, Patience::For(LONG_PATIENCE)).await
    }
}
