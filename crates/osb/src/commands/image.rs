//! `osb image`: the images of a server.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use protocol::lifecycle::{ImageAuth, ImageInfo};
use serde_json::json;

use super::transfer::pieces;
use super::{Context, Outcome, Progress, Rows, to_value};
use crate::failure::Failure;
use crate::output::table;
use crate::units;

/// Longest password that is read from standard input, in bytes: tokens of clouds are a few kilobytes.
const MAX_PASSWORD_BYTES: u64 = 64 * 1024;
/// Digits of an image's id that the table shows.
const SHORT_ID: usize = 12;

/// The commands about images.
#[derive(Subcommand, Debug)]
pub enum ImageCommand {
    /// Fetch an image from its registry
    #[command(
        after_help = "Examples:\n  osb image pull alpine\n  osb image pull registry.example.com/team/app:1 --username me --password - < token"
    )]
    Pull {
        /// Name of the image
        name: String,
        /// User name for the registry
        #[arg(long, requires = "password")]
        username: Option<String>,
        /// Password for the registry; `-` reads it from standard input
        #[arg(long, requires = "username")]
        password: Option<String>,
        /// Operating system and architecture, for example linux/arm64
        #[arg(long, value_name = "OS/ARCH", value_parser = platform)]
        platform: Option<String>,
    },
    /// Take in an archive: a root filesystem, an OCI layout or `docker save`
    #[command(after_help = "Example:\n  docker save app:1 | osb image import - --name app:1")]
    Import {
        /// The archive; `-` is standard input
        archive: PathBuf,
        /// Name for the image, where the archive has none
        #[arg(long)]
        name: Option<String>,
    },
    /// List images
    #[command(visible_alias = "ls")]
    List,
    /// Remove names of images; an image goes with its last name
    Rm {
        /// Names or ids
        #[arg(required = true)]
        references: Vec<String>,
    },
    /// Remove what no image and no sandbox needs, and pulled images that nobody uses
    #[command(
        after_help = "Examples:\n  osb image prune                                  what no image needs\n  osb image prune --unused-for 30d                 pulled images, too, that nobody asked for in 30 days\n  osb image prune --max-size 20Gi                  and those unused for longest, until 20 GiB are left\n\nWhat a sandbox or a snapshot stands on stays, and so does what was imported. The server does the same by itself with\n[images] max_size and unused_days."
    )]
    Prune {
        /// Remove pulled images that nobody asked for in this time, for example 30d or 12h
        #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
        unused_for: Option<Duration>,
        /// Remove pulled images, those unused for longest first, until all take no more than this, for example 20Gi
        #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
        max_size: Option<u64>,
    },
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &ImageCommand) -> Outcome {
    let client = ctx.client()?;
    match command {
        ImageCommand::Pull { name, username, password, platform } => {
            let auth = match (username, password) {
                (Some(username), Some(word)) => {
                    Some(ImageAuth { username: Some(username.clone()), password: Some(self::password(word)?) })
                }
                _ => None,
            };
            let progress = Progress::waiting(&ctx.printer, &format!("pulling {name}"));
            let say = |text: &str| progress.say(&format!("{name}: {text}"));
            let image = client.pull_image(name, auth, platform.as_deref(), &say).await?;
            drop(progress);
            ctx.printer.document(&to_value(&image), || format!("{name} is here: {}", short(&image.id)))?;
        }
        ImageCommand::Import { archive, name } => {
            let bar = Progress::bytes(&ctx.printer, &archive.display().to_string(), size(archive));
            let say = |_: &str| ();
            let image = if archive.as_os_str() == "-" {
                client.import_image(name.as_deref(), pieces(tokio::io::stdin(), bar.bar()), &say).await?
            } else {
                let file =
                    tokio::fs::File::open(archive).await.map_err(|error| Failure::file("read", archive, &error))?;
                client.import_image(name.as_deref(), pieces(file, bar.bar()), &say).await?
            };
            drop(bar);
            ctx.printer.document(&to_value(&image), || {
                format!(
                    "{} is here: {}",
                    image.references.first().map_or("the image", String::as_str),
                    short(&image.id)
                )
            })?;
        }
        ImageCommand::List => {
            let images = client.images().await?;
            ctx.printer.document(&json!({ "items": to_value(&images) }), || listing(&images))?;
        }
        ImageCommand::Rm { references } => {
            let mut rows = Rows::default();
            for reference in references {
                rows.push("reference", reference, client.remove_image(reference).await.map(|()| "removed"));
            }
            return rows.finish(&ctx.printer);
        }
        ImageCommand::Prune { unused_for, max_size } => {
            let pruned = client.prune_images(*max_size, *unused_for).await?;
            ctx.printer.document(&pruned, || {
                let freed = pruned["bytes"].as_u64().unwrap_or(0);
                let images = pruned["images"].as_array().map_or(0, Vec::len);
                let images =
                    if images == 1 { "1 image is gone".to_owned() } else { format!("{images} images are gone") };
                format!("{images}, {} are free again", units::size(freed))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A password as it was given, or from standard input for `-`, so that it need not stand in a command line.
pub fn password(word: &str) -> Result<String, Failure> {
    if word != "-" {
        return Ok(word.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_PASSWORD_BYTES).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("read the password from standard input: {error}")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn platform(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((os, arch)) if !os.is_empty() && !arch.is_empty() && !arch.contains('/') => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is no platform; write for example linux/amd64 or linux/arm64")),
    }
}

fn size(path: &std::path::Path) -> u64 {
    std::fs::metadata(path).map(|meta| meta.len()).unwrap_or(0)
}

fn short(id: &str) -> &str {
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    hex.get(..SHORT_ID).unwrap_or(hex)
}

fn listing(images: &[ImageInfo]) -> String {
    let now = jiff::Timestamp::now();
    let row = |image: &ImageInfo| {
        vec![
            image.references.first().cloned().unwrap_or_else(|| "(none)".into()),
            short(&image.id).to_owned(),
            image.platform.clone(),
            units::size(image.size_bytes),
            image.layers.to_string(),
            image.created_at.as_ref().map(|time| units::relative(time, now)).unwrap_or_default(),
        ]
    };
    table::rows(&["name", "id", "platform", "size", "layers", "came"], images.iter().map(row).collect())
}
