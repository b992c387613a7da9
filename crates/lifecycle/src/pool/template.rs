//! What the `template` of a pool means here: a pod template as the published clients send it, or the fields of a create.

use std::collections::BTreeMap;

use protocol::lifecycle::{CreateSandboxRequest, ImageSpec};
use serde_json::{Map, Value};

use super::{Template, unknown};
use crate::admit::Refusal;

/// Fields of a create that the template of a pool may have: what is set at a claim, and what the image is.
const OWN: &[&str] =
    &["image", "platform", "entrypoint", "env", "resourceLimits", "metadata", "lifecycle", "networkPolicy"];
/// Kubernetes' words for limits that have another name here.
const RENAMED: &[(&str, &str)] = &[("ephemeral-storage", "disk")];

/// What a sandbox of a pool with this template asks for. `runtime_class` is what programs run on here.
///
/// # Errors
/// A [`Refusal`] that names the first field that this runtime does not know.
pub fn template(template: &Template, runtime_class: &str) -> Result<CreateSandboxRequest, Refusal> {
    if template.contains_key("spec") {
        return pod(template, runtime_class);
    }
    if let Some(field) = template.keys().find(|field| !OWN.contains(&field.as_str())) {
        let problem =
            format!("is not a field of a pool's template; it has {}, or spec as a pod template", OWN.join(", "));
        return Err(unknown(format!("template.{field}"), &problem));
    }
    let request: CreateSandboxRequest = serde_json::from_value(Value::Object(template.clone()))
        .map_err(|error| Refusal::invalid("template", error.to_string()))?;
    if request.image.as_ref().is_none_or(|image| image.uri.trim().is_empty()) {
        return Err(Refusal::invalid("template.image.uri", "is required; name an image, for example \"host\""));
    }
    if request.image.as_ref().is_some_and(|image| image.auth.is_some()) {
        let problem = "a login is never stored; pull the image first, by POST /v1/images/pull";
        return Err(unknown("template.image.auth", problem));
    }
    Ok(request)
}

fn pod(template: &Template, runtime_class: &str) -> Result<CreateSandboxRequest, Refusal> {
    only(template, "template", &["metadata", "spec", "apiVersion", "kind"])?;
    let metadata = match object(template, "template", "metadata")? {
        Some(metadata) => {
            only(metadata, "template.metadata", &["labels"])?;
            texts(metadata, "template.metadata", "labels")?
        }
        None => None,
    };
    let spec = object(template, "template", "spec")?.ok_or_else(|| Refusal::invalid("template.spec", "is required"))?;
    only(spec, "template.spec", &["containers", "runtimeClassName", "restartPolicy", "automountServiceAccountToken"])?;
    is(spec, "template.spec", "restartPolicy", &Value::from("Never"))?;
    is(spec, "template.spec", "automountServiceAccountToken", &Value::from(false))?;
    if let Some(class) = text(spec, "template.spec", "runtimeClassName")?
        && !class.is_empty()
        && class != runtime_class
    {
        let problem = format!("sandboxes of this server run on {runtime_class}, not on \"{class}\"; leave it out");
        return Err(unknown("template.spec.runtimeClassName", &problem));
    }
    let containers = spec.get("containers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let [Value::Object(container)] = containers else {
        return Err(Refusal::invalid("template.spec.containers", "must be one container: a sandbox has one"));
    };
    let at = "template.spec.containers.0";
    only(container, at, &["name", "image", "imagePullPolicy", "command", "args", "env", "resources"])?;
    is(container, at, "imagePullPolicy", &Value::from("IfNotPresent"))?;
    let image = text(container, at, "image")?.filter(|image| !image.trim().is_empty());
    let image = image.ok_or_else(|| Refusal::invalid(format!("{at}.image"), "is required"))?;
    let mut entrypoint = words(container, at, "command")?;
    entrypoint.extend(words(container, at, "args")?);
    Ok(CreateSandboxRequest {
        image: Some(ImageSpec { uri: image, auth: None }),
        entrypoint: (!entrypoint.is_empty()).then_some(entrypoint),
        env: Some(variables(container, at)?),
        resource_limits: Some(limits(container, at)?),
        metadata,
        ..CreateSandboxRequest::default()
    })
}

fn only(object: &Map<String, Value>, at: &str, known: &[&str]) -> Result<(), Refusal> {
    match object.iter().find(|(field, value)| !known.contains(&field.as_str()) && !value.is_null()) {
        Some((field, _)) => {
            let problem =
                format!("means nothing to the sandboxes of this server; here are known: {}", known.join(", "));
            Err(unknown(format!("{at}.{field}"), &problem))
        }
        None => Ok(()),
    }
}

/// Accepts of a field only what happens anyway.
fn is(of: &Map<String, Value>, at: &str, name: &str, value: &Value) -> Result<(), Refusal> {
    match of.get(name) {
        Some(other) if other != value && !other.is_null() => {
            Err(unknown(format!("{at}.{name}"), &format!("can only be {value} here; leave it out")))
        }
        _ => Ok(()),
    }
}

fn object<'a>(of: &'a Map<String, Value>, at: &str, name: &str) -> Result<Option<&'a Map<String, Value>>, Refusal> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(inner)) => Ok(Some(inner)),
        Some(_) => Err(Refusal::invalid(format!("{at}.{name}"), "must be an object")),
    }
}

fn text(of: &Map<String, Value>, at: &str, name: &str) -> Result<Option<String>, Refusal> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Refusal::invalid(format!("{at}.{name}"), "must be a string")),
    }
}

fn words(of: &Map<String, Value>, at: &str, name: &str) -> Result<Vec<String>, Refusal> {
    let wrong = || Refusal::invalid(format!("{at}.{name}"), "must be a list of strings");
    match of.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

fn texts(of: &Map<String, Value>, at: &str, name: &str) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let Some(inner) = object(of, at, name)? else { return Ok(None) };
    let wrong = |key: &str| Refusal::invalid(format!("{at}.{name}.{key}"), "must be a string");
    let pair = |(key, value): (&String, &Value)| {
        value.as_str().map(|value| (key.clone(), value.to_owned())).ok_or_else(|| wrong(key))
    };
    inner.iter().map(pair).collect::<Result<_, _>>().map(Some)
}

fn variables(container: &Map<String, Value>, at: &str) -> Result<BTreeMap<String, Option<String>>, Refusal> {
    let mut variables = BTreeMap::new();
    for (place, item) in container.get("env").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let at = format!("{at}.env.{place}");
        let Value::Object(item) = item else { return Err(Refusal::invalid(at, "must be an object")) };
        only(item, &at, &["name", "value"])?;
        let name = text(item, &at, "name")?.ok_or_else(|| Refusal::invalid(format!("{at}.name"), "is required"))?;
        variables.insert(name, Some(text(item, &at, "value")?.unwrap_or_default()));
    }
    Ok(variables)
}

fn limits(container: &Map<String, Value>, at: &str) -> Result<BTreeMap<String, String>, Refusal> {
    let at = format!("{at}.resources");
    let Some(resources) = object(container, at.trim_end_matches(".resources"), "resources")? else {
        return Ok(BTreeMap::new());
    };
    only(resources, &at, &["limits", "requests"])?;
    if let Some(requests) = object(resources, &at, "requests")?
        && !requests.is_empty()
        && resources.get("limits").and_then(Value::as_object) != Some(requests)
    {
        let problem = "nothing is reserved for a sandbox here; leave them out, or ask for the same as limits";
        return Err(unknown(format!("{at}.requests"), problem));
    }
    let Some(asked) = object(resources, &at, "limits")? else { return Ok(BTreeMap::new()) };
    let mut limits = BTreeMap::new();
    for (name, value) in asked {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(Refusal::invalid(format!("{at}.limits.{name}"), "must be a quantity")),
        };
        let ours = RENAMED.iter().find(|(theirs, _)| theirs == name).map_or(name.as_str(), |(_, ours)| ours);
        limits.insert(ours.to_owned(), value);
    }
    Ok(limits)
}
