//! `osb policy edit`: the policy as a text in the user's own editor.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use protocol::egress::NetworkPolicy;

use super::{Context, after};
use crate::failure::Failure;

/// The editor of a system on which none is named.
const EDITOR: &str = "vi";
/// Largest text that is read back, in bytes; the server takes no larger body.
const MAX_TEXT: u64 = 2 * 1024 * 1024;

pub async fn run(ctx: &Context, id: &str) -> Result<(), Failure> {
    let client = ctx.client()?;
    let before = client.policy(id).await?.policy.unwrap_or_default();
    let text = serde_json::to_string_pretty(&before).expect("a policy has only text keys") + "\n";
    let path = std::env::temp_dir().join(format!("osb-policy-{}-{}.json", std::process::id(), short(id)));
    write(&path, &text).map_err(|error| Failure::file("write", &path, &error))?;
    let file = Removed(Some(path));
    let edited = file.edit()?;
    if edited == text {
        ctx.printer.note("osb: nothing was changed");
        return Ok(());
    }
    let policy: NetworkPolicy = match serde_json::from_str(&edited) {
        Ok(policy) => policy,
        Err(error) => return Err(Failure::usage(format!("the text is no policy: {error}")).hint(file.keep())),
    };
    match client.put_policy(id, &policy).await {
        Ok(_) => after(ctx, client.policy(id).await?),
        Err(failure) => Err(failure.hint(file.keep())),
    }
}

/// What of an id may be in a file's name.
fn short(id: &str) -> String {
    id.chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}

/// Never through a link that somebody else has put there.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// A text that goes with this value, unless it is kept.
struct Removed(Option<PathBuf>);

impl Removed {
    /// Lets the user edit it; the text then.
    fn edit(&self) -> Result<String, Failure> {
        use std::io::Read as _;
        let path = self.0.as_ref().expect("only `keep` takes it");
        let named = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| EDITOR.to_owned());
        // An editor may be named with flags, as other programs allow.
        let ran = std::process::Command::new("sh").args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(path).status();
        match ran {
            Ok(status) if status.success() => {}
            Ok(status) => {
                let failure =
                    Failure::new("EDITOR_FAILED", format!("`{editor}` ended with {status}; nothing was changed"));
                return Err(failure.hint("name another one in EDITOR"));
            }
            Err(error) => return Err(Failure::new("EDITOR_FAILED", format!("start `{editor}`: {error}"))),
        }
        let mut text = String::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(MAX_TEXT).read_to_string(&mut text));
        read.map_err(|error| Failure::file("read", path, &error))?;
        Ok(text)
    }

    /// Leaves it there; says where.
    fn keep(mut self) -> String {
        let path = self.0.take().expect("taken once");
        format!("your text is kept in {}", path.display())
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // An editor may have replaced or removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}
