//! `POST /files/upload`: pairs of metadata and file, matched by their order.
//!
//! Everything is staged first and put in place only when the whole body was understood, so a broken
//! upload changes nothing. Memory does not grow with the files.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use protocol::execd::code;
use protocol::execd::files::FileMetadata;

use super::feed::{Source, feed};
use super::multipart::{Broken, Multipart, boundary};
use super::path::{Asked, Parents, Resolve};
use super::permission::Applied;
use super::stage::Stage;
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, empty};
use crate::identity::Accounts;

/// Bytes of one `metadata` part.
const MAX_METADATA_BYTES: usize = 64 * 1024;
/// Files of one upload.
const MAX_FILES: usize = 10_000;
/// Stores the files of an upload.
///
/// # Errors
/// 400 with the published codes; a message names the file.
pub async fn upload(paths: Arc<Paths>, request: Request<Incoming>, resolve: Resolve) -> Result<Answer> {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = content_type.and_then(boundary).ok_or_else(|| {
        ApiError::file(format!("content type {content_type:?} is not multipart/form-data with a boundary"))
    })?;
    feed(request.into_body(), move |source| store(&boundary, source, &paths, resolve)).await?;
    Ok(empty())
}

/// One file of the upload.
struct Target {
    asked: Asked,
    applied: Applied,
}

fn store(boundary: &str, source: &mut Source, paths: &Paths, resolve: Resolve) -> Result<()> {
    let received = receive(boundary, &mut || source.next(), paths, resolve);
    if received.is_ok() {
        // What comes after the closing boundary is nobody's business, but whether the body's own end comes is.
        while source.next().is_some() {}
    }
    source.check_whole()?;
    let (targets, stages) = received?;
    check_counts(targets.len(), stages.len())?;
    commit(targets, stages)
}

type Received = (Vec<Target>, Vec<Stage>);

fn receive(
    boundary: &str,
    source: &mut dyn FnMut() -> Option<Bytes>,
    paths: &Paths,
    resolve: Resolve,
) -> Result<Received> {
    let accounts = Accounts::load();
    let mut multipart = Multipart::new(boundary, source);
    let broken = |error: Broken| ApiError::file(error.to_string());
    multipart.skip_preamble().map_err(broken)?;
    let (mut targets, mut stages) = (Vec::<Target>::new(), Vec::<Stage>::new());
    while let Some(name) = multipart.next_part().map_err(broken)? {
        if targets.len() > MAX_FILES || stages.len() > MAX_FILES {
            return Err(ApiError::file(format!("an upload holds at most {MAX_FILES} files")));
        }
        match name.as_str() {
            "metadata" => {
                let mut text = Vec::new();
                let collect = &mut |piece: &[u8]| {
                    text.extend_from_slice(&piece[..piece.len().min(MAX_METADATA_BYTES + 1 - text.len())])
                };
                multipart.data(collect).map_err(broken)?;
                targets.push(target(&text, targets.len(), paths, resolve, &accounts)?);
            }
            "file" => {
                let mut stage = new_stage(targets.get(stages.len()))?;
                let mut written = Ok(());
                let write = &mut |piece: &[u8]| {
                    if written.is_ok() {
                        written = stage.file.write_all(piece);
                    }
                };
                multipart.data(write).map_err(broken)?;
                let subject = targets.get(stages.len()).map_or("the upload", |target| target.asked.shown.as_str());
                written.map_err(|error| ApiError::io("write", subject, &error))?;
                stages.push(stage);
            }
            _ => multipart.data(&mut |_| ()).map_err(broken)?,
        }
    }
    Ok((targets, stages))
}

fn target(text: &[u8], index: usize, paths: &Paths, resolve: Resolve, accounts: &Accounts) -> Result<Target> {
    let refused = |why: String| {
        ApiError::new(StatusCode::BAD_REQUEST, code::INVALID_FILE_METADATA, format!("metadata {}: {why}", index + 1))
    };
    if text.len() > MAX_METADATA_BYTES {
        return Err(refused(format!("longer than {MAX_METADATA_BYTES} bytes")));
    }
    let metadata: FileMetadata = match serde_json::Deserializer::from_slice(text).into_iter().next() {
        Some(Ok(metadata)) => metadata,
        Some(Err(error)) => return Err(refused(format!("is not the expected JSON: {error}"))),
        None => return Err(refused("is empty".into())),
    };
    let path = metadata.path.filter(|path| !path.is_empty()).ok_or_else(|| refused("has no path".into()))?;
    let asked = Asked::new(paths, &path, resolve)?;
    let applied = Applied::check(&asked.shown, &metadata.permission, accounts)?;
    check_target(&asked)?;
    Ok(Target { asked, applied })
}

/// Refuses what cannot be written as a file, before anything is.
fn check_target(asked: &Asked) -> Result<()> {
    let place = match asked.locate(Parents::Existing) {
        Ok(place) => place,
        Err(error) if error.status == StatusCode::NOT_FOUND => return Ok(()), // its directories are made later
        Err(error) => return Err(error),
    };
    match place.stat_if_exists()? {
        Some(found) if found.is_dir() => Err(ApiError::file(format!("{}: is a directory", place.shown))),
        Some(found) if !found.is_file() => {
            Err(ApiError::file(format!("{}: exists and is not a regular file", place.shown)))
        }
        _ => Ok(()),
    }
}

/// Beside the target when it is known already; a file may come before its metadata.
fn new_stage(target: Option<&Target>) -> Result<Stage> {
    let Some(target) = target else {
        return Stage::anywhere().map_err(|error| ApiError::io("make a temporary file for", "the upload", &error));
    };
    let failed = |error: std::io::Error| ApiError::io("make a temporary file for", &target.asked.shown, &error);
    match target.asked.locate(Parents::Existing) {
        Ok(place) => Stage::beside(&place).map_err(failed),
        Err(_) => Stage::for_missing(&target.asked).map_err(failed),
    }
}

fn check_counts(targets: usize, files: usize) -> Result<()> {
    let refuse = |code, message: String| Err(ApiError::new(StatusCode::BAD_REQUEST, code, message));
    match (targets, files) {
        (0, _) => refuse(code::INVALID_FILE_METADATA, "no part named \"metadata\"".into()),
        (_, 0) => refuse(code::INVALID_FILE_CONTENT, "no part named \"file\"".into()),
        (targets, files) if targets != files => refuse(
            code::INVALID_FILE,
            format!("{targets} metadata parts and {files} file parts: one of each per file is needed"),
        ),
        _ => Ok(()),
    }
}

fn commit(targets: Vec<Target>, stages: Vec<Stage>) -> Result<()> {
    let total = targets.len();
    for (done, (target, stage)) in targets.into_iter().zip(stages).enumerate() {
        let context = |error: ApiError| {
            if total > 1 { error.context(format!("{done} of {total} files were stored")) } else { error }
        };
        let place = target.asked.locate(Parents::Made).map_err(context)?;
        stage.commit(&place, &target.applied).map_err(|error| context(place.failed("write", &error)))?;
    }
    Ok(())
}
