//! What can be done to a policy.

use egress::policy::edit;
use protocol::egress::{NetworkPolicy, NetworkRule};

/// A change of a policy.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// This one instead.
    Replace(NetworkPolicy),
    /// These rules before all others; one for the same target goes.
    Prepend(Vec<NetworkRule>),
    /// No rules for these targets.
    Remove(Vec<String>),
}

impl Edit {
    /// The policy after it; of a sandbox without one everything begins with a policy that denies.
    pub(crate) fn of(&self, policy: Option<&NetworkPolicy>) -> NetworkPolicy {
        let nothing = NetworkPolicy::default();
        let policy = policy.unwrap_or(&nothing);
        match self {
            Self::Replace(policy) => policy.clone(),
            Self::Prepend(rules) => edit::prepend(policy, rules),
            Self::Remove(targets) => edit::remove(policy, targets).0,
        }
    }
}
