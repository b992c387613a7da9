//! Unpacking for the image store, done by a confined child of the jailer.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use image::LayerId;
use image::unpack::{BoxFuture, Compression, LayerStats, Unpack, UnpackError};

use crate::client::Client;
use crate::wire::{Reply, Request};

/// Longest time for one layer: 40 GiB on a slow disk.
const UNPACK_DEADLINE: Duration = Duration::from_secs(3600);
/// Longest time for a look or a removal: a layer of two million files.
const LAYER_DEADLINE: Duration = Duration::from_secs(600);

/// Asks the jailer.
pub struct JailerUnpack {
    client: Client,
}

impl JailerUnpack {
    /// Unpacks through this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn ask(&self, request: Request, blob: Option<&File>, deadline: Duration) -> Result<Reply, UnpackError> {
        let fds: Vec<_> = blob.iter().map(|file| file.as_fd()).collect();
        match self.client.ask(&request, &fds, deadline).await {
            Ok((Reply::UnpackFailed(error), _)) => Err(error),
            Ok((reply, _)) => Ok(reply),
            Err(failure) => Err(UnpackError::Process { reason: failure.message }),
        }
    }
}

fn unexpected(reply: &Reply) -> UnpackError {
    UnpackError::Process { reason: format!("it gave an answer to another question: {reply:?}") }
}

impl Unpack for JailerUnpack {
    fn unpack<'a>(
        &'a self,
        blob: File,
        layer: &'a LayerId,
        compression: Compression,
    ) -> BoxFuture<'a, Result<LayerStats, UnpackError>> {
        Box::pin(async move {
            let request = Request::Unpack { layer: layer.as_str().to_owned(), compression };
            match self.ask(request, Some(&blob), UNPACK_DEADLINE).await? {
                Reply::Unpacked { stats } => Ok(stats),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn has<'a>(&'a self, layer: &'a LayerId) -> BoxFuture<'a, Result<bool, UnpackError>> {
        Box::pin(async move {
            match self.ask(Request::HasLayer { layer: layer.as_str().to_owned() }, None, LAYER_DEADLINE).await? {
                Reply::Has { present } => Ok(present),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn remove<'a>(&'a self, layer: &'a LayerId) -> BoxFuture<'a, Result<(), UnpackError>> {
        Box::pin(async move {
            match self.ask(Request::RemoveLayer { layer: layer.as_str().to_owned() }, None, LAYER_DEADLINE).await? {
                Reply::Done => Ok(()),
                other => Err(unexpected(&other)),
            }
        })
    }
}
