//! The named volumes of a server.

use std::time::Duration;

use protocol::lifecycle::{CreateVolumeRequest, ListVolumesResponse, VolumeInfo};
use reqwest::Method;

use super::{Client, Patience, segment};
use crate::failure::Failure;

/// Longest wait for a volume to be removed: it may hold millions of files.
const REMOVE_PATIENCE: Duration = Duration::from_secs(600);

impl Client {
    /// Every volume.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>, Failure> {
        let list: ListVolumesResponse = self.json(self.request(Method::GET, "/volumes"), Patience::Usual).await?;
        Ok(list.items)
    }

    /// One volume.
    pub async fn volume(&self, name: &str) -> Result<VolumeInfo, Failure> {
        let path = format!("/volumes/{}", segment(name));
        self.json(self.request(Method::GET, &path), Patience::Usual).await
    }

    /// Makes a volume.
    pub async fn create_volume(&self, request: &CreateVolumeRequest) -> Result<VolumeInfo, Failure> {
        self.json(self.request(Method::POST, "/volumes").json(request), Patience::Usual).await
    }

    /// Removes a volume that no sandbox has, with all that is in it.
    pub async fn remove_volume(&self, name: &str) -> Result<(), Failure> {
        let path = format!("/volumes/{}", segment(name));
        self.send(self.request(Method::DELETE, &path), Patience::For(REMOVE_PATIENCE)).await.map(drop)
    }
}
