//! A binding with its values in place: what is put into requests, and what is taken out of answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::binding::{Auth, Binding, Surface};
use crate::redact::Redactor;
use crate::substitute::{Replacer, Writing};
use crate::vault::Credential;
use crate::{Refused, encode, forms, header};

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
    secrets: Vec<encode::Bytes>,
    redactor: OnceLock<Redactor>,
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
    ) -> Result<Self, Refused> {
        let unknown = |name: &str| {
            Refused::field(format!("binding {:?}", binding.name), format!("credential {name:?} does not exist"))
        };
        let value = |name: &str| credentials.get(name).map(|found| &*found.value).ok_or_else(|| unknown(name));
        for name in binding.credentials() {
            is_usable(&binding, name, value(name)?)?;
        }
        let mut headers = Vec::new();
        let mut secrets = Vec::new();
        for (name, prefix, credential) in headers_of(&binding.auth) {
            let value = value(credential)?.expose_secret();
            let text = [prefix.as_bytes(), value.as_bytes()].concat();
            secrets.push(Zeroizing::new(text.clone()));
            headers.push(header_of(name, text).ok_or_else(|| unusable(&binding, credential, HEADER))?);
            secrets.extend(forms::of_value(value));
            if matches!(binding.auth, Auth::Basic { .. }) {
                secrets.extend(forms::of_login(value));
            }
        }
        for substitution in &binding.substitutions {
            secrets.extend(forms::of_value(value(&substitution.credential)?.expose_secret()));
        }
        let replacer = |surface, writing| -> Result<Option<Replacer>, Refused> {
            let of = binding.substitutions.iter().filter(|of| of.surfaces.contains(&surface));
            let of = of.map(|of| Ok((of.placeholder.as_str(), value(&of.credential)?.expose_secret())));
            Ok(Replacer::new(&of.collect::<Result<Vec<_>, Refused>>()?, writing))
        };
        let path = replacer(Surface::Path, Writing::Path)?;
        let query = replacer(Surface::Query, Writing::Query)?;
        let header = replacer(Surface::Header, Writing::Raw)?;
        let [raw, json, form] =
            [Writing::Raw, Writing::Json, Writing::Form].map(|writing| replacer(Surface::Body, writing));
        let body = match (raw?, json?, form?) {
            (Some(raw), Some(json), Some(form)) => Some(Body { raw, json, form }),
            _ => None,
        };
        Ok(Self { binding, revision, headers, path, query, header, body, secrets, redactor: OnceLock::new() })
    }

    /// Made when the first answer comes.
    pub(crate) fn redactor(&self) -> &Redactor {
        self.redactor.get_or_init(|| Redactor::new(self.secrets.iter().cloned()))
    }
}

const HEADER: &str = "has a line break or another control character, which no header may have";

/// Name, what is before the value, and credential of each header.
fn headers_of(auth: &Auth) -> Vec<(&str, &'static str, &str)> {
    match auth {
        Auth::Bearer { credential } => vec![("Authorization", "Bearer ", credential)],
        Auth::Basic { credential } => vec![("Authorization", "Basic ", credential)],
        Auth::ApiKey(header) => vec![(&header.name, "", &header.credential)],
        Auth::CustomHeaders(headers) => {
            headers.iter().map(|of| (of.name.as_str(), "", of.credential.as_str())).collect()
        }
        Auth::Passthrough => Vec::new(),
    }
}

fn header_of(name: &str, text: Vec<u8>) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    // Every copy of the value shares these bytes, which are wiped with the last one.
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(Zeroizing::new(text))).ok()?;
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
    let in_header =
        headers_of(&binding.auth).iter().any(|(_, _, own)| *own == credential) || is_used_on(Surface::Header);
    if in_header && !header::is_value(value) {
        return Err(unusable(binding, credential, HEADER));
    }
    if is_used_on(Surface::Path) && value.bytes().all(|byte| byte == b'.') {
        return Err(unusable(binding, credential, "is only dots, which are no name in a path"));
    }
    Ok(())
}
