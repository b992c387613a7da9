//! Loads the published OpenAPI documents and finds the operation of a request.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// Which of the published APIs an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// The control plane.
    Lifecycle,
    /// The daemon inside a sandbox, reached through the port proxy.
    Execd,
    /// The egress side of a sandbox, reached through the port proxy.
    Egress,
}

impl Api {
    /// The name in reports and errata.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Execd => "execd",
            Self::Egress => "egress",
        }
    }
}

/// Port of the daemon inside a sandbox.
const EXECD_PORT: &str = "44772";
/// Port of the egress API of a sandbox.
const EGRESS_PORT: &str = "18080";

/// One documented operation.
pub struct Operation {
    /// Where it is documented.
    pub api: Api,
    /// Upper-case method, blank, path template: `GET /v1/sandboxes/{sandbox_id}`.
    pub name: String,
    /// Schema validator of a JSON request body.
    pub request: Option<jsonschema::Validator>,
    /// Documented answers by status; `default` is kept as status 0.
    pub responses: BTreeMap<u16, Response>,
    segments: Vec<Segment>,
    method: String,
}

/// One documented answer.
#[derive(Default)]
pub struct Response {
    /// Media type to the validator of its body, if the schema says anything.
    pub content: BTreeMap<String, Option<jsonschema::Validator>>,
    /// Headers the document names.
    pub headers: Vec<String>,
}

enum Segment {
    Fixed(String),
    Variable,
    /// A trailing variable that swallows slashes (`{full_path}`).
    Rest,
}

/// The three documents together.
pub struct Contract {
    operations: Vec<Operation>,
}

impl Contract {
    /// Reads `lifecycle`, `execd` and `egress` from `directory` (`specs/published`).
    ///
    /// # Errors
    /// A document is missing, is not JSON, or holds a schema that does not compile.
    pub fn load(directory: &Path) -> Result<Self> {
        let mut operations = Vec::new();
        for api in [Api::Lifecycle, Api::Execd, Api::Egress] {
            let path = directory.join(format!("{}.openapi.json", api.name()));
            let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let document: Value = serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))?;
            read_paths(api, &document, &mut operations).with_context(|| format!("compile {}", path.display()))?;
        }
        Ok(Self { operations })
    }

    /// Every operation, in the order of the documents.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter()
    }

    /// The operation that `method` and `path` (no query) ask for, seen from the
    /// server's root. Calls through the port proxy are resolved to the API that
    /// lives behind ports 44772 and 18080.
    #[must_use]
    pub fn find(&self, method: &str, path: &str) -> Option<&Operation> {
        if let Some((port, inner)) = proxied(path) {
            let api = match port {
                EXECD_PORT => Some(Api::Execd),
                EGRESS_PORT => Some(Api::Egress),
                _ => None,
            };
            if let Some(found) = api.and_then(|api| self.match_in(api, method, inner)) {
                return Some(found);
            }
        }
        self.match_in(Api::Lifecycle, method, path)
            .or_else(|| self.match_in(Api::Lifecycle, method, &format!("/v1{path}")))
    }

    fn match_in(&self, api: Api, method: &str, path: &str) -> Option<&Operation> {
        let wanted: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        self.operations
            .iter()
            .filter(|o| o.api == api && o.method == method && matches(&o.segments, &wanted))
            // The template with the most fixed segments is the specific one.
            .max_by_key(|o| o.segments.iter().filter(|s| matches!(s, Segment::Fixed(_))).count())
    }
}

/// Splits `/v1/sandboxes/{id}/proxy/{port}/{rest}` into port and `/{rest}`.
fn proxied(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let rest = path.strip_prefix("/sandboxes/")?;
    let (_, rest) = rest.split_once("/proxy/")?;
    let (port, _) = rest.split_once('/').unwrap_or((rest, ""));
    let inner = &rest[port.len()..];
    Some((port, if inner.is_empty() { "/" } else { inner }))
}

fn matches(template: &[Segment], path: &[&str]) -> bool {
    match (template, path) {
        ([Segment::Rest], [_, ..]) => true,
        ([Segment::Fixed(fixed), more @ ..], [head, tail @ ..]) => fixed == head && matches(more, tail),
        ([Segment::Variable, more @ ..], [head, tail @ ..]) => !head.is_empty() && matches(more, tail),
        ([], []) => true,
        _ => false,
    }
}

fn read_paths(api: Api, document: &Value, into: &mut Vec<Operation>) -> Result<()> {
    let paths = document["paths"].as_object().context("no `paths`")?;
    for (template, methods) in paths {
        for (method, detail) in methods.as_object().context("path is not an object")? {
            if !["get", "post", "put", "patch", "delete"].contains(&method.as_str()) {
                continue;
            }
            into.push(
                read_operation(api, document, template, method, detail)
                    .with_context(|| format!("{method} {template}"))?,
            );
        }
    }
    Ok(())
}

fn read_operation(api: Api, document: &Value, template: &str, method: &str, detail: &Value) -> Result<Operation> {
    let request = match detail.pointer("/requestBody/content/application~1json/schema") {
        Some(schema) => validator(document, schema)?,
        None => None,
    };
    let mut responses = BTreeMap::new();
    for (status, response) in detail["responses"].as_object().context("no `responses`")? {
        let status = if status == "default" { 0 } else { status.parse()? };
        responses.insert(status, read_response(document, response)?);
    }
    let method = method.to_uppercase();
    Ok(Operation {
        api,
        name: format!("{method} {template}"),
        request,
        responses,
        segments: template.trim_start_matches('/').split('/').map(segment).collect(),
        method,
    })
}

fn segment(text: &str) -> Segment {
    match text {
        "{full_path}" => Segment::Rest,
        _ if text.starts_with('{') => Segment::Variable,
        _ => Segment::Fixed(text.to_owned()),
    }
}

fn read_response(document: &Value, response: &Value) -> Result<Response> {
    let response = match response["$ref"].as_str() {
        Some(reference) => document
            .pointer(reference.trim_start_matches('#'))
            .with_context(|| format!("unknown reference {reference}"))?,
        None => response,
    };
    let mut read = Response::default();
    if let Some(content) = response["content"].as_object() {
        for (media, detail) in content {
            let schema = &detail["schema"];
            let compiled = if schema.is_null() { None } else { validator(document, schema)? };
            read.content.insert(media.clone(), compiled);
        }
    }
    if let Some(headers) = response["headers"].as_object() {
        read.headers = headers.keys().cloned().collect();
    }
    Ok(read)
}

/// Compiles `schema` with the document's components beside it, so that its
/// references resolve; an empty schema says nothing and compiles to nothing.
fn validator(document: &Value, schema: &Value) -> Result<Option<jsonschema::Validator>> {
    let mut root: Map<String, Value> = schema.as_object().cloned().unwrap_or_default();
    if root.is_empty() {
        return Ok(None);
    }
    root.insert("components".into(), document["components"].clone());
    root.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    let compiled = jsonschema::options()
        .should_validate_formats(true)
        .build(&Value::Object(root))
        .map_err(|error| anyhow::anyhow!("schema: {error}"))?;
    Ok(Some(compiled))
}
