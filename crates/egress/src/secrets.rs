//! The authorities and vaults of all sandboxes: kept by id, sealed before anybody is told, found again by the next process.
//!
//! A sandbox has an authority before it is made, and may be attached any number of times: what it has outlives that, and
//! ends when it is forgotten. A vault is what `vault` says it is; here it is only put in place of another as a whole.
//!
//! ```text
//!   None: not asked for
//!
//!   (nothing) ── authority made ──▶ Empty ── create ──▶ Holds ⟲ patch
//!                                     ▲ ◀── delete ───────┘     ▲
//!                                     └── delete ── Lost ── create
//!                                                     ▲
//!                     attached, and not here any more ┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use protocol::vault as wire;
use serde::{Deserialize, Serialize};
use vault::Vault;

use crate::authority::{Authority, Stored};
use crate::control::Operation;
use crate::policy::Policy;
use crate::sealed::{Key, Memory, Sealed, Secret};

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// What a sandbox has of credentials.
#[derive(Clone, Debug)]
pub enum State {
    /// Nothing: it was made without the credential proxy.
    None,
    /// An authority that its programs trust, and no vault.
    Empty {
        /// The authority.
        authority: Arc<Authority>,
    },
    /// A vault.
    Holds {
        /// The authority that shows bound hosts to its programs.
        authority: Arc<Authority>,
        /// What applies to which requests.
        vault: Arc<Vault>,
    },
    /// What it had is gone, with every process that knew it. Hosts that were bound must not be reached: their requests
    /// would go out as they are.
    Lost {
        /// Patterns of the hosts that were bound.
        hosts: Arc<[String]>,
    },
}

/// The credentials of one sandbox, as they are now. Cheap to clone; all clones see every change.
#[derive(Clone, Debug)]
pub struct Secrets(Arc<RwLock<State>>);

impl Secrets {
    fn new(state: State) -> Self {
        Self(Arc::new(RwLock::new(state)))
    }

    /// Of a sandbox without the credential proxy.
    pub fn none() -> Self {
        Self::new(State::None)
    }

    /// What there is at this moment.
    pub fn state(&self) -> State {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Revision of the vault, 0 while it is empty; `None` where there can be none.
    pub fn revision(&self) -> Option<u64> {
        match self.state() {
            State::Holds { vault, .. } => Some(vault.revision().unsigned_abs()),
            State::Empty { .. } => Some(0),
            State::None | State::Lost { .. } => None,
        }
    }

    fn set(&self, state: State) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// What a sandbox had when the server last heard of it; no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// PEM of the certificate that its programs trust.
    pub authority: String,
    /// Patterns of the hosts that are bound.
    pub hosts: Vec<String>,
}

/// What a vault holds, without any value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// As clients are shown it.
    pub state: wire::State,
    /// The hosts that are bound, and at which ports.
    pub bound: Vec<Bound>,
    /// What its owner should know, as sentences.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A host that a credential is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bound {
    /// A name, or `*.` and a name.
    pub host: String,
    /// At which ports, sorted.
    pub ports: Vec<u16>,
}

/// Why a vault is not as it was asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The request is wrong.
    Invalid,
    /// It does not fit what there is: a vault where one is made, another revision where one is expected.
    Conflict,
    /// There is no vault.
    Absent,
    /// There was one, and it is lost.
    Lost,
    /// The sandbox cannot have one.
    NotReady,
    /// There is no room for it.
    Full,
}

/// A refusal, and why for people; never with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For programs.
    pub refusal: Refusal,
    /// For people.
    pub message: String,
}

impl Refused {
    fn new(refusal: Refusal, message: impl Into<String>) -> Self {
        Self { refusal, message: message.into() }
    }
}

/// What the process keeps of all sandboxes.
#[derive(Debug)]
pub struct Holdings(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// Where it lies for the next process; without it all ends with this one.
    sealed: Option<Sealed>,
    /// What the keys of authorities follow from; without it each is drawn.
    authorities: Option<Key>,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    secrets: Secrets,
    /// The change that led to this state: one that is put again, because nobody heard its answer, is not made again.
    last: Option<Operation>,
    /// As it is sealed, so that a change of another sandbox does not have it written anew.
    line: Option<Arc<Secret>>,
    /// The authority of a sandbox whose vault is lost, where it could be made again: the vault can be filled again.
    again: Option<Arc<Authority>>,
}

impl Entry {
    /// Says that the vault is lost.
    fn lost(&self, hosts: &[String]) -> Refused {
        if hosts.is_empty() {
            return absent();
        }
        let remedy = match self.again {
            Some(_) => "fill it again, or delete it to open them",
            None => "delete it to open them, or make a new sandbox",
        };
        let message = format!(
            "credential vault not found: it was lost with the processes that held it, and the {} hosts that were bound \
             are closed; {remedy}",
            hosts.len()
        );
        Refused::new(Refusal::Lost, message)
    }
}

/// What is sealed of one sandbox: a line of JSON.
#[derive(Serialize, Deserialize)]
struct Kept {
    sandbox: String,
    authority: Stored,
    vault: Option<vault::Sealed>,
    last: Option<Operation>,
}

impl Kept {
    /// The line of a sandbox; none of one whose credentials are lost, which the server knows, and finds lost again.
    fn line(sandbox: &str, state: &State, last: Option<Operation>) -> io::Result<Option<Arc<Secret>>> {
        let (authority, vault) = match state {
            State::None | State::Lost { .. } => return Ok(None),
            State::Empty { authority } => (authority, None),
            State::Holds { authority, vault } => (authority, Some(vault.seal())),
        };
        let kept = Self { sandbox: sandbox.to_owned(), authority: authority.stored(), vault, last };
        let mut line = Secret::default();
        serde_json::to_writer(&mut line, &kept)?;
        line.write_all(b"\n")?;
        Ok(Some(Arc::new(line)))
    }

    fn restore(self, line: Arc<Secret>) -> Result<Entry, String> {
        let authority = Arc::new(Authority::restore(&self.authority).map_err(|error| error.to_string())?);
        let state = match self.vault {
            None => State::Empty { authority },
            Some(stored) => {
                let vault = Vault::restore(&stored).map_err(|refused| refused.to_string())?;
                State::Holds { authority, vault: Arc::new(vault) }
            }
        };
        Ok(Entry { secrets: Secrets::new(state), last: self.last, line: Some(line), again: None })
    }
}

impl Holdings {
    /// With what the process before has left in this memory; without memory, what comes is gone with this process.
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub fn open(memory: Option<Memory>) -> io::Result<Self> {
        let Some(mut memory) = memory else {
            return Ok(Self(Mutex::new(Inner { sealed: None, authorities: None, entries: BTreeMap::new() })));
        };
        let authorities = memory.authorities.take();
        let (sealed, state) = Sealed::open(memory)?;
        let mut entries = BTreeMap::new();
        let state = state.unwrap_or_default();
        for text in state.bytes().split_inclusive(|byte| *byte == b'\n') {
            let kept: Kept = serde_json::from_slice(text)
                .map_err(|_| io::Error::other("the sealed secrets are of another version of this program"))?;
            let mut line = Secret::default();
            line.write_all(text)?;
            let sandbox = kept.sandbox.clone();
            match kept.restore(Arc::new(line)) {
                Ok(entry) => drop(entries.insert(sandbox, entry)),
                // Its hosts are closed: it is found missing when it is attached.
                Err(error) => tracing::error!(sandbox_id = sandbox, error, "what a sandbox had of credentials is lost"),
            }
        }
        if !entries.is_empty() {
            tracing::info!(sandboxes = entries.len(), "credentials were found again");
        }
        Ok(Self(Mutex::new(Inner { sealed: Some(sealed), authorities, entries })))
    }

    /// PEM of a sandbox's authority, which is made if there is none.
    ///
    /// # Errors
    /// When it cannot be made or kept.
    pub fn authority(&self, sandbox: &str) -> Result<String, Refused> {
        let mut inner = self.lock();
        let found = inner.entries.get(sandbox).map(|entry| entry.secrets.state());
        if let Some(State::Empty { authority } | State::Holds { authority, .. }) = found {
            return Ok(authority.pem().to_owned());
        }
        let authority = match &inner.authorities {
            Some(secret) => Authority::derive(sandbox, secret),
            None => Authority::generate(sandbox),
        };
        let authority = authority.map_err(|error| Refused::new(Refusal::NotReady, error.to_string()))?;
        let pem = authority.pem().to_owned();
        inner.put(sandbox, State::Empty { authority: Arc::new(authority) }, None)?;
        Ok(pem)
    }

    /// The credentials of a sandbox that is attached. What it had and is not here is lost, but for an authority that can be
    /// made again.
    pub fn attach(&self, sandbox: &str, expected: Option<&Expected>) -> Secrets {
        let Some(expected) = expected else { return Secrets::none() };
        let mut inner = self.lock();
        let found = inner.entries.get(sandbox).map(|entry| entry.secrets.clone());
        let secrets = found.unwrap_or_else(Secrets::none);
        match secrets.state() {
            State::Empty { authority } | State::Holds { authority, .. } if authority.pem() == expected.authority => {}
            _ => {
                let again = inner.authority_again(sandbox, expected);
                let entry = Entry { secrets: secrets.clone(), last: None, line: None, again: again.clone() };
                inner.entries.insert(sandbox.to_owned(), entry);
                let is_whole = expected.hosts.is_empty()
                    && again.is_some_and(|authority| inner.put(sandbox, State::Empty { authority }, None).is_ok());
                if !is_whole {
                    tracing::warn!(
                        sandbox_id = sandbox,
                        hosts = expected.hosts.len(),
                        "the credentials of a sandbox are lost, hosts that were bound are closed"
                    );
                    secrets.set(State::Lost { hosts: expected.hosts.clone().into() });
                }
            }
        }
        secrets
    }

    /// Fills a sandbox's vault.
    ///
    /// # Errors
    /// Why it is not filled; nothing has changed then.
    pub fn create(&self, sandbox: &str, operation: Operation, body: &Secret, by: &Terms<'_>) -> Result<Shown, Refused> {
        let mut inner = self.lock();
        let entry = inner.entry(sandbox)?;
        let authority = match entry.secrets.state() {
            State::Holds { vault, .. } if entry.last == Some(operation) => return Ok(shown(&vault, by.policy)),
            State::Empty { authority } | State::Holds { authority, .. } => authority,
            State::None => return Err(not_asked_for()),
            State::Lost { .. } => entry.again.clone().ok_or_else(cannot_be_filled_again)?,
        };
        let request: wire::CreateRequest = vault::read(body.bytes())?;
        let vault = Vault::create(&request, &Covers(by.policy), &by.options)?;
        let shown = shown(&vault, by.policy);
        if matches!(entry.secrets.state(), State::Holds { .. }) {
            return Err(vault::Refused::exists().into());
        }
        inner.put(sandbox, State::Holds { authority, vault: Arc::new(vault) }, Some(operation))?;
        Ok(shown)
    }

    /// Changes what a sandbox's vault holds.
    ///
    /// # Errors
    /// Why it is not changed.
    pub fn patch(&self, sandbox: &str, operation: Operation, body: &Secret, by: &Terms<'_>) -> Result<Shown, Refused> {
        let mut inner = self.lock();
        let entry = inner.entry(sandbox)?;
        let held = match entry.secrets.state() {
            State::Holds { authority, vault } => Some((authority, vault)),
            State::Empty { .. } => None,
            State::None => return Err(not_asked_for()),
            State::Lost { hosts } => return Err(entry.lost(&hosts)),
        };
        if let Some((_, vault)) = held.as_ref().filter(|_| entry.last == Some(operation)) {
            return Ok(shown(vault, by.policy));
        }
        let request: wire::MutationRequest = vault::read(body.bytes())?;
        let (authority, vault) = held.ok_or_else(absent)?;
        let vault = vault.patch(&request, &Covers(by.policy), &by.options)?;
        let shown = shown(&vault, by.policy);
        inner.put(sandbox, State::Holds { authority, vault: Arc::new(vault) }, Some(operation))?;
        Ok(shown)
    }

    /// Empties a sandbox's vault. One that is lost is forgotten, and its hosts are open again.
    ///
    /// # Errors
    /// When there is none.
    pub fn delete(&self, sandbox: &str, operation: Operation) -> Result<(), Refused> {
        let mut inner = self.lock();
        let entry = inner.entry(sandbox)?;
        match entry.secrets.state() {
            _ if entry.last == Some(operation) => Ok(()),
            State::Holds { authority, .. } => inner.put(sandbox, State::Empty { authority }, Some(operation)),
            State::Lost { hosts } if !hosts.is_empty() => {
                let given_up = match entry.again {
                    Some(authority) => State::Empty { authority },
                    None => State::Lost { hosts: Arc::from([]) },
                };
                inner.put(sandbox, given_up, Some(operation))
            }
            _ => Err(absent()),
        }
    }

    /// What a sandbox's vault holds.
    ///
    /// # Errors
    /// When there is none.
    pub fn show(&self, sandbox: &str) -> Result<Shown, Refused> {
        let entry = self.lock().entry(sandbox)?;
        match entry.secrets.state() {
            State::Holds { vault, .. } => Ok(plain(&vault)),
            State::Lost { hosts } => Err(entry.lost(&hosts)),
            State::Empty { .. } => Err(absent()),
            State::None => Err(not_asked_for()),
        }
    }

    /// Forgets everything of a sandbox.
    ///
    /// # Errors
    /// When the rest cannot be kept without it.
    pub fn forget(&self, sandbox: &str) -> Result<(), Refused> {
        let mut inner = self.lock();
        if !inner.entries.contains_key(sandbox) {
            return Ok(());
        }
        inner.seal_with(sandbox, None)?;
        inner.entries.remove(sandbox);
        Ok(())
    }

    /// Whose authorities and vaults are kept.
    pub fn sandboxes(&self) -> Vec<String> {
        self.lock().entries.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn entry(&self, sandbox: &str) -> Result<Entry, Refused> {
        self.entries.get(sandbox).cloned().ok_or_else(not_asked_for)
    }

    /// The authority that a sandbox trusts, made again.
    fn authority_again(&self, sandbox: &str, expected: &Expected) -> Option<Arc<Authority>> {
        let authority = Authority::derive(sandbox, self.authorities.as_ref()?).ok()?;
        authority.under(&expected.authority).map(Arc::new)
    }

    /// Seals a state of a sandbox among those of the others, then shows it to who serves the sandbox.
    fn put(&mut self, sandbox: &str, state: State, last: Option<Operation>) -> Result<(), Refused> {
        let line = Kept::line(sandbox, &state, last).map_err(|error| full(&error))?;
        self.seal_with(sandbox, line.as_deref())?;
        let new = || Entry { secrets: Secrets::none(), last, line: None, again: None };
        let entry = self.entries.entry(sandbox.to_owned()).or_insert_with(new);
        (entry.last, entry.line) = (last, line);
        entry.secrets.set(state);
        Ok(())
    }

    fn seal_with(&mut self, sandbox: &str, changed: Option<&Secret>) -> Result<(), Refused> {
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        let others = self.entries.iter().filter(|(id, _)| *id != sandbox).filter_map(|(_, one)| one.line.as_deref());
        let lines: Vec<&Secret> = others.chain(changed).collect();
        let mut state = Secret::with_capacity(lines.iter().map(|line| line.bytes().len()).sum());
        let written = lines.iter().try_for_each(|line| state.write_all(line.bytes()));
        written.and_then(|()| sealed.write(state)).map_err(|error| full(&error))
    }
}

fn full(error: &io::Error) -> Refused {
    tracing::error!(%error, "credentials cannot be kept");
    Refused::new(Refusal::Full, format!("there is no room for it: {error}"))
}

/// By what a vault is judged.
#[derive(Debug)]
pub struct Terms<'a> {
    /// What bindings may say.
    pub options: vault::Options,
    /// What the sandbox may reach: hosts to which credentials are bound must be among it.
    pub policy: &'a Policy,
}

/// The policy of a sandbox, as its vault sees it.
struct Covers<'a>(&'a Policy);

impl vault::Coverage for Covers<'_> {
    fn allows(&self, host: &str, port: u16) -> bool {
        self.0.covers(host, port).is_some_and(|verdict| verdict.is_allowed())
    }
}

fn plain(vault: &Vault) -> Shown {
    let state = vault.shown();
    let mut bound: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
    for binding in state.bindings.iter().filter_map(|binding| binding.matches.as_ref()) {
        // Ports that are named stand in for those of the schemes.
        let named = binding.ports.iter().filter_map(|port| u16::try_from(*port).ok());
        let of_schemes = binding.schemes.iter().map(|scheme| if scheme == "http" { HTTP_PORT } else { HTTPS_PORT });
        let ports: Vec<u16> = if binding.ports.is_empty() { of_schemes.collect() } else { named.collect() };
        for host in &binding.hosts {
            bound.entry(host.clone()).or_default().extend(&ports);
        }
    }
    let bound = bound.into_iter().map(|(host, ports)| Bound { host, ports: ports.into_iter().collect() }).collect();
    Shown { state, bound, warnings: Vec::new() }
}

/// What a vault holds, with what its owner should know of the policy that covers it.
fn shown(vault: &Vault, policy: &Policy) -> Shown {
    let mut shown = plain(vault);
    for Bound { host, ports } in &shown.bound {
        let by_default = |port: &u16| {
            policy.covers(host, *port).is_some_and(|verdict| verdict.because == crate::policy::Because::Default)
        };
        if ports.iter().any(by_default) {
            shown.warnings.push(format!("{host} is allowed by the default action only; a rule of its own is safer"));
        }
    }
    shown
}

/// Whether a policy still lets a sandbox reach a host that its credentials are bound to.
///
/// # Errors
/// Why not, in the published words.
pub fn check_covers(policy: &Policy, bound: &Bound) -> Result<(), String> {
    let host = &bound.host;
    let refused = |port: &&u16| policy.covers(host, **port).is_none_or(|verdict| !verdict.is_allowed());
    match bound.ports.iter().find(refused) {
        None => Ok(()),
        Some(port) => Err(format!(
            "credential vault policy validation: a credential is bound to {host}, and the policy would not allow it at \
             port {port}; change the binding first"
        )),
    }
}

impl From<vault::Refused> for Refused {
    fn from(vault::Refused { kind, message }: vault::Refused) -> Self {
        let refusal = match kind {
            vault::Kind::Invalid | vault::Kind::Uncovered => Refusal::Invalid,
            vault::Kind::NotFound => Refusal::Absent,
            vault::Kind::Exists | vault::Kind::Stale => Refusal::Conflict,
        };
        Self { refusal, message }
    }
}

fn absent() -> Refused {
    vault::Refused::no_vault().into()
}

fn not_asked_for() -> Refused {
    let message = "the sandbox was made without credentialProxy.enabled; make one with it";
    Refused::new(Refusal::NotReady, message)
}

fn cannot_be_filled_again() -> Refused {
    let message = "the sandbox's certificate authority was lost with the processes that held it, and its programs trust \
                   no other; make a new sandbox";
    Refused::new(Refusal::NotReady, message)
}

#[cfg(test)]
mod tests;
