//! A binding with its values in place: what is put into requests, and what is taken out of answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::binding::{Auth, Binding, Surface};
use crate::secrets::{Secrets, Shared};
use crate::substitute::{Replacer, Writing};
use crate::vault::Credential;
use crate::{Refused, header};

/// A binding with its values in place.
pub(crate) struct Rendered {
    pub binding: Binding,
    /// Of the vault.
    pub revision: i64,
    /// Whose values say of themselves that they are secret.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub path: Option<Replacer>,
    pub query: Option<Replacer>,
    pub header: Option<Replacer>,
    pub body: Option<Body>,
    pub secrets: Arc<Secrets>,
}

/// Replacing in bodies, by how they are written.
pub(crate) struct Body {
    pub raw: Replacer,
    pub json: Replacer,
    pub form: Replacer,
}

impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rendered").field(&self.binding.name).finish()
    }
}

impl Rendered {
    /// # Errors
    /// When a credential does not exist or cannot be used where the binding uses it.
    pub(crate) fn new(
        binding: Binding,
        revision: i64,
        credentials: &BTreeMap<String, Credential>,
        shared: &mut Shared,
    ) -> Result<Self, Refused> {
        let unknown = |name: &str| {
            Refused::field(format!("binding {:?}", binding.name), format!("credential {name:?} does not exist"))
        };
        let value = |name: &str| credentials.get(name).map(|found| &found.value).ok_or_else(|| unknown(name));
        for name in binding.credentials() {
            is_usable(&binding, name, value(name)?)?;
        }
        let mut headers = Vec::new();
        for (name, credential) in headers_of(&binding.auth) {
            let text = [binding.auth.prefix(), value(credential)?.expose_secret()].concat();
            headers.push(header_of(name, text).ok_or_else(|| unusable(&binding, credential, HEADER))?);
        }
        let mut replaced =
            [Surface::Path, Surface::Query, Surface::Header, Surface::Body].map(|surface| (surface, Vec::new()));
        for substitution in &binding.substitutions {
            let value = value(&substitution.credential)?;
            for (_, of) in replaced.iter_mut().filter(|(surface, _)| substitution.surfaces.contains(surface)) {
                of.push((substitution.placeholder.clone(), value.clone()));
            }
        }
        let [path, query, header, body] = replaced.map(|(_, of)| of);
        let body_as = |writing| Replacer::new(body.clone(), writing);
        let body = match (body_as(Writing::Raw), body_as(Writing::Json), body_as(Writing::Form)) {
            (Some(raw), Some(json), Some(form)) => Some(Body { raw, json, form }),
            _ => None,
        };
        let path = Replacer::new(path, Writing::Path);
        let query = Replacer::new(query, Writing::Query);
        let header = Replacer::new(header, Writing::Raw);
        let secrets = shared.of(&binding, credentials);
        Ok(Self { binding, revision, headers, path, query, header, body, secrets })
    }
}

const HEADER: &str = "has a line break or another control character, which no header may have";

/// Name and credential of each header.
fn headers_of(auth: &Auth) -> Vec<(&str, &str)> {
    match auth {
        Auth::Bearer { credential } | Auth::Basic { credential } => vec![("Authorization", credential)],
        Auth::ApiKey(header) => vec![(&header.name, &header.credential)],
        Auth::CustomHeaders(headers) => {
            headers.iter().map(|header| (header.name.as_str(), header.credential.as_str())).collect()
        }
        Auth::Passthrough => Vec::new(),
    }
}

fn header_of(name: &str, text: String) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    // Every copy of the value shares these bytes, which are wiped with the last one.
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(Zeroizing::new(text.into_bytes()))).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn unusable(binding: &Binding, credential: &str, reason: &str) -> Refused {
    Refused::field(
        format!("credential {credential:?}, used by binding {:?}", binding.name),
        format!("its value {reason}"),
    )
}

fn is_usable(binding: &Binding, credential: &str, value: &SecretString) -> Result<(), Refused> {
    let value = value.expose_secret();
    let is_used_on = |surface| {
        let mut uses = binding.substitutions.iter().filter(|of| of.credential == credential);
        uses.any(|of| of.surfaces.contains(&surface))
    };
    let in_header = headers_of(&binding.auth).iter().any(|(_, own)| *own == credential) || is_used_on(Surface::Header);
    if in_header && !header::is_value(value) {
        return Err(unusable(binding, credential, HEADER));
    }
    if is_used_on(Surface::Path) && value.bytes().all(|byte| byte == b'.') {
        return Err(unusable(binding, credential, "is only dots, which are no name in a path"));
    }
    Ok(())
}
