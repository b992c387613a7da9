//! When two bindings could both be meant by a request, so that they cannot be in one vault.

use crate::binding::Binding;

/// Whether a request exists for which neither beats the other.
pub(crate) fn is_between(one: &Binding, other: &Binding) -> bool {
    one.endpoints().any(|endpoint| other.endpoints().any(|also| also == endpoint))
        && one.methods.iter().any(|method| other.names_method(method))
        && one.hosts.iter().any(|host| other.hosts.iter().any(|also| host.conflicts_with(also)))
        && one.paths.iter().any(|path| other.paths.iter().any(|also| path.overlaps(also)))
}

#[cfg(test)]
mod tests;
