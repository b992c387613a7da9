//! `osb sandbox create --count`: many by one call.

use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use protocol::lifecycle::{BatchItem, BatchRequest, CreateSandboxRequest, ItemError};
use serde_json::{Map, Value, json};

use super::super::signals::Signals;
use super::super::{Context, Outcome, Progress, to_value};
use super::CreateArgs;
use super::view::row;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::table;

/// Code of a sandbox that did not answer in time.
const NOT_READY: &str = "NOT_READY";

/// Makes them, waits for all, shows each. 1 if one of them does not run.
pub async fn create(ctx: &Context, args: &CreateArgs, request: &CreateSandboxRequest) -> Outcome {
    let client = ctx.client()?;
    let Value::Object(sandbox) = to_value(request) else {
        return Err(Failure::new("INTERNAL", "a request is an object"));
    };
    let batch = BatchRequest { sandbox, items: vec![Map::new(); args.count] };
    // From here on it is awaited also when a signal comes: the answer carries the ids.
    let mut signals = Signals::listen()?;
    let items = client.create_many(&batch).await?.items;
    finish(ctx, &client, &mut signals, items, (!args.no_wait).then_some(args.ready_timeout)).await
}

/// Waits for all of them, if it is to wait, and shows each; a signal meanwhile removes all. 1 if one of them does not run.
pub async fn finish(
    ctx: &Context,
    client: &Client,
    signals: &mut Signals,
    mut items: Vec<BatchItem>,
    wait: Option<Duration>,
) -> Outcome {
    if let Some(limit) = wait {
        let made = items.iter().filter_map(|item| item.sandbox.as_ref());
        let ids: Vec<String> = made.map(|made| made.id.clone()).collect();
        let progress = Progress::waiting(&ctx.printer, &format!("making {} sandboxes", ids.len()));
        tokio::select! {
            biased;
            signal = signals.next() => {
                drop(progress);
                let ends = join_all(ids.iter().map(|id| client.delete(id, Some(Duration::ZERO)))).await;
                ends.into_iter().collect::<Result<(), Failure>>()?;
                ctx.printer.note(&format!("{} sandboxes are removed again", ids.len()));
                return Ok(ExitCode::from(128 + signal));
            }
            () = settle(client, &mut items, limit) => {}
        }
    }
    show(ctx, &items)
}

/// Shows each of them, and why some are not. 1 if one of them does not run.
fn show(ctx: &Context, items: &[BatchItem]) -> Outcome {
    let failed: Vec<(usize, &ItemError)> =
        items.iter().enumerate().filter_map(|(place, item)| item.error.as_ref().map(|error| (place, error))).collect();
    ctx.printer.document(&json!({ "items": items }), || {
        let now = jiff::Timestamp::now();
        let made = items.iter().filter_map(|item| item.sandbox.as_ref());
        table::rows(&["id", "state", "image", "created", "ends", "labels"], made.map(|made| row(made, now)).collect())
    })?;
    for (place, error) in &failed {
        ctx.printer.note(&format!("{} of {}: {} ({})", place + 1, items.len(), error.message, error.code));
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits for each of them; one that fails has its error beside it.
async fn settle(client: &Client, items: &mut [BatchItem], limit: Duration) {
    let one = async |item: &mut BatchItem| {
        let Some(made) = &item.sandbox else { return };
        let id = made.id.clone();
        let ready = client.ready(&id, limit, &|_| ()).await;
        match (ready, client.get(&id).await) {
            (Ok(_), Ok(now)) => item.sandbox = Some(now),
            (Err(failure), now) => {
                item.sandbox = now.ok().or_else(|| item.sandbox.take());
                item.error = Some(ItemError { code: NOT_READY.into(), message: failure.message });
            }
            (_, Err(failure)) => item.error = Some(ItemError { code: NOT_READY.into(), message: failure.message }),
        }
    };
    join_all(items.iter_mut().map(one)).await;
}
