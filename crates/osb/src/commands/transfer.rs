//! Copies files and directories between this machine and a sandbox, of any size in constant memory.
//!
//! Directories travel as one archive ([`tree`]), and file by file where the daemon has no archives.
//!
//! What comes out of a sandbox is hostile: names that would leave the directory that was asked for are refused, links
//! that may lead out of it are not made and none is followed, and a file appears under its name only when all of it has arrived.

mod tree;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use indicatif::ProgressBar;
use protocol::execd::files::{FileInfo, FileMetadata, Permission};
use reqwest::Response;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::{Context, Outcome, Progress, Rows};
use crate::client::execd::{Execd, piece};
use crate::failure::Failure;
use crate::output::output_failure;

/// Bytes that are read at once: large enough that system calls do not count.
const PIECE_BYTES: usize = 256 * 1024;
/// Most bytes of a file that is put into a document.
const MAX_WHOLE_BYTES: usize = 64 * 1024 * 1024;
/// Deepest directory that is copied: a tree beyond it is a mistake or an attack.
const MAX_DEPTH: usize = 128;

/// The content of a reader as a stream that moves a progress bar.
pub fn pieces<R: AsyncRead + Unpin + Send + 'static>(
    reader: R,
    bar: ProgressBar,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    futures_util::stream::try_unfold((reader, bar), |(mut reader, bar)| async move {
        let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
        let count = reader.read_buf(&mut buffer).await?;
        bar.inc(count as u64);
        Ok((count > 0).then(|| (buffer.freeze(), (reader, bar))))
    })
}

/// The whole body of an answer, within a bound.
pub async fn whole(answer: &mut Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(bytes) = piece(answer).await? {
        if body.len() + bytes.len() > MAX_WHOLE_BYTES {
            let message = format!("the file is larger than {MAX_WHOLE_BYTES} bytes, too much for one document");
            return Err(Failure::new("OUTPUT_TOO_LARGE", message).hint("write its bytes with -o raw"));
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}

/// Copies into a sandbox.
pub struct Upload<'a> {
    pub ctx: &'a Context,
    pub execd: Execd,
    /// Owner, group and mode of every file; the mode of the local file if absent.
    pub permission: Permission,
}

impl Upload<'_> {
    /// Copies `local` to `remote`.
    pub async fn run(&self, local: &Path, remote: &str, recursive: bool) -> Outcome {
        if local == Path::new("-") {
            let progress = Progress::bytes(&self.ctx.printer, remote, 0);
            self.send(tokio::io::stdin(), remote, self.permission.mode, &progress).await?;
            drop(progress);
            self.ctx.printer.done(&format!("standard input is now {remote}"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let meta = fs::metadata(local).map_err(|error| Failure::file("read", local, &error))?;
        if meta.is_dir() {
            if !recursive {
                return Err(Failure::usage(format!("{} is a directory; copy it with -r", local.display())));
            }
            if let Some(outcome) = self.archive(local, remote).await? {
                return outcome;
            }
            return self.tree(local, remote.trim_end_matches('/')).await;
        }
        let remote = if remote.ends_with('/') { format!("{remote}{}", base_name(local)?) } else { remote.to_owned() };
        self.file(local, &remote).await?;
        self.ctx.printer.done(&format!("{} is now {remote}", local.display()))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn file(&self, local: &Path, remote: &str) -> Result<(), Failure> {
        let failed = |error: &io::Error| Failure::file("read", local, error);
        let file = tokio::fs::File::open(local).await.map_err(|error| failed(&error))?;
        let meta = file.metadata().await.map_err(|error| failed(&error))?;
        if !meta.is_file() {
            return Err(Failure::new("LOCAL_FILE", format!("{} is no regular file", local.display())));
        }
        let mode = self.permission.mode.or_else(|| digits(meta.permissions().mode()));
        let progress = Progress::bytes(&self.ctx.printer, remote, meta.len());
        self.send(file, remote, mode, &progress).await
    }

    async fn send(
        &self,
        reader: impl AsyncRead + Unpin + Send + 'static,
        remote: &str,
        mode: Option<i64>,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let permission = Permission { mode, ..self.permission.clone() };
        let metadata = FileMetadata { path: Some(remote.to_owned()), permission };
        self.execd.upload(&metadata, pieces(reader, progress.bar())).await
    }

    /// Copies a directory, one file after the other on one connection.
    async fn tree(&self, local: &Path, remote: &str) -> Outcome {
        let mut rows = Rows::default();
        let mut waiting = vec![(local.to_owned(), remote.to_owned(), 0)];
        while let Some((local, remote, depth)) = waiting.pop() {
            if depth > MAX_DEPTH {
                rows.push("path", &remote, Err(too_deep(&local)));
                continue;
            }
            let permission = Permission { mode: None, ..self.permission.clone() };
            self.execd.make_directories(&[(remote.clone(), permission)].into()).await?;
            let mut entries: Vec<_> = fs::read_dir(&local)
                .and_then(Iterator::collect::<io::Result<Vec<_>>>)
                .map_err(|error| Failure::file("read", &local, &error))?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                let name = base_name(&path)?;
                let remote = format!("{remote}/{name}");
                let kind = entry.file_type().map_err(|error| Failure::file("read", &path, &error))?;
                if kind.is_dir() {
                    waiting.push((path, remote, depth + 1));
                } else if kind.is_symlink() && path.is_dir() {
                    rows.push("path", &remote, Err(not_copied(&path, "a link to a directory")));
                } else {
                    let sent = self.file(&path, &remote).await;
                    if sent.as_ref().is_err_and(|failure| failure.code == "CONNECTION_FAILED") {
                        sent?;
                        continue;
                    }
                    rows.push("path", &remote, sent.map(|()| "copied"));
                }
            }
        }
        rows.finish(&self.ctx.printer)
    }
}

/// Copies out of a sandbox.
pub struct Download<'a> {
    pub ctx: &'a Context,
    pub execd: Execd,
}

impl Download<'_> {
    /// Copies `remote` to `local`.
    pub async fn run(&self, remote: &str, local: &Path, recursive: bool) -> Outcome {
        if local == Path::new("-") {
            self.to_stdout(remote).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let info = self.info(remote).await?;
        let is_directory = info.kind.as_deref() == Some("directory");
        if is_directory && !recursive {
            return Err(Failure::usage(format!("{remote} is a directory; copy it with -r")));
        }
        let target = if local.is_dir() { local.join(last_name(&info.path)?) } else { local.to_owned() };
        if is_directory {
            if let Some(outcome) = self.archive(&info.path, &target).await? {
                return outcome;
            }
            return self.tree(&info.path, &target).await;
        }
        self.file(remote, &target, None, u64::try_from(info.size).unwrap_or(0)).await?;
        self.ctx.printer.done(&format!("{remote} is now {}", target.display()))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn info(&self, remote: &str) -> Result<FileInfo, Failure> {
        let infos = self.execd.info(&[remote.to_owned()]).await?;
        infos.into_values().next().ok_or_else(|| Failure::new("FILE_NOT_FOUND", format!("{remote} does not exist")))
    }

    async fn to_stdout(&self, remote: &str) -> Result<(), Failure> {
        let mut answer = self.execd.download(remote, None, None).await?;
        let mut out = tokio::io::stdout();
        while let Some(bytes) = piece(&mut answer).await? {
            out.write_all(&bytes).await.map_err(|error| output_failure(&error))?;
        }
        out.flush().await.map_err(|error| output_failure(&error))
    }

    /// Copies one file; it gets its name when all of it is there.
    async fn file(&self, remote: &str, local: &Path, mode: Option<u32>, size: u64) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::file("write", local, &error);
        let mut answer = self.execd.download(remote, None, None).await?;
        let progress = Progress::bytes(&self.ctx.printer, remote, size);
        let directory = local.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut partial = Partial::create(directory).map_err(failed)?;
        while let Some(bytes) = piece(&mut answer).await? {
            partial.file.write_all(&bytes).await.map_err(failed)?;
            progress.add(bytes.len() as u64);
        }
        partial.file.flush().await.map_err(failed)?;
        if let Some(mode) = mode {
            // Set-id bits of a sandbox mean nothing here.
            fs::set_permissions(&partial.path, fs::Permissions::from_mode(mode & 0o777)).map_err(failed)?;
        }
        partial.rename(local).map_err(failed)
    }

    /// Copies a directory, listing one level at a time.
    async fn tree(&self, remote: &str, local: &Path) -> Outcome {
        let mut rows = Rows::default();
        let mut waiting = vec![(remote.trim_end_matches('/').to_owned(), local.to_owned(), 0)];
        while let Some((remote, local, depth)) = waiting.pop() {
            if depth > MAX_DEPTH {
                rows.push("path", &remote, Err(too_deep(Path::new(&remote))));
                continue;
            }
            make_plain_directory(&local)?;
            let listed = if remote.is_empty() { "/" } else { &remote };
            for entry in self.execd.list(listed, 1).await? {
                let name = child_name(&remote, &entry.path)?;
                let target = local.join(name);
                match entry.kind.as_deref() {
                    Some("directory") => waiting.push((entry.path.clone(), target, depth + 1)),
                    Some("file") | None => {
                        let mode = u32::from_str_radix(&entry.mode.to_string(), 8).ok();
                        let size = u64::try_from(entry.size).unwrap_or(0);
                        let copied = self.file(&entry.path, &target, mode, size).await;
                        rows.push("path", &entry.path, copied.map(|()| "copied"));
                    }
                    Some(kind) => rows.push("path", &entry.path, Err(not_copied(Path::new(&entry.path), kind))),
                }
            }
        }
        rows.finish(&self.ctx.printer)
    }
}

/// A file without its name yet; removed if it never gets one.
pub struct Partial {
    /// To write to.
    pub file: tokio::fs::File,
    path: PathBuf,
}

impl Partial {
    /// In the directory in which it will be.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".osb-{}.partial", crate::client::execd::random_hex()));
        let file = fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { file: tokio::fs::File::from_std(file), path })
    }

    /// Gives it its name.
    pub fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.path = PathBuf::new();
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // The failure that leads here is told; a leftover has a name that says what it is.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a directory, or accepts one that is there; a link in its place is refused.
fn make_plain_directory(path: &Path) -> Result<(), Failure> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_plain = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
            if is_plain { Ok(()) } else { Err(Failure::file("make directory", path, &error)) }
        }
        other => other.map_err(|error| Failure::file("make directory", path, &error)),
    }
}

/// The name of an entry of a listed directory; anything that is not directly in it is refused.
fn child_name<'a>(directory: &str, path: &'a str) -> Result<&'a str, Failure> {
    path.strip_prefix(directory)
        .and_then(|rest| rest.strip_prefix('/'))
        .filter(|name| !name.is_empty() && !name.contains(['/', '\0']) && *name != "." && *name != "..")
        .ok_or_else(|| {
            Failure::new("BAD_ANSWER", format!("the listing of {directory} names {path}, which is not in it"))
        })
}

/// The last part of a remote path.
fn last_name(path: &str) -> Result<&str, Failure> {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if name.is_empty() || name == "." || name == ".." || name.contains('\0') {
        return Err(Failure::usage(format!("{path} has no last name; name the target too")));
    }
    Ok(name)
}

/// The last part of a local path, which the protocol carries as text only.
fn base_name(path: &Path) -> Result<String, Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| {
        Failure::new("LOCAL_FILE", format!("{} has no name that is UTF-8 text, as the protocol needs", path.display()))
    })
}

fn too_deep(path: &Path) -> Failure {
    not_copied(path, &format!("deeper than {MAX_DEPTH} directories"))
}

fn not_copied(path: &Path, why: &str) -> Failure {
    Failure::new("NOT_COPIED", format!("{} is {why}, which is not copied", path.display()))
}

/// Permission bits in the protocol's form: octal digits as a decimal number.
fn digits(mode: u32) -> Option<i64> {
    format!("{:o}", mode & 0o777).parse().ok().filter(|digits| *digits != 0)
}

#[cfg(test)]
mod tests;
