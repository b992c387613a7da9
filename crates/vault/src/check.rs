//! From what a client wrote to credentials and bindings that mean something, naming the field that does not.

use protocol::vault as wire;
use secrecy::{ExposeSecret, SecretString};

use crate::binding::{Auth, Binding, Header, Substitution, Surface};
use crate::host::HostPattern;
use crate::path::PathPattern;
use crate::select::Scheme;
use crate::vault::MAX_VALUE_BYTES;
use crate::{Options, Refused, header};

/// Longest name of a credential or a binding.
const MAX_NAME_BYTES: usize = 256;
/// Most hosts, paths, methods, headers or substitutions of one binding: bindings are compared with each other.
const MAX_PARTS: usize = 32;
/// Longest placeholder: as much of a body is held back while it could be one.
const MAX_PLACEHOLDER_BYTES: usize = 256;
/// What is matched where no methods are named, as published; `HEAD` comes with `GET`.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
/// What is matched where no paths are named.
const ALL_PATHS: &str = "/*";

type Checked<T> = Result<T, Refused>;

/// Refuses fields that nobody knows.
pub(crate) fn known(unknown: &wire::Unknown, field: &str) -> Checked<()> {
    match unknown.keys().next() {
        Some(name) if field.is_empty() => Err(Refused::field(name, "is unknown here")),
        Some(name) => Err(Refused::field(format!("{field}.{name}"), "is unknown here")),
        None => Ok(()),
    }
}

/// Checks the name of a credential or a binding.
pub(crate) fn name(text: Option<&str>, field: &str) -> Checked<String> {
    let text = text.unwrap_or_default();
    if text.is_empty() || text.trim() != text || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
        let reason = format!("must be 1 to {MAX_NAME_BYTES} bytes, without control characters and spaces around it");
        return Err(Refused::field(field, reason));
    }
    Ok(text.to_owned())
}

/// Checks a credential: its name and its value.
pub(crate) fn credential(wire: &wire::Credential, field: &str) -> Checked<(String, SecretString)> {
    known(&wire.unknown, field)?;
    let name = name(wire.name.as_deref(), &format!("{field}.name"))?;
    let source = wire.source.as_ref().ok_or_else(|| Refused::field(format!("{field}.source"), "is missing"))?;
    known(&source.unknown, &format!("{field}.source"))?;
    if source.kind.as_deref().is_some_and(|kind| kind != "inline") {
        return Err(Refused::field(format!("{field}.source.type"), "is unknown; use inline"));
    }
    let value = source.value.as_ref().filter(|value| !value.expose_secret().is_empty());
    let value = value.ok_or_else(|| Refused::field(format!("{field}.source.value"), "is missing or empty"))?;
    if value.expose_secret().len() > MAX_VALUE_BYTES {
        return Err(Refused::field(format!("{field}.source.value"), format!("is longer than {MAX_VALUE_BYTES} bytes")));
    }
    Ok((name, value.clone()))
}

/// Checks a binding, but not whether its credentials exist and its hosts are covered.
pub(crate) fn binding(wire: &wire::Binding, field: &str, options: &Options) -> Checked<Binding> {
    known(&wire.unknown, field)?;
    let name = name(wire.name.as_deref(), &format!("{field}.name"))?;
    let within = format!("{field}.match");
    let matches = wire.matches.as_ref().ok_or_else(|| Refused::field(&within, "is missing"))?;
    known(&matches.unknown, &within)?;
    if options.require_scoped_match {
        is_scoped(matches, &within)?;
    }
    let all_paths = [ALL_PATHS.to_owned()];
    let methods = METHODS.map(str::to_owned);
    let schemes = matches.schemes.as_deref().filter(|schemes| !schemes.is_empty());
    let schemes = each(schemes.unwrap_or(&["https".to_owned()]), &within, "schemes", |text| scheme(text, options))?;
    let hosts = each(&matches.hosts, &within, "hosts", HostPattern::parse)?;
    if hosts.is_empty() {
        return Err(Refused::field(format!("{within}.hosts"), "is empty"));
    }
    let named = matches.methods.as_deref().filter(|methods| !methods.is_empty());
    let methods = each(named.unwrap_or(&methods), &within, "methods", method)?;
    let named = matches.paths.as_deref().filter(|paths| !paths.is_empty());
    let paths = each(named.unwrap_or(&all_paths), &within, "paths", PathPattern::parse)?;
    let ports = ports(matches.ports.as_deref().unwrap_or_default(), &within, options)?;

    let within = format!("{field}.auth");
    let auth = wire.auth.as_ref().ok_or_else(|| Refused::field(&within, "is missing"))?;
    let substitutions = substitutions(auth.substitutions.as_deref().unwrap_or_default(), &within)?;
    let auth = self::auth(auth, &within)?;
    Ok(Binding { name, schemes, ports, hosts, methods, paths, auth, substitutions })
}

/// Each of a list, once.
fn each<T: PartialEq>(
    texts: &[String],
    within: &str,
    list: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Checked<Vec<T>> {
    at_most(texts.len(), &format!("{within}.{list}"))?;
    let mut parsed = Vec::with_capacity(texts.len());
    for (at, text) in texts.iter().enumerate() {
        let one = parse(text).map_err(|reason| Refused::field(format!("{within}.{list}[{at}]"), reason))?;
        if !parsed.contains(&one) {
            parsed.push(one);
        }
    }
    Ok(parsed)
}

fn at_most(count: usize, field: &str) -> Checked<()> {
    if count > MAX_PARTS {
        return Err(Refused::field(field, format!("{count} are more than {MAX_PARTS}")));
    }
    Ok(())
}

fn is_scoped(matches: &wire::Match, within: &str) -> Checked<()> {
    if matches.methods.as_ref().is_none_or(Vec::is_empty) {
        return Err(Refused::field(format!("{within}.methods"), "must be named here"));
    }
    let paths = matches.paths.as_deref().unwrap_or_default();
    if paths.is_empty() {
        return Err(Refused::field(format!("{within}.paths"), "must be named here"));
    }
    match paths.iter().position(|path| path == ALL_PATHS) {
        Some(at) => Err(Refused::field(format!("{within}.paths[{at}]"), "all paths are too many here")),
        None => Ok(()),
    }
}

fn scheme(text: &str, options: &Options) -> Result<Scheme, String> {
    match Scheme::parse(&text.to_ascii_lowercase()) {
        Some(Scheme::Http) if !options.allow_http => {
            Err("http sends credentials in the clear, which this server's operator does not allow".to_owned())
        }
        Some(scheme) => Ok(scheme),
        None => Err(format!("{text:?} is unknown; use https")),
    }
}

fn method(text: &str) -> Result<String, String> {
    let method = text.to_ascii_uppercase();
    match method.as_str() {
        // One is a tunnel; the other has the server send back what it was given.
        "CONNECT" | "TRACE" => Err(format!("{method} cannot be given credentials")),
        _ if http::Method::from_bytes(method.as_bytes()).is_ok() => Ok(method),
        _ => Err(format!("{text:?} is no method")),
    }
}

/// The published ports say nothing, as published: the scheme does.
fn ports(wire: &[u32], within: &str, options: &Options) -> Checked<Vec<u16>> {
    at_most(wire.len(), &format!("{within}.ports"))?;
    let mut ports = Vec::new();
    for (at, port) in wire.iter().enumerate() {
        let known = |port: &u16| matches!(port, 80 | 443) || options.extra_ports.contains(port);
        let port = u16::try_from(*port).ok().filter(known);
        ports.push(port.ok_or_else(|| Refused::field(format!("{within}.ports[{at}]"), "must be 80 or 443"))?);
    }
    ports.sort_unstable();
    ports.dedup();
    if ports.iter().all(|port| matches!(port, 80 | 443)) {
        ports.clear();
    }
    Ok(ports)
}

fn auth(wire: &wire::Auth, field: &str) -> Checked<Auth> {
    known(&wire.unknown, field)?;
    let kind = wire.kind.as_deref().unwrap_or_default();
    let absent = |is_there: bool, name: &str| match is_there {
        true => Err(Refused::field(format!("{field}.{name}"), format!("does not belong to {kind}"))),
        false => Ok(()),
    };
    let credential = || name(wire.credential.as_deref(), &format!("{field}.credential"));
    if !matches!(kind, "apiKey") {
        absent(wire.name.is_some(), "name")?;
    }
    if !matches!(kind, "customHeaders") {
        absent(wire.headers.is_some(), "headers")?;
    }
    match kind {
        "bearer" => Ok(Auth::Bearer { credential: credential()? }),
        "basic" => Ok(Auth::Basic { credential: credential()? }),
        "apiKey" => {
            let name = header_name(wire.name.as_deref(), &format!("{field}.name"))?;
            Ok(Auth::ApiKey(Header { name, credential: credential()? }))
        }
        "customHeaders" => {
            absent(wire.credential.is_some(), "credential")?;
            Ok(Auth::CustomHeaders(headers(wire.headers.as_deref().unwrap_or_default(), &format!("{field}.headers"))?))
        }
        "passthrough" => {
            absent(wire.credential.is_some(), "credential")?;
            Ok(Auth::Passthrough)
        }
        _ => {
            let reason = "is missing or unknown; use bearer, basic, apiKey, customHeaders or passthrough";
            Err(Refused::field(format!("{field}.type"), reason))
        }
    }
}

fn header_name(text: Option<&str>, field: &str) -> Checked<String> {
    header::canonical(text.unwrap_or_default()).map_err(|reason| Refused::field(field, reason))
}

fn headers(wire: &[wire::HeaderEntry], field: &str) -> Checked<Vec<Header>> {
    if wire.is_empty() {
        return Err(Refused::field(field, "is empty"));
    }
    at_most(wire.len(), field)?;
    let mut headers: Vec<Header> = Vec::new();
    for (at, entry) in wire.iter().enumerate() {
        let field = format!("{field}[{at}]");
        known(&entry.unknown, &field)?;
        let name = header_name(entry.name.as_deref(), &format!("{field}.name"))?;
        if headers.iter().any(|header| header.name == name) {
            return Err(Refused::field(format!("{field}.name"), "is there twice"));
        }
        let credential = self::name(entry.credential.as_deref(), &format!("{field}.credential"))?;
        headers.push(Header { name, credential });
    }
    Ok(headers)
}

fn substitutions(wire: &[wire::Substitution], within: &str) -> Checked<Vec<Substitution>> {
    let list = format!("{within}.substitutions");
    at_most(wire.len(), &list)?;
    let mut checked: Vec<Substitution> = Vec::new();
    for (at, wire) in wire.iter().enumerate() {
        let field = format!("{list}[{at}]");
        known(&wire.unknown, &field)?;
        let credential = name(wire.credential.as_deref(), &format!("{field}.credential"))?;
        let placeholder = wire.placeholder.clone().unwrap_or_default();
        if placeholder.is_empty() || placeholder.len() > MAX_PLACEHOLDER_BYTES {
            let reason = format!("must be 1 to {MAX_PLACEHOLDER_BYTES} bytes");
            return Err(Refused::field(format!("{field}.placeholder"), reason));
        }
        let parse = |text: &str| Surface::parse(text).ok_or("is unknown; use path, query, header or body".to_owned());
        let surfaces = each(&wire.surfaces, &field, "in", parse)?;
        if surfaces.is_empty() {
            return Err(Refused::field(format!("{field}.in"), "is empty"));
        }
        let is_taken = |other: &Substitution| {
            other.placeholder == placeholder && other.surfaces.iter().any(|surface| surfaces.contains(surface))
        };
        if checked.iter().any(is_taken) {
            return Err(Refused::field(format!("{field}.placeholder"), "is there twice on one surface"));
        }
        checked.push(Substitution { credential, placeholder, surfaces });
    }
    Ok(checked)
}

#[cfg(test)]
mod tests;
