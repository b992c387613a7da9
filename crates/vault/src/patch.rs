//! Changes of a vault: on a copy, all or nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use protocol::vault as wire;

use crate::vault::{Credential, Vault};
use crate::{Coverage, Kind, Options, Refused, check};

impl Vault {
    /// The vault after a change, one revision on: deletes first, then replaces, then adds.
    ///
    /// # Errors
    /// When another revision is expected; otherwise as [`Vault::create`], and when a name is in two operations, what is
    /// added exists, or what is replaced or deleted does not.
    pub fn patch(
        &self,
        request: &wire::MutationRequest,
        coverage: &dyn Coverage,
        options: &Options,
    ) -> Result<Self, Refused> {
        check::known(&request.unknown, "")?;
        if let Some(expected) = request.expected_revision.filter(|expected| *expected != self.revision) {
            let message = format!("credential vault revision mismatch: expected {expected}, it is {}", self.revision);
            return Err(Refused { kind: Kind::Stale, message });
        }
        let revision = self.revision + 1;
        let credentials = changed(&self.credentials, &request.credentials, "credentials", |wire, field| {
            let (name, value) = check::credential(wire, field)?;
            Ok((name, Credential { value: Arc::new(value), revision }))
        })?;
        let bindings = self.bindings.iter().map(|(name, rendered)| (name.clone(), rendered.binding.clone())).collect();
        let bindings = changed(&bindings, &request.bindings, "bindings", |wire, field| {
            let binding = check::binding(wire, field, options)?;
            Ok((binding.name.clone(), binding))
        })?;
        let vault = Self::assemble(revision, credentials, bindings)?;
        vault.covered(coverage)?;
        Ok(vault)
    }
}

fn changed<W, T: Clone>(
    old: &BTreeMap<String, T>,
    change: &wire::Mutations<W>,
    list: &str,
    parse: impl Fn(&W, &str) -> Result<(String, T), Refused>,
) -> Result<BTreeMap<String, T>, Refused> {
    check::known(&change.unknown, list)?;
    let mut new = old.clone();
    let mut named = HashSet::new();
    for (at, name) in change.delete.iter().enumerate() {
        let field = format!("{list}.delete[{at}]");
        once(&mut named, name, &field)?;
        new.remove(name).ok_or_else(|| Refused::field(&field, format!("{name:?} does not exist")))?;
    }
    for (at, wire) in change.replace.iter().enumerate() {
        let field = format!("{list}.replace[{at}]");
        let (name, value) = parse(wire, &field)?;
        once(&mut named, &name, &format!("{field}.name"))?;
        let place = new.get_mut(&name);
        *place.ok_or_else(|| Refused::field(format!("{field}.name"), format!("{name:?} does not exist")))? = value;
    }
    for (at, wire) in change.add.iter().enumerate() {
        let field = format!("{list}.add[{at}]");
        let (name, value) = parse(wire, &field)?;
        once(&mut named, &name, &format!("{field}.name"))?;
        if new.insert(name.clone(), value).is_some() {
            return Err(Refused::field(format!("{field}.name"), format!("{name:?} exists already")));
        }
    }
    Ok(new)
}

fn once(named: &mut HashSet<String>, name: &str, field: &str) -> Result<(), Refused> {
    if named.insert(name.to_owned()) {
        return Ok(());
    }
    Err(Refused::field(field, format!("{name:?} is in two operations")))
}

#[cfg(test)]
mod tests;
