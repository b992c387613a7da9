//! Bindings whose every part was checked. They refer to credentials by name and hold no value.

use serde::{Deserialize, Serialize};

use crate::host::HostPattern;
use crate::path::PathPattern;
use crate::select::Scheme;

/// Which requests are given which credentials, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Binding {
    pub name: String,
    pub schemes: Vec<Scheme>,
    /// Empty: those of the schemes.
    pub ports: Vec<u16>,
    pub hosts: Vec<HostPattern>,
    /// Upper case.
    pub methods: Vec<String>,
    pub paths: Vec<PathPattern>,
    pub auth: Auth,
    pub substitutions: Vec<Substitution>,
}

/// What is done to the headers of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Auth {
    Bearer { credential: String },
    Basic { credential: String },
    ApiKey(Header),
    CustomHeaders(Vec<Header>),
    Passthrough,
}

/// A header and the credential that is its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// In canonical case.
    pub name: String,
    pub credential: String,
}

/// A text whose place a credential takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Substitution {
    pub credential: String,
    pub placeholder: String,
    pub surfaces: Vec<Surface>,
}

/// A part of a request in which placeholders are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Surface {
    Path,
    Query,
    Header,
    Body,
}

impl Surface {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "path" => Some(Self::Path),
            "query" => Some(Self::Query),
            "header" => Some(Self::Header),
            "body" => Some(Self::Body),
            _ => None,
        }
    }
}

impl Binding {
    /// The schemes and ports that it is about.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (Scheme, u16)> {
        self.schemes.iter().flat_map(|scheme| {
            let own = self.ports.is_empty().then(|| scheme.port());
            own.into_iter().chain(self.ports.iter().copied()).map(|port| (*scheme, port))
        })
    }

    pub(crate) fn names_method(&self, method: &str) -> bool {
        self.methods.iter().any(|own| own == method)
    }

    /// Every credential that it refers to.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = &str> {
        let by_auth: Vec<&str> = match &self.auth {
            Auth::Bearer { credential } | Auth::Basic { credential } => vec![credential],
            Auth::ApiKey(header) => vec![&header.credential],
            Auth::CustomHeaders(headers) => headers.iter().map(|header| header.credential.as_str()).collect(),
            Auth::Passthrough => Vec::new(),
        };
        by_auth.into_iter().chain(self.substitutions.iter().map(|substitution| substitution.credential.as_str()))
    }
}

impl Auth {
    pub(crate) const BASIC: &'static str = "Basic ";

    /// What is before the value in the header.
    pub(crate) fn prefix(&self) -> &'static str {
        match self {
            Self::Bearer { .. } => "Bearer ",
            Self::Basic { .. } => Self::BASIC,
            Self::ApiKey(_) | Self::CustomHeaders(_) | Self::Passthrough => "",
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Bearer { .. } => "bearer",
            Self::Basic { .. } => "basic",
            Self::ApiKey(_) => "apiKey",
            Self::CustomHeaders(_) => "customHeaders",
            Self::Passthrough => "passthrough",
        }
    }
}
