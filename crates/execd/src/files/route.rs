//! From method and path to the file call that answers.

use std::sync::Arc;

use http::{Method, Request};
use hyper::body::Incoming;

use super::path::Resolve;
use super::{
    archive, download, info, list, make_directories, permissions, remove, remove_directories, rename, replace, search,
    upload,
};
use crate::environment::Paths;
use crate::error::Result;
use crate::http::{Answer, Query, not_found, read_json};

/// Answers a file call; `path` is what stands behind any prefix, `/files/info` say.
///
/// # Errors
/// Those of the call; 400 for an unknown way of walking paths.
pub async fn route(paths: &Arc<Paths>, path: &str, request: Request<Incoming>) -> Result<Answer> {
    let verbose = Query::of(&request).get("verbose") == Some("true");
    answer(paths, path, request, verbose).await
}

/// As [`route`], but a replacement always tells its counts: clients of isolated sessions read them unasked.
///
/// # Errors
/// As [`route`].
pub async fn route_with_counts(paths: &Arc<Paths>, path: &str, request: Request<Incoming>) -> Result<Answer> {
    answer(paths, path, request, true).await
}

async fn answer(paths: &Arc<Paths>, path: &str, request: Request<Incoming>, verbose: bool) -> Result<Answer> {
    let query = Query::of(&request);
    let resolve = Resolve::of(request.headers())?;
    match (request.method(), path) {
        (&Method::GET, "/files/info") => info(paths, query, resolve).await,
        (&Method::DELETE, "/files") => remove(paths, query, resolve).await,
        (&Method::POST, "/files/permissions") => permissions(paths, read_json(request).await?, resolve).await,
        (&Method::POST, "/files/mv") => rename(paths, read_json(request).await?, resolve).await,
        (&Method::POST, "/files/replace") => replace(paths, read_json(request).await?, verbose, resolve).await,
        (&Method::GET, "/files/search") => search(paths, query, resolve).await,
        (&Method::POST, "/files/upload") => upload(Arc::clone(paths), request, resolve).await,
        (&Method::GET, "/files/download") => download(paths, request, query, resolve).await,
        (&Method::GET, "/directories/list") => list(paths, query, resolve).await,
        (&Method::POST, "/directories") => make_directories(paths, read_json(request).await?, resolve).await,
        (&Method::DELETE, "/directories") => remove_directories(paths, query, resolve).await,
        (&Method::GET, "/archive") => archive::pack(paths, query, resolve).await,
        (&Method::PUT | &Method::POST, "/archive") => {
            archive::extract(Arc::clone(paths), request, query, resolve).await
        }
        _ => Ok(not_found()),
    }
}
