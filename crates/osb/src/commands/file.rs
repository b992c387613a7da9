//! `osb file`: files and directories of a sandbox.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use protocol::execd::files::{FileInfo, FileMetadata, Permission, RenameItem, ReplaceItem};
use serde_json::json;

use super::transfer::{self, Download, Upload};
use super::watch::{self, WatchArgs};
use super::{Context, Outcome, Progress, Rows, to_value};
use crate::client::execd::piece;
use crate::failure::Failure;
use crate::output::{output_failure, table};
use crate::units;

/// The commands about files.
#[derive(Subcommand, Debug)]
pub enum FileCommand {
    /// Write the bytes of files to standard output
    #[command(
        after_help = "Example:\n  osb file cat ID /etc/os-release\n  osb file cat ID /var/log/big.log --offset 1000 --limit 50"
    )]
    Cat {
        /// The sandbox
        id: String,
        /// The files
        #[arg(required = true)]
        paths: Vec<String>,
        /// First line, from 1
        #[arg(long, value_name = "LINE")]
        offset: Option<u64>,
        /// Most lines
        #[arg(long, value_name = "LINES")]
        limit: Option<u64>,
    },
    /// Write text or standard input into a file
    #[command(
        after_help = "Examples:\n  osb file write ID /tmp/a.txt -c 'hello'\n  make | osb file write ID /tmp/log --mode 600"
    )]
    Write {
        /// The sandbox
        id: String,
        /// The file; its directories are made
        path: String,
        /// The text; standard input if absent
        #[arg(short, long, value_name = "TEXT")]
        content: Option<String>,
        #[command(flatten)]
        owner: Owner,
    },
    /// Copy a file or, with -r, a directory into a sandbox
    #[command(
        after_help = "Examples:\n  osb file upload ID ./data.csv /tmp/data.csv\n  osb file upload ID -r ./project /workspace/project"
    )]
    Upload {
        /// The sandbox
        id: String,
        /// What to copy; `-` is standard input
        local: PathBuf,
        /// Where to; a name ending in `/` is a directory to put it in
        remote: String,
        /// Copy a directory and all it holds
        #[arg(short, long)]
        recursive: bool,
        #[command(flatten)]
        owner: Owner,
    },
    /// Copy a file or, with -r, a directory out of a sandbox
    #[command(
        after_help = "Examples:\n  osb file download ID /tmp/result.json .\n  osb file download ID /tmp/big.tar - | tar x\n  osb file download ID -r /workspace ./out"
    )]
    Download {
        /// The sandbox
        id: String,
        /// What to copy
        remote: String,
        /// Where to; an existing directory is put into, `-` is standard output
        local: PathBuf,
        /// Copy a directory and all it holds
        #[arg(short, long)]
        recursive: bool,
    },
    /// List a directory
    Ls {
        /// The sandbox
        id: String,
        /// The directory
        #[arg(default_value = ".")]
        path: String,
        /// How many levels deep
        #[arg(long, default_value_t = 1)]
        depth: u32,
    },
    /// Remove files or, with -r, directories
    Rm {
        /// The sandbox
        id: String,
        /// What to remove
        #[arg(required = true)]
        paths: Vec<String>,
        /// Remove directories and all they hold
        #[arg(short, long)]
        recursive: bool,
    },
    /// Remove directories and all they hold
    Rmdir {
        /// The sandbox
        id: String,
        /// What to remove
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Make directories with their parents
    Mkdir {
        /// The sandbox
        id: String,
        /// The directories
        #[arg(required = true)]
        paths: Vec<String>,
        #[command(flatten)]
        owner: Owner,
    },
    /// Move a file or directory
    Mv {
        /// The sandbox
        id: String,
        /// What to move
        from: String,
        /// Its new path, which must not exist
        to: String,
    },
    /// Set mode, owner and group
    #[command(after_help = "Example:\n  osb file chmod ID /workspace/run.sh --mode 755")]
    Chmod {
        /// The sandbox
        id: String,
        /// The files
        #[arg(required = true)]
        paths: Vec<String>,
        #[command(flatten)]
        owner: Owner,
    },
    /// Show what paths are
    Info {
        /// The sandbox
        id: String,
        /// The paths
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Find files by the pattern of their name
    #[command(after_help = "Example:\n  osb file search ID /workspace -p '*.py'")]
    Search {
        /// The sandbox
        id: String,
        /// The directory to begin with
        path: String,
        /// Pattern of the name, not of the path: `*`, `?`, `[a-z]`, `{a,b}`
        #[arg(short, long, default_value = "*")]
        pattern: String,
    },
    /// Tell what changes in a directory, until it is gone or Ctrl-C
    Watch(WatchArgs),
    /// Replace text in files
    #[command(after_help = "Example:\n  osb file replace ID /app/config.py --old 'DEBUG = False' --new 'DEBUG = True'")]
    Replace {
        /// The sandbox
        id: String,
        /// The files
        #[arg(required = true)]
        paths: Vec<String>,
        /// Text to look for
        #[arg(long, allow_hyphen_values = true)]
        old: String,
        /// Text to put in its place
        #[arg(long, allow_hyphen_values = true)]
        new: String,
    },
}

/// Mode, owner and group to set.
#[derive(Args, Debug, Default)]
pub struct Owner {
    /// File mode, for example 644
    #[arg(long, value_parser = units::parse_mode)]
    mode: Option<i64>,
    /// Name of the owner inside the sandbox
    #[arg(long)]
    owner: Option<String>,
    /// Name of the group inside the sandbox
    #[arg(long)]
    group: Option<String>,
}

impl Owner {
    fn permission(&self) -> Permission {
        Permission { owner: self.owner.clone(), group: self.group.clone(), mode: self.mode }
    }
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &FileCommand) -> Outcome {
    match command {
        FileCommand::Cat { id, paths, offset, limit } => cat(ctx, id, paths, *offset, *limit).await?,
        FileCommand::Write { id, path, content, owner } => write(ctx, id, path, content.as_deref(), owner).await?,
        FileCommand::Upload { id, local, remote, recursive, owner } => {
            let execd = ctx.client()?.execd(id).await?;
            let upload = Upload { ctx, execd, permission: owner.permission() };
            return upload.run(local, remote, *recursive).await;
        }
        FileCommand::Download { id, remote, local, recursive } => {
            let execd = ctx.client()?.execd(id).await?;
            return Download { ctx, execd }.run(remote, local, *recursive).await;
        }
        FileCommand::Ls { id, path, depth } => {
            let entries = ctx.client()?.execd(id).await?.list(path, *depth).await?;
            ctx.printer.document(&json!({ "items": to_value(&entries) }), || listing(&entries))?;
        }
        FileCommand::Rm { id, paths, recursive } => return remove(ctx, id, paths, *recursive).await,
        FileCommand::Rmdir { id, paths } => return remove(ctx, id, paths, true).await,
        FileCommand::Mkdir { id, paths, owner } => return make_directories(ctx, id, paths, owner).await,
        FileCommand::Mv { id, from, to } => {
            let item = RenameItem { src: from.clone(), dest: to.clone() };
            ctx.client()?.execd(id).await?.rename(&[item]).await?;
            ctx.printer.done(&format!("{from} is now {to}"))?;
        }
        FileCommand::Chmod { id, paths, owner } => return permissions(ctx, id, paths, owner).await,
        FileCommand::Info { id, paths } => return info(ctx, id, paths).await,
        FileCommand::Search { id, path, pattern } => {
            let found = ctx.client()?.execd(id).await?.search(path, pattern).await?;
            ctx.printer.document(&json!({ "items": to_value(&found) }), || listing(&found))?;
        }
        FileCommand::Watch(args) => return watch::run(ctx, args).await,
        FileCommand::Replace { id, paths, old, new } => return replace(ctx, id, paths, old, new).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn cat(
    ctx: &Context,
    id: &str,
    paths: &[String],
    offset: Option<u64>,
    limit: Option<u64>,
) -> Result<(), Failure> {
    let execd = ctx.client()?.execd(id).await?;
    for path in paths {
        let mut answer = execd.download(path, offset, limit).await?;
        if ctx.printer.format.is_structured() {
            let bytes = transfer::whole(&mut answer).await?;
            let content = String::from_utf8(bytes).map_err(|_| {
                Failure::new("NOT_TEXT", format!("{path} is no UTF-8 text, which JSON and YAML cannot carry"))
                    .hint("write its bytes with -o raw")
            })?;
            ctx.printer.document(&json!({ "path": path, "content": content }), String::new)?;
            continue;
        }
        while let Some(bytes) = piece(&mut answer).await? {
            std::io::stdout().lock().write_all(&bytes).map_err(|error| output_failure(&error))?;
        }
    }
    std::io::stdout().lock().flush().map_err(|error| output_failure(&error))
}

async fn write(ctx: &Context, id: &str, path: &str, content: Option<&str>, owner: &Owner) -> Result<(), Failure> {
    let execd = ctx.client()?.execd(id).await?;
    let metadata = FileMetadata { path: Some(path.to_owned()), permission: owner.permission() };
    match content {
        Some(text) => {
            let bytes = bytes::Bytes::from(text.to_owned());
            let once = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes)]);
            execd.upload(&metadata, once).await?;
        }
        None => {
            if std::io::stdin().is_terminal() {
                ctx.printer.note("reading standard input; end it with Ctrl-D");
            }
            let progress = Progress::bytes(&ctx.printer, path, 0);
            execd.upload(&metadata, transfer::pieces(tokio::io::stdin(), progress.bar())).await?;
        }
    }
    ctx.printer.done(&format!("{path} is written"))
}

async fn remove(ctx: &Context, id: &str, paths: &[String], recursive: bool) -> Outcome {
    let execd = ctx.client()?.execd(id).await?;
    let mut rows = Rows::default();
    for path in paths {
        let removed = if recursive { execd.remove_directory(path).await } else { execd.remove_file(path).await };
        rows.push("path", path, removed.map(|()| "removed"));
    }
    rows.finish(&ctx.printer)
}

async fn make_directories(ctx: &Context, id: &str, paths: &[String], owner: &Owner) -> Outcome {
    let execd = ctx.client()?.execd(id).await?;
    let mut rows = Rows::default();
    for path in paths {
        let one = BTreeMap::from([(path.clone(), owner.permission())]);
        rows.push("path", path, execd.make_directories(&one).await.map(|()| "made"));
    }
    rows.finish(&ctx.printer)
}

async fn permissions(ctx: &Context, id: &str, paths: &[String], owner: &Owner) -> Outcome {
    if owner.mode.is_none() && owner.owner.is_none() && owner.group.is_none() {
        return Err(Failure::usage("give at least one of --mode, --owner and --group"));
    }
    let execd = ctx.client()?.execd(id).await?;
    let mut rows = Rows::default();
    for path in paths {
        let one = BTreeMap::from([(path.clone(), owner.permission())]);
        rows.push("path", path, execd.permissions(&one).await.map(|()| "set"));
    }
    rows.finish(&ctx.printer)
}

async fn info(ctx: &Context, id: &str, paths: &[String]) -> Outcome {
    let infos = ctx.client()?.execd(id).await?.info(paths).await?;
    ctx.printer.document(&to_value(&infos), || listing(infos.values()))?;
    Ok(ExitCode::SUCCESS)
}

async fn replace(ctx: &Context, id: &str, paths: &[String], old: &str, new: &str) -> Outcome {
    let execd = ctx.client()?.execd(id).await?;
    let item = ReplaceItem { old: old.to_owned(), new: new.to_owned() };
    let items: BTreeMap<_, _> = paths.iter().map(|path| (path.clone(), item.clone())).collect();
    let counts = execd.replace(&items).await?;
    ctx.printer.document(&to_value(&counts), || {
        let line = |(path, result): (&String, &protocol::execd::files::ReplaceResult)| match result.replaced_count {
            0 => format!("{path}: nothing matched\n"),
            count => format!("{path}: {count} replaced\n"),
        };
        counts.iter().map(line).collect()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Files as `ls -l` shows them.
fn listing<'a>(entries: impl IntoIterator<Item = &'a FileInfo>) -> String {
    let row = |entry: &FileInfo| {
        let kind = match entry.kind.as_deref() {
            Some("directory") => "dir",
            Some("symlink") => "link",
            Some(kind) => kind,
            None => "",
        };
        vec![
            kind.to_owned(),
            entry.mode.to_string(),
            format!("{}:{}", entry.owner, entry.group),
            units::size(u64::try_from(entry.size).unwrap_or(0)),
            entry.modified_at.get(..19).unwrap_or(&entry.modified_at).replace('T', " "),
            entry.path.clone(),
        ]
    };
    table::rows(&["type", "mode", "owner", "size", "modified", "path"], entries.into_iter().map(row).collect())
}
