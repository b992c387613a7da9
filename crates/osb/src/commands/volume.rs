//! `osb volume`, and `-v` of the commands that make sandboxes.

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use protocol::lifecycle::{CreateVolumeRequest, HostVolume, NamedVolume, Volume, VolumeInfo};
use serde_json::{Value, json};

use super::{Context, Outcome, Rows, to_value};
use crate::failure::Failure;
use crate::output::table;
use crate::units;

#[cfg(test)]
mod tests;

/// The commands about volumes.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume
    #[command(after_help = "Example:\n  osb volume create data --size 1Gi\n  osb sandbox create -v data:/data")]
    Create {
        /// Its name: a-z, 0-9 and `-`
        name: String,
        /// Most that it may hold, for example 1Gi
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
    },
    /// List volumes and who has them
    #[command(visible_alias = "ls")]
    List,
    /// Show one volume
    Get {
        /// The volume
        name: String,
    },
    /// Remove volumes that no sandbox has, with all that is in them
    Rm {
        /// The volumes
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &VolumeCommand) -> Outcome {
    let client = ctx.client()?;
    match command {
        VolumeCommand::Create { name, size } => {
            let request = CreateVolumeRequest { name: name.clone(), storage: size.clone() };
            let made = client.create_volume(&request).await?;
            ctx.printer.document(&to_value(&made), || format!("volume {name} is there"))?;
        }
        VolumeCommand::List => {
            let volumes = client.volumes().await?;
            ctx.printer.document(&json!({ "items": to_value(&volumes) }), || {
                let now = jiff::Timestamp::now();
                let rows = volumes.iter().map(|volume| row(volume, now)).collect();
                table::rows(&["name", "size", "made", "sandboxes"], rows)
            })?;
        }
        VolumeCommand::Get { name } => {
            let volume = client.volume(name).await?;
            ctx.printer.document(&to_value(&volume), || detail(&volume))?;
        }
        VolumeCommand::Rm { names } => {
            let mut rows = Rows::default();
            for name in names {
                rows.push("name", name, client.remove_volume(name).await.map(|()| "removed"));
            }
            return rows.finish(&ctx.printer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn size(volume: &VolumeInfo) -> String {
    volume.size_bytes.map_or_else(|| "no limit".to_owned(), units::size)
}

fn row(volume: &VolumeInfo, now: jiff::Timestamp) -> Vec<String> {
    let made = units::relative(&volume.created_at, now);
    vec![volume.name.clone(), size(volume), made, volume.sandboxes.len().to_string()]
}

fn detail(volume: &VolumeInfo) -> String {
    let goes = volume.delete_on_sandbox_termination.then(|| "with the sandbox that made it".to_owned());
    table::facts(&[
        ("name", Some(volume.name.clone())),
        ("size", Some(size(volume))),
        ("made", Some(volume.created_at.clone())),
        ("made by", volume.created_by.clone()),
        ("goes", goes),
        ("sandboxes", (!volume.sandboxes.is_empty()).then(|| volume.sandboxes.join(", "))),
    ])
}

/// A volume as a command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted.
    source: Source,
    /// Where, inside.
    target: String,
    /// Whether it can only be read.
    read_only: bool,
}

/// What a command line mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// A path of the machine, absolute.
    Host(String),
    /// A named volume.
    Named(String),
}

/// Reads `NAME:/PATH[:ro]` or `/HOST/PATH:/PATH[:ro]`. A path that begins with `.` is of the present directory.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_mount(text: &str) -> Result<Mount, String> {
    let wrong =
        || format!("`{text}` is no volume; write NAME:/PATH or /HOST/PATH:/PATH, and :ro behind it to only read");
    let (rest, read_only) = match text.rsplit_once(':') {
        Some((rest, "ro")) => (rest, true),
        Some((rest, "rw")) => (rest, false),
        _ => (text, false),
    };
    let (source, target) = rest.rsplit_once(':').ok_or_else(wrong)?;
    if source.is_empty() || !target.starts_with('/') {
        return Err(wrong());
    }
    let source = if source.starts_with(['/', '.']) {
        let path = std::path::absolute(source).map_err(|error| format!("`{source}`: {error}"))?;
        // Dots and links of this machine are resolved here, where they mean something.
        let path = if source.starts_with('/') { path } else { path.canonicalize().unwrap_or(path) };
        let path = path.to_str().ok_or_else(|| format!("`{source}`: is no text"))?.to_owned();
        Source::Host(if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path })
    } else {
        Source::Named(source.to_owned())
    };
    Ok(Mount { source, target: target.to_owned(), read_only })
}

/// The volumes of a create request.
pub fn requested(mounts: &[Mount]) -> Vec<Value> {
    let one = |(index, mount): (usize, &Mount)| {
        let (host, pvc) = match &mount.source {
            Source::Host(path) => (Some(HostVolume { path: path.clone() }), None),
            Source::Named(name) => (None, Some(NamedVolume { claim_name: name.clone(), ..NamedVolume::default() })),
        };
        to_value(&Volume {
            name: format!("volume-{index}"),
            host,
            pvc,
            mount_path: mount.target.clone(),
            read_only: Some(mount.read_only),
            ..Volume::default()
        })
    };
    mounts.iter().enumerate().map(one).collect()
}

/// The paths of this machine that a command without a server mounts.
///
/// # Errors
/// A path that is not there, which would be made otherwise, and a named volume, which needs a server.
pub fn own_paths(mounts: &[Mount]) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    for mount in mounts {
        match &mount.source {
            Source::Host(path) if Path::new(path).exists() => paths.push(path.clone()),
            Source::Host(path) => {
                return Err(Failure::usage(format!("-v {path}: there is no such file or directory")));
            }
            Source::Named(name) => {
                let message = format!(
                    "-v {name}: a named volume outlives this command and needs a server, and none answers here"
                );
                let hint = "start one with `osb server`, or write ./NAME for a directory";
                return Err(Failure::usage(message).hint(hint));
            }
        }
    }
    Ok(paths)
}
