//! The way out of sandboxes: one process for the machine, without privileges, that decides about every connection and
//! question of every sandbox.
//!
//! Owns the policy's meaning, DNS, the relay, and the record of what became of each connection. It never enters a
//! namespace and never opens a listening socket: the sockets on which it hears a sandbox were made in that sandbox's
//! namespace and are passed to it. What a sandbox sends, what a resolver answers and what an origin sends is hostile.
//!
//! The server links this crate for [`Control`], [`policy`] and the types of events; the program calls [`run`].
//!
//! ```no_run
//! use std::os::fd::AsFd;
//!
//! # async fn example(socket: std::os::fd::OwnedFd, listeners: egress::Listeners) -> Result<(), Box<dyn std::error::Error>> {
//! let user = serde_json::from_str(r#"{"egress": [{"action": "allow", "target": "*.example.com"}]}"#)?;
//! let source = egress::policy::Source { user: Some(user), ..Default::default() };
//! // Before a create is accepted: errors name the field. The kernel lets through what the policy could ever allow.
//! let policy = egress::policy::Policy::parse(&source, "networkPolicy")?;
//! let reachable = policy.reachable(egress::names::DEFAULT_RANGE.into());
//! # let _ = reachable;
//!
//! let control = egress::Control::new(socket)?;
//! let resolvers = vec!["127.0.0.53:53".parse()?];
//! control.configure(egress::Settings { resolvers, ..Default::default() }).await?;
//! let names = std::fs::File::options().read(true).write(true).create(true).truncate(false).open("names")?;
//! control.attach("sandbox-1", &listeners, names.as_fd(), 1, &source, egress::Beside::default()).await?;
//! let mut watch = control.watch(Some("sandbox-1"), 0).await?;
//! while let Some(events) = watch.next().await {
//!     println!("{events:?}");
//! }
//! # Ok(())
//! # }
//! ```

pub mod authority;
mod control;
mod dial;
mod dns;
mod flow;
pub mod guard;
pub mod inspect;
mod intercept;
pub mod limits;
pub mod name;
pub mod names;
pub mod policy;
mod process;
pub mod recording;
mod relay;
mod replay;
mod resolve;
mod sandbox;
mod sealed;
mod secrets;
pub mod upstream;
pub mod verdicts;

pub use control::{
    Beside, Boot, Control, ControlError, Demands, EVENTS_PER_PACKET, Events, Failure, Operation, SandboxStats,
    Settings, Stats, Taping, VAULT_BODY_BYTES, Watch, boot, greet, pair,
};
pub use process::run;
pub use sandbox::Listeners;
pub use sealed::{Memory, Secret};
pub use secrets::{Bound, Expected, Refusal, Shown, State, check_covers};
