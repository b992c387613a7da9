//! What a link of version 2 is bound to beside its port.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;

use super::ANY;

/// Most bytes of a path that a link is bound to: it appears, encoded, in every call.
pub const MAX_PREFIX_BYTES: usize = 512;
/// Methods that a link can be bound to.
const METHODS: [&str; 7] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];

/// A method and a path below which a call must lie; neither is a must.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    method: Option<&'static str>,
    prefix: Option<String>,
}

/// Why a scope cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The method is unknown.
    #[error("method: must be one of DELETE, GET, HEAD, OPTIONS, PATCH, POST and PUT")]
    Method,
    /// The path is not one that can be compared.
    #[error(
        "path: must begin with a slash, be written as in a URL without query, hold no dot segments and no encoded \
         slashes, and be at most {MAX_PREFIX_BYTES} bytes long"
    )]
    Path,
}

impl Scope {
    /// A scope as it is asked for.
    ///
    /// # Errors
    /// An unknown method, or a path that does not name one place.
    pub fn new(method: Option<&str>, prefix: Option<&str>) -> Result<Self, ScopeError> {
        let method = method
            .map(|method| METHODS.into_iter().find(|known| *known == method).ok_or(ScopeError::Method))
            .transpose()?;
        let is_path = |path: &str| {
            path.starts_with('/')
                && path.len() <= MAX_PREFIX_BYTES
                && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\"<>\\".contains(&byte))
                && is_plain(path)
        };
        if prefix.is_some_and(|path| !is_path(path)) {
            return Err(ScopeError::Path);
        }
        // Everything lies below the root: one scope has one form.
        let prefix = prefix.filter(|path| *path != "/").map(str::to_owned);
        Ok(Self { method, prefix })
    }

    pub(super) fn method(&self) -> Option<&'static str> {
        self.method
    }

    pub(super) fn prefix_text(&self) -> String {
        self.prefix.as_ref().map_or_else(|| ANY.to_owned(), |prefix| URL_SAFE_NO_PAD.encode(prefix))
    }

    /// The scope that a link says it has.
    pub(super) fn parse(method: &str, prefix: &str) -> Option<Self> {
        let method = (method != ANY).then_some(method);
        let prefix = match prefix {
            ANY => None,
            text => Some(String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?),
        };
        Self::new(method, prefix.as_deref()).ok()
    }

    /// Whether a call lies in it. A `GET` opens `HEAD`, too. Where there is a path, a call whose own path could mean
    /// another place than it says lies outside.
    pub(super) fn covers(&self, method: &Method, rest: &str) -> bool {
        let method_fits = match self.method {
            None => true,
            Some("GET") => matches!(*method, Method::GET | Method::HEAD),
            Some(wanted) => method.as_str() == wanted,
        };
        let Some(prefix) = &self.prefix else { return method_fits };
        let below = match rest.strip_prefix(prefix.as_str()) {
            Some(after) => prefix.ends_with('/') || after.is_empty() || after.starts_with('/'),
            None => false,
        };
        method_fits && below && is_plain(rest)
    }
}

/// Whether no segment climbs, however a server reads it: dots may be encoded and be followed by `;`, and slashes may
/// be encoded or the other way round.
fn is_plain(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    if lower.contains('\\') || lower.contains("%2f") || lower.contains("%5c") || lower.contains("%00") {
        return false;
    }
    lower.replace("%2e", ".").replace("%3b", ";").split('/').all(|segment| {
        let name = segment.split(';').next().unwrap_or_default();
        name != "." && name != ".."
    })
}
