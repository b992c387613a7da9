//! `osb config`: what the client commands assume, and where each value comes from.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::{Context, Outcome};
use crate::output::table;
use crate::settings::Source;
use crate::units::{self, Limit};

/// The commands about configuration.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Show every value and where it comes from; the key is masked
    Show,
}

/// Runs one of the commands.
pub fn run(ctx: &Context, command: &ConfigCommand) -> Outcome {
    let ConfigCommand::Show = command;
    let settings = &ctx.settings;
    let none = Source::Default;
    let key = settings.api_key.as_ref();
    let lifetime = match settings.timeout.value {
        Limit::None => "none".to_owned(),
        Limit::After(time) => units::duration(time.as_secs()),
    };
    let timeout = &settings.request_timeout.value;
    let values: [(&str, Value, &Source); 9] = [
        ("connection.api_key", json!(key.map(|_| "(set)")), key.map_or(&none, |key| &key.source)),
        ("connection.domain", json!(settings.domain.value), &settings.domain.source),
        ("connection.protocol", json!(settings.protocol.value), &settings.protocol.source),
        ("connection.request_timeout", json!(format!("{timeout:?}")), &settings.request_timeout.source),
        ("connection.use_server_proxy", json!(settings.use_server_proxy.value), &settings.use_server_proxy.source),
        ("output.format", json!(settings.format.value.name()), &settings.format.source),
        ("output.color", json!(settings.color.value), &settings.color.source),
        ("defaults.image", json!(settings.image.value), &settings.image.source),
        ("defaults.timeout", json!(lifetime), &settings.timeout.source),
    ];
    let exists = settings.file.exists();
    let document = json!({
        "file": settings.file.display().to_string(),
        "file_exists": exists,
        "values": values
            .iter()
            .map(|(name, value, source)| ((*name).to_owned(), json!({ "value": value, "source": source.to_string() })))
            .collect::<Map<_, _>>(),
        "warnings": settings.warnings,
    });
    ctx.printer.document(&document, || {
        let text = |value: &Value| match value {
            Value::Null => "(not set)".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let rows = values.iter().map(|(name, value, source)| vec![(*name).to_owned(), text(value), source.to_string()]);
        let absent = if exists { "" } else { " (does not exist)" };
        format!(
            "{}file: {}{absent}\n",
            table::rows(&["key", "value", "source"], rows.collect()),
            settings.file.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
