//! What is done to one request.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::body::{self, BodySubstitution};
use crate::header;
use crate::redact::Redactor;
use crate::render::Rendered;
use crate::substitute::{Replacer, Room};

/// Longest path and query; what the parser behind us takes.
const MAX_PATH_BYTES: usize = u16::MAX as usize - 1;

/// What is done to one request, and taken out of its answer.
pub struct Injection {
    rendered: Arc<Rendered>,
    path_and_query: PathAndQuery,
}

impl fmt::Debug for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Injection").field(&self.binding()).finish()
    }
}

impl Injection {
    /// `None` when what comes out is no path.
    pub(crate) fn new(rendered: Arc<Rendered>, path: &str, query: Option<&str>) -> Option<Self> {
        let replaced = |replacer: &Option<Replacer>, text: &str| {
            let replaced = replacer.as_ref().and_then(|replacer| replacer.replace(text.as_bytes(), Room::OF_A_LINE));
            replaced.unwrap_or_else(|| Zeroizing::new(text.as_bytes().to_vec()))
        };
        let path = replaced(&rendered.path, path);
        let query = query.map(|query| replaced(&rendered.query, query));
        let parts: [&[u8]; 3] = match &query {
            Some(query) => [&path, b"?", query],
            None => [&path, b"", b""],
        };
        let text = Zeroizing::new(parts.concat());
        if text.len() > MAX_PATH_BYTES {
            return None;
        }
        let path_and_query = PathAndQuery::from_maybe_shared(Bytes::from_owner(text)).ok()?;
        Some(Self { rendered, path_and_query })
    }

    /// The name of the binding, for records.
    pub fn binding(&self) -> &str {
        &self.rendered.binding.name
    }

    /// The revision of the vault, for records.
    pub fn revision(&self) -> i64 {
        self.rendered.revision
    }

    /// The headers that are set, for records.
    pub fn header_names(&self) -> impl Iterator<Item = &HeaderName> {
        self.rendered.headers.iter().map(|(name, _)| name)
    }

    /// What is asked for instead of what the sandbox wrote: in its one form, with placeholders replaced. Secret.
    pub fn path_and_query(&self) -> &PathAndQuery {
        &self.path_and_query
    }

    /// Replaces placeholders in headers, then sets the binding's own in place of any of the same name. What holds a value
    /// says of itself that it is secret, so that HTTP/2 does not index it.
    pub fn apply_headers(&self, headers: &mut HeaderMap) {
        if let Some(replacer) = &self.rendered.header {
            for (name, value) in headers.iter_mut().filter(|(name, _)| header::is_substituted(name)) {
                let Some(replaced) = replacer.replace(value.as_bytes(), Room::OF_A_LINE) else { continue };
                // What is put in was checked when the vault was made, and what is there is a header.
                let replaced = HeaderValue::from_maybe_shared(Bytes::from_owner(replaced));
                debug_assert!(replaced.is_ok(), "{name} is a header no more");
                if let Ok(replaced) = replaced {
                    *value = replaced;
                    value.set_sensitive(true);
                }
            }
        }
        for (name, value) in &self.rendered.headers {
            headers.insert(name, value.clone());
        }
    }

    /// Whether placeholders in the body are to be replaced. Where [`Injection::body_form`] gives nothing all the same, the
    /// body is compressed, and nobody can say whether a placeholder leaves with it.
    pub fn substitutes_body(&self) -> bool {
        self.rendered.body.is_some()
    }

    /// How placeholders in the body of this request are replaced; `None`: it goes on as it is.
    ///
    /// What is put in is escaped in JSON and in forms and as it is in anything else, parts of `multipart` among them.
    pub fn body_form(&self, content_type: Option<&str>, content_encoding: Option<&str>) -> Option<BodySubstitution> {
        let body = self.rendered.body.as_ref()?;
        if !body::is_readable(content_encoding) {
            return None;
        }
        Some(BodySubstitution::new(body.of(content_type).clone()))
    }

    /// What takes the values of this binding out of the answer.
    pub fn redactor(&self) -> &Redactor {
        self.rendered.secrets.redactor()
    }
}

#[cfg(test)]
mod tests;
