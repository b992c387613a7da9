//! `osb vault`: credentials that a sandbox uses without seeing them.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use protocol::error::code;
use protocol::vault::{BindingMetadata, State};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use super::{Context, Outcome, to_value};
use crate::failure::Failure;
use crate::output::table;

mod file;
mod value;

pub use file::VaultFile;
use value::Source;

/// The commands about vaults.
#[derive(Subcommand, Debug)]
pub enum VaultCommand {
    /// Show which credentials a sandbox has and where they are used; values are shown to nobody
    #[command(after_help = "Example:\n  osb vault show ID -o json")]
    Show {
        /// The sandbox
        id: String,
    },
    /// Put a credential into requests of a sandbox to some hosts, or change it
    #[command(
        after_help = "The value is read from the environment, a file, or the terminal without showing it; never from an argument, which\n\
everybody on this machine can read. The sandbox must have been made for it (`osb sandbox create --credential-proxy --allow HOST`),\n\
and its policy must allow the hosts.\n\nExamples:\n  osb vault set ID api --host api.example.com --bearer-from-env API_TOKEN\n  \
osb vault set ID packages --host '*.pkg.example.org' --header PRIVATE-TOKEN --value-from token.txt --path '/v1/*'\n  \
osb vault set ID forge --host git.example.org --basic-from-env FORGE_LOGIN     (holds user:password)\n  \
osb vault set ID api --host api.example.com                            (asks for a bearer token)"
    )]
    Set(Box<SetArgs>),
    /// Take credentials and their bindings out of a vault
    #[command(visible_alias = "rm", after_help = "Example:\n  osb vault remove ID api")]
    Remove {
        /// The sandbox
        id: String,
        /// As `osb vault show` lists them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Delete a vault with everything in it
    Clear {
        /// The sandbox
        id: String,
    },
}

/// Arguments of `osb vault set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// The sandbox
    id: String,
    /// Name of the credential, and of the binding that says where it is used
    name: String,
    /// Host that it is for, or `*.` and a name for all below it; may be repeated
    #[arg(long, required = true, value_name = "HOST")]
    host: Vec<String>,
    /// Only requests with this method; may be repeated
    #[arg(long, value_name = "METHOD")]
    method: Vec<String>,
    /// Only requests with this path, or that begin so where it ends in `*`; may be repeated
    #[arg(long, value_name = "PATH")]
    path: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// How a credential is put in, and where its value comes from.
#[derive(Args, Debug)]
struct How {
    /// Send `Authorization: Bearer` with what this variable holds
    #[arg(long, value_name = "VAR", group = "how")]
    bearer_from_env: Option<String>,
    /// Send `Authorization: Bearer` with what this file holds; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "how")]
    bearer_from: Option<String>,
    /// Send `Authorization: Basic` with the user:password that this variable holds
    #[arg(long, value_name = "VAR", group = "how")]
    basic_from_env: Option<String>,
    /// Send `Authorization: Basic` with the user:password that this file holds; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "how")]
    basic_from: Option<String>,
    /// Send this header
    #[arg(long, value_name = "NAME", group = "how")]
    header: Option<String>,
    /// Value of the header: what this variable holds
    #[arg(long, value_name = "VAR", requires = "header", conflicts_with = "value_from")]
    value_from_env: Option<String>,
    /// Value of the header: what this file holds; `-` reads standard input
    #[arg(long, value_name = "FILE", requires = "header")]
    value_from: Option<String>,
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &VaultCommand) -> Outcome {
    match command {
        VaultCommand::Show { id } => {
            let state = ctx.client()?.vault(id).await?;
            let state = state.ok_or_else(|| {
                Failure::new(code::VAULT_NOT_FOUND, format!("sandbox {id} has no credentials"))
                    .hint(format!("`osb vault set {id} NAME --host HOST` adds one"))
            })?;
            ctx.printer.document(&to_value(&state), || shown(&state))?;
        }
        VaultCommand::Set(args) => {
            let state = set(ctx, args).await?;
            ctx.printer.document(&to_value(&state), || shown(&state))?;
        }
        VaultCommand::Remove { id, names } => {
            let state = remove(ctx, id, names).await?;
            ctx.printer.document(&to_value(&state), || shown(&state))?;
        }
        VaultCommand::Clear { id } => {
            ctx.client()?.delete_vault(id).await?;
            ctx.printer
                .document(&json!({ "id": id, "status": "ok" }), || format!("sandbox {id} has no credentials\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(ctx: &Context, args: &SetArgs) -> Result<State, Failure> {
    let client = ctx.client()?;
    // Asked before a person is asked for a secret that would be of no use.
    let before = client.vault(&args.id).await?;
    let (auth, value) = args.how.read(&args.name)?;
    let credential = json!({ "name": args.name, "source": { "type": "inline", "value": value.expose_secret() } });
    let mut matches = json!({ "hosts": args.host });
    for (field, values) in [("methods", &args.method), ("paths", &args.path)] {
        if !values.is_empty() {
            matches[field] = json!(values);
        }
    }
    let binding = json!({ "name": args.name, "match": matches, "auth": auth });
    let Some(before) = before else {
        let request = text(&json!({ "credentials": [credential], "bindings": [binding] }));
        return client.create_vault(&args.id, &request).await.map_err(|failure| explained(failure, &args.id));
    };
    let there = |is: bool| if is { "replace" } else { "add" };
    let has_credential = before.credentials.iter().any(|one| one.name == args.name);
    let has_binding = before.bindings.iter().any(|one| one.name == args.name);
    let request = text(&json!({
        "expectedRevision": before.revision,
        "credentials": { there(has_credential): [credential] },
        "bindings": { there(has_binding): [binding] },
    }));
    client.patch_vault(&args.id, &request).await.map_err(|failure| explained(failure, &args.id))
}

async fn remove(ctx: &Context, id: &str, names: &[String]) -> Result<State, Failure> {
    let client = ctx.client()?;
    let before = client.vault(id).await?.unwrap_or_default();
    let credentials: Vec<&String> =
        names.iter().filter(|name| before.credentials.iter().any(|one| one.name == **name)).collect();
    let bindings: Vec<&String> =
        names.iter().filter(|name| before.bindings.iter().any(|one| one.name == **name)).collect();
    if let Some(missing) = names.iter().find(|name| !credentials.contains(name) && !bindings.contains(name)) {
        return Err(Failure::new(code::VAULT_NOT_FOUND, format!("sandbox {id} has no credential {missing:?}"))
            .hint(format!("`osb vault show {id}` lists them")));
    }
    let request = text(&json!({
        "expectedRevision": before.revision,
        "credentials": { "delete": credentials },
        "bindings": { "delete": bindings },
    }));
    client.patch_vault(id, &request).await
}

fn text(request: &Value) -> SecretString {
    SecretString::from(request.to_string())
}

/// A refusal with what its reader can do.
fn explained(failure: Failure, id: &str) -> Failure {
    match failure.code.as_str() {
        code::VAULT_NOT_READY => {
            failure.hint("`osb sandbox create --credential-proxy --allow HOST` makes one that may have credentials")
        }
        code::VAULT_CONFLICT => failure.hint("somebody else has changed it meanwhile; try again"),
        code::VAULT_INVALID if failure.message.contains("policy") => {
            failure.hint(format!("`osb policy allow {id} HOST:443` opens the way"))
        }
        _ => failure,
    }
}

impl How {
    /// The rule and the value, which is asked for where nobody says where it is.
    fn read(&self, name: &str) -> Result<(Value, SecretString), Failure> {
        let source = |variable: &Option<String>, file: &Option<String>| match (variable, file) {
            (Some(variable), _) => Source::Variable(variable.clone()),
            (None, Some(file)) => Source::File(file.into()),
            (None, None) => Source::Prompt(format!("value of {name}: ")),
        };
        if self.basic_from_env.is_some() || self.basic_from.is_some() {
            let value = source(&self.basic_from_env, &self.basic_from).read()?;
            return Ok((json!({ "type": "basic", "credential": name }), value::basic(&value)?));
        }
        if let Some(header) = &self.header {
            let value = source(&self.value_from_env, &self.value_from).read()?;
            return Ok((json!({ "type": "apiKey", "name": header, "credential": name }), value));
        }
        let value = source(&self.bearer_from_env, &self.bearer_from).read()?;
        Ok((json!({ "type": "bearer", "credential": name }), value))
    }
}

fn shown(state: &State) -> String {
    let row = |binding: &BindingMetadata| {
        let matches = binding.matches.clone().unwrap_or_default();
        let auth = binding.auth.clone().unwrap_or_default();
        let auth = auth.name.map_or(auth.kind, |header| header);
        vec![binding.name.clone(), matches.hosts.join(" "), matches.methods.join(" "), matches.paths.join(" "), auth]
    };
    let mut text = String::new();
    if !state.bindings.is_empty() {
        let rows = state.bindings.iter().map(row).collect();
        text.push_str(&table::rows(&["binding", "hosts", "methods", "paths", "sends"], rows));
    }
    let names: Vec<&str> = state.credentials.iter().map(|one| one.name.as_str()).collect();
    text.push_str(&format!("credentials: {}\n", if names.is_empty() { "none".to_owned() } else { names.join(" ") }));
    text.push_str(&format!("revision: {}\n", state.revision));
    text
}

#[cfg(test)]
mod tests {
    use protocol::vault::{AuthMetadata, CredentialMetadata, MatchMetadata};

    use super::*;

    #[test]
    fn a_vault_is_shown_by_what_it_sends_where() {
        let binding = BindingMetadata {
            name: "api".into(),
            revision: 3,
            matches: Some(MatchMetadata {
                hosts: vec!["api.example.com".into()],
                methods: vec!["GET".into(), "POST".into()],
                paths: vec!["/*".into()],
                ..MatchMetadata::default()
            }),
            auth: Some(AuthMetadata { kind: "apiKey".into(), name: Some("X-Key".into()) }),
        };
        let token = CredentialMetadata { name: "token".into(), source_type: "inline".into(), revision: 1 };
        let state = State { revision: 3, credentials: vec![token], bindings: vec![binding] };
        assert_eq!(
            shown(&state),
            "BINDING  HOSTS            METHODS   PATHS  SENDS\napi      api.example.com  GET POST  /*     X-Key\n\
             credentials: token\nrevision: 3\n"
        );
        assert_eq!(shown(&State::default()), "credentials: none\nrevision: 0\n");
    }
}
