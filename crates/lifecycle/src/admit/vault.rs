//! The credential proxy: whether a sandbox can have one, and what its owner demands of it.

use std::collections::BTreeMap;

use protocol::lifecycle::CreateSandboxRequest;
use protocol::network::Cidr;

use super::{NO_NETWORK, Refusal};
use crate::runtime::Capabilities;
use crate::spec::VaultDemands;

/// Settings of the published sidecar, which come with the environment of a create.
const PREFIX: &str = "OPENSANDBOX_EGRESS_";
const REQUIRE_SCOPED_MATCH: &str = "OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_REQUIRE_SCOPED_MATCH";
const REQUIRE_TLS: &str = "OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_REQUIRE_TLS";
const TRUSTED_PROXY_CIDRS: &str = "OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_TRUSTED_PROXY_CIDRS";
/// Proxies that can be named: a list has one for each load balancer.
const MAX_PROXIES: usize = 64;

/// Whether the request asks for the credential proxy, which it may only where there is a network to put it in.
pub(super) fn is_asked_for(request: &CreateSandboxRequest, runtime: &Capabilities) -> Result<bool, Refusal> {
    if !request.credential_proxy.as_ref().is_some_and(|proxy| proxy.enabled) {
        return Ok(false);
    }
    if request.network_policy.is_none() {
        return Err(Refusal::invalid("credentialProxy", "needs a networkPolicy"));
    }
    if runtime.network == NO_NETWORK {
        let problem = "sandboxes have no way out on this machine, so there is nothing to put credentials into; \
                       `osb doctor` says what is missing; leave it out";
        return Err(Refusal::unsupported("credentialProxy", problem));
    }
    Ok(true)
}

/// Takes the settings out of an environment: they are for the proxy, not for the sandbox.
pub(super) fn demands(env: &mut BTreeMap<String, Option<String>>, has_proxy: bool) -> Result<VaultDemands, Refusal> {
    let mut demands = VaultDemands::default();
    let settings = env.extract_if(PREFIX.to_owned().., |name, _| name.starts_with(PREFIX));
    for (name, value) in settings {
        let field = format!("env.{name}");
        let Some(value) = value else { continue };
        let known = [REQUIRE_SCOPED_MATCH, REQUIRE_TLS, TRUSTED_PROXY_CIDRS];
        if !known.contains(&name.as_str()) {
            let problem = "is a setting of the published sidecar, which does not exist here; use networkPolicy";
            return Err(Refusal::unsupported(field, problem));
        }
        if !has_proxy {
            return Err(Refusal::bad(
                field,
                "is about the credential vault; set credentialProxy.enabled, or leave it out",
            ));
        }
        match name.as_str() {
            REQUIRE_SCOPED_MATCH => demands.scoped_match = switch(&field, &value)?,
            REQUIRE_TLS => demands.require_tls = switch(&field, &value)?,
            _ => demands.trusted_proxies = networks(&field, &value)?,
        }
    }
    Ok(demands)
}

/// On or off, by the published words.
fn switch(field: &str, value: &str) -> Result<bool, Refusal> {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "y" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "n" | "off" => Ok(false),
        _ => Err(Refusal::bad(field, "must be true or false")),
    }
}

fn networks(field: &str, value: &str) -> Result<Vec<Cidr>, Refusal> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let networks: Result<Vec<Cidr>, _> = parts.map(str::parse).collect();
    let networks = networks.map_err(|error| Refusal::bad(field, error.to_string()))?;
    if networks.len() > MAX_PROXIES {
        return Err(Refusal::bad(field, format!("at most {MAX_PROXIES} networks can be named")));
    }
    Ok(networks)
}
