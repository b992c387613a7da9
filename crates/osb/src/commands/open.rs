//! `osb open`: a signed link to a port of a sandbox, shown in a browser where there is one.

use std::io::IsTerminal as _;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{Context, Outcome};
use crate::client::ports::LinkRequest;
use crate::failure::Failure;
use crate::units::parse_duration;

/// What `osb open` is given.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  osb open ID 8000\n  osb open ID 8888 --path /lab --expires 8h\n\nWhoever has the link may use it until it expires."
)]
pub struct OpenArgs {
    /// The sandbox
    id: String,
    /// The port
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How long the link opens
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = parse_duration)]
    expires: Duration,
    /// The page to open, with its query
    #[arg(long, value_name = "PATH", value_parser = page)]
    path: Option<String>,
    /// Let the link open nothing but what lies below --path
    #[arg(long, requires = "path")]
    only: bool,
    /// Print the link and open nothing
    #[arg(long)]
    print: bool,
}

fn page(text: &str) -> Result<String, String> {
    let ok = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if ok { Ok(text.to_owned()) } else { Err("write a path as in a URL, beginning with a slash".to_owned()) }
}

/// Prints the link, and opens it.
pub async fn run(ctx: &Context, args: &OpenArgs) -> Outcome {
    if args.expires.as_secs() == 0 {
        return Err(Failure::usage("--expires must be a second at least"));
    }
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let expires = now.saturating_add(args.expires.as_secs());
    let page = args.path.as_deref().unwrap_or("/");
    let below = args.only.then(|| page.split(['?', '#']).next().unwrap_or(page));
    let link = ctx.client()?.link(&args.id, &LinkRequest { port: args.port, expires, below }).await?;
    let url = format!("{link}{page}");
    ctx.printer.document(&json!({ "url": url, "expires": expires }), || url.clone())?;
    if !args.print && !ctx.printer.format.is_structured() && std::io::stdout().is_terminal() {
        open(&url);
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows it to the person at the desktop; where there is none the printed link must do.
fn open(url: &str) {
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !has_desktop {
        return;
    }
    let mut program = std::process::Command::new("xdg-open");
    // It outlives this program on purpose, and it may be missing.
    let _ = program.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}
