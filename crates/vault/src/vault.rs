//! The vault of one sandbox: its credentials, its bindings, and its revision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use protocol::vault as wire;
use secrecy::{ExposeSecret, SecretString};

use crate::binding::{Auth, Binding};
use crate::redact::Redactor;
use crate::render::Rendered;
use crate::secrets::Shared;
use crate::select::Index;
use crate::{Coverage, Facts, Kind, Options, Refused, Selection, check, conflict, forms};

/// Most credentials of a vault.
pub const MAX_CREDENTIALS: usize = 256;
/// Most bindings of a vault: each is compared with each.
pub const MAX_BINDINGS: usize = 256;
/// Longest value in bytes. All the ways of writing it are looked for in answers, which takes memory.
pub const MAX_VALUE_BYTES: usize = 16 * 1024;

/// Most bytes of all values, and of the values that bindings use, counted for each set of them that is used together. To
/// take them out of answers up to 800 times as much memory is needed, if they are long and each is written in another way
/// by everyone; 10 to 100 times as much for common ones.
pub const MAX_SECRET_BYTES: usize = 128 * 1024;

/// A secret value, and the revision that wrote it.
#[derive(Clone)]
pub(crate) struct Credential {
    pub value: Arc<SecretString>,
    pub revision: i64,
}

/// The vault of one sandbox. It is never changed: [`Vault::patch`] gives another one.
#[derive(Clone)]
pub struct Vault {
    pub(crate) revision: i64,
    pub(crate) credentials: BTreeMap<String, Credential>,
    pub(crate) bindings: BTreeMap<String, Arc<Rendered>>,
    index: Index,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl Vault {
    /// Makes a vault, at revision 1.
    ///
    /// # Errors
    /// When a field is wrong, bindings conflict, refer to no credential, or are about hosts that the policy does not cover.
    pub fn create(request: &wire::CreateRequest, coverage: &dyn Coverage, options: &Options) -> Result<Self, Refused> {
        const REVISION: i64 = 1;
        check::known(&request.unknown, "")?;
        let mut credentials = BTreeMap::new();
        for (at, wire) in request.credentials.iter().enumerate() {
            let field = format!("credentials[{at}]");
            let (name, value) = check::credential(wire, &field)?;
            let credential = Credential { value: Arc::new(value), revision: REVISION };
            if credentials.insert(name, credential).is_some() {
                return Err(Refused::field(format!("{field}.name"), "is there twice"));
            }
        }
        let mut bindings = BTreeMap::new();
        for (at, wire) in request.bindings.iter().enumerate() {
            let field = format!("bindings[{at}]");
            let binding = check::binding(wire, &field, options)?;
            if bindings.insert(binding.name.clone(), binding).is_some() {
                return Err(Refused::field(format!("{field}.name"), "is there twice"));
            }
        }
        let vault = Self::assemble(REVISION, credentials, bindings)?;
        vault.covered(coverage)?;
        Ok(vault)
    }

    /// A vault of parts each of which was checked.
    pub(crate) fn assemble(
        revision: i64,
        credentials: BTreeMap<String, Credential>,
        bindings: BTreeMap<String, Binding>,
    ) -> Result<Self, Refused> {
        if credentials.len() > MAX_CREDENTIALS {
            return Err(Refused::field("credentials", format!("more than {MAX_CREDENTIALS} are too many")));
        }
        if bindings.len() > MAX_BINDINGS {
            return Err(Refused::field("bindings", format!("more than {MAX_BINDINGS} are too many")));
        }
        for (at, one) in bindings.values().enumerate() {
            if let Some(other) = bindings.values().take(at).find(|other| conflict::is_between(one, other)) {
                let reason = format!("conflicts with binding {:?}: some requests are meant by both", other.name);
                return Err(Refused::field(format!("binding {:?}", one.name), reason));
            }
        }
        let mut shared = Shared::default();
        let render =
            |(name, binding)| Ok((name, Arc::new(Rendered::new(binding, revision, &credentials, &mut shared)?)));
        let bindings: BTreeMap<_, _> = bindings.into_iter().map(render).collect::<Result<_, Refused>>()?;
        let kept: usize = credentials.values().map(|credential| credential.value.expose_secret().len()).sum();
        let used = shared.bytes();
        if kept.max(used) > MAX_SECRET_BYTES {
            let reason = format!("all values, or those that bindings use, are longer than {MAX_SECRET_BYTES} bytes");
            return Err(Refused::field("credentials", reason));
        }
        let index = Index::new(bindings.values());
        Ok(Self { revision, credentials, bindings, index })
    }

    /// Whether a changed policy still covers every binding.
    ///
    /// # Errors
    /// The first binding that it does not cover, in the published words.
    pub fn recheck(&self, coverage: &dyn Coverage) -> Result<(), Refused> {
        self.covered(coverage).map_err(|refused| Refused {
            message: format!("credential vault policy validation: {}", refused.message),
            ..refused
        })
    }

    pub(crate) fn covered(&self, coverage: &dyn Coverage) -> Result<(), Refused> {
        for binding in self.bindings.values().map(|rendered| &rendered.binding) {
            let uncovered = |reason: String| Refused {
                kind: Kind::Uncovered,
                message: format!("binding {:?}: {reason}", binding.name),
            };
            for host in &binding.hosts {
                let probe = host.probe();
                if !coverage.opens(&probe) {
                    return Err(uncovered(format!("TLS to {host} passes unopened here")));
                }
                if let Some((_, port)) = binding.endpoints().find(|(_, port)| !coverage.allows(&probe, *port)) {
                    return Err(uncovered(format!("the network policy does not allow {host} at port {port}")));
                }
            }
        }
        Ok(())
    }

    /// 1 when it was made, one more with each change.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The vault as it is shown: by name, without values, placeholders and references.
    pub fn shown(&self) -> wire::State {
        let wire::CredentialList { revision, credentials } = self.credentials();
        wire::State { revision, credentials, bindings: self.bindings().bindings }
    }

    /// Its credentials as they are shown.
    pub fn credentials(&self) -> wire::CredentialList {
        let credentials = self.credentials.iter().map(|(name, credential)| show_credential(name, credential));
        wire::CredentialList { revision: self.revision, credentials: credentials.collect() }
    }

    /// Its bindings as they are shown.
    pub fn bindings(&self) -> wire::BindingList {
        let bindings = self.bindings.values().map(|rendered| self.show_binding(&rendered.binding));
        wire::BindingList { revision: self.revision, bindings: bindings.collect() }
    }

    /// One of its credentials as it is shown.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn credential(&self, name: &str) -> Result<wire::CredentialMetadata, Refused> {
        let found = self.credentials.get(name).ok_or_else(|| Refused::no_credential(name))?;
        Ok(show_credential(name, found))
    }

    /// One of its bindings as it is shown.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn binding(&self, name: &str) -> Result<wire::BindingMetadata, Refused> {
        let found = self.bindings.get(name).ok_or_else(|| Refused::no_binding(name))?;
        Ok(self.show_binding(&found.binding))
    }

    fn show_binding(&self, binding: &Binding) -> wire::BindingMetadata {
        let name = match &binding.auth {
            Auth::ApiKey(header) => Some(header.name.clone()),
            _ => None,
        };
        let matches = wire::MatchMetadata {
            schemes: binding.schemes.iter().map(|scheme| scheme.as_str().to_owned()).collect(),
            ports: binding.ports.iter().copied().map(u32::from).collect(),
            hosts: binding.hosts.iter().map(ToString::to_string).collect(),
            methods: binding.methods.clone(),
            paths: binding.paths.iter().cloned().map(String::from).collect(),
        };
        wire::BindingMetadata {
            name: binding.name.clone(),
            revision: self.revision,
            matches: Some(matches),
            auth: Some(wire::AuthMetadata { kind: binding.auth.kind().to_owned(), name }),
        }
    }

    /// The hosts that are bound, as text: names and `*.` before names, each once. [`crate::is_any`] reads them.
    pub fn hosts(&self) -> Vec<String> {
        let hosts = self.bindings.values().flat_map(|rendered| &rendered.binding.hosts);
        hosts.map(ToString::to_string).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether a binding is about this host.
    pub fn is_bound(&self, host: &str) -> bool {
        self.index.is_bound(host, |_| true)
    }

    /// Whether a binding is about this host at this port.
    pub fn is_bound_at(&self, host: &str, port: u16) -> bool {
        self.index.is_bound(host, |binding| binding.endpoints().any(|(_, own)| own == port))
    }

    /// What is done to a request.
    pub fn select(&self, facts: &Facts<'_>) -> Selection {
        self.index.select(facts)
    }

    /// What takes every value of this vault, and the passwords in logins, out of a text: for what is told of several requests.
    pub fn redactor(&self) -> Redactor {
        let values = self.credentials.values().map(|credential| credential.value.expose_secret());
        Redactor::new(values.flat_map(|value| forms::of_value(value).into_iter().chain(forms::of_login(value))))
    }
}

fn show_credential(name: &str, credential: &Credential) -> wire::CredentialMetadata {
    wire::CredentialMetadata { name: name.to_owned(), source_type: "inline".to_owned(), revision: credential.revision }
}

#[cfg(test)]
mod tests;
