//! `osb fork`: many sandboxes from the files of one.

use std::time::Duration;

use clap::Args;
use protocol::snapshot::ForkRequest;

use super::sandbox::many;
use super::signals::Signals;
use super::{Context, Outcome};
use crate::units::{self, Limit};

/// Arguments of `osb fork`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each fork has the files of the source as they are now, its limits, policy, variables, hooks and volumes, and an\n\
identity, a token, an authority and a deadline of its own. Memory, labels and credentials stay with the source.\n\n\
Examples:\n  osb fork SANDBOX -n 10\n  osb fork SANDBOX -n 3 -e SEED=7 -m experiment=a -t 30m -o json"
)]
pub struct ForkArgs {
    /// The sandbox
    id: String,
    /// How many, 1 to 1000
    #[arg(short = 'n', long, value_name = "N", value_parser = super::sandbox::parse_count, default_value = "1")]
    count: usize,
    /// Environment variable over those of the source; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
    /// Label; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    metadata: Vec<(String, String)>,
    /// Lifetime instead of the source's, for example 600, 10m
    #[arg(short, long, value_name = "DURATION", value_parser = units::parse_limit)]
    timeout: Option<Limit>,
    /// Return as soon as they are accepted
    #[arg(long)]
    no_wait: bool,
    /// Longest wait until they answer
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration, default_value = "5m")]
    ready_timeout: Duration,
}

/// Runs the command.
pub async fn run(ctx: &Context, args: &ForkArgs) -> Outcome {
    let client = ctx.client()?;
    let request = ForkRequest {
        count: Some(args.count as u64),
        env: (!args.env.is_empty()).then(|| args.env.iter().cloned().map(|(key, value)| (key, Some(value))).collect()),
        metadata: (!args.metadata.is_empty()).then(|| args.metadata.iter().cloned().collect()),
        timeout: args.timeout.and_then(Limit::seconds),
        entrypoint: None,
    };
    // From here on it is awaited also when a signal comes: the answer carries the ids.
    let mut signals = Signals::listen()?;
    let items = client.fork(&args.id, &request).await?.items;
    many::finish(ctx, &client, &mut signals, items, (!args.no_wait).then_some(args.ready_timeout)).await
}
