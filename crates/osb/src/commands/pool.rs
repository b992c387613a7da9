//! `osb pool`: sandboxes that are kept ready.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use protocol::lifecycle::{CreatePoolRequest, PoolCapacitySpec, PoolResponse, PoolStatus, UpdatePoolRequest};
use serde_json::{Map, Value, json};

use super::{Context, Outcome, Rows, to_value};
use crate::failure::Failure;
use crate::output::table;
use crate::units;

#[cfg(test)]
mod tests;

/// Sandboxes of a pool for which no number is named.
const DEFAULT_READY: i64 = 4;
/// How many times those that wait a pool may hold, where nothing is said.
const DEFAULT_MAX_FACTOR: i64 = 8;

/// The commands about pools.
#[derive(Subcommand, Debug)]
pub enum PoolCommand {
    /// Make a pool: so many sandboxes are kept ready, and a create that names it takes one at once
    Create(CreateArgs),
    /// List pools, how many of each wait and how they served
    #[command(visible_alias = "ls")]
    List,
    /// Show one pool
    Get {
        /// The pool
        name: String,
    },
    /// Change how many sandboxes a pool keeps; what is not named stays
    #[command(after_help = "Example:\n  osb pool update workers --ready 20..40 --max 200")]
    Update {
        /// The pool
        name: String,
        #[command(flatten)]
        numbers: Numbers,
    },
    /// Remove pools and what waits in them; sandboxes that somebody has go on
    Rm {
        /// The pools
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Arguments of `osb pool create`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  osb pool create workers --ready 10\n  osb pool create py -i python:3.12 --ready 5..20 --max 100 --memory 512Mi\n  \
osb sandbox create --pool py\n  osb run --pool py -- python3 -c 'print(6*7)'\n\nEnvironment, memory, cores, main process, labels and network policy may differ for each\n\
sandbox of a pool: they are set when it is taken. Image and disk size are the pool's."
)]
pub struct CreateArgs {
    /// Its name: a-z, 0-9 and `-`
    name: String,
    /// Image: a name to pull, or `host` for this machine's own programs
    #[arg(short, long, conflicts_with = "template_file")]
    image: Option<String>,
    #[command(flatten)]
    numbers: Numbers,
    /// Environment variable of all; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = units::parse_pair, conflicts_with = "template_file")]
    env: Vec<(String, String)>,
    /// Memory limit, for example 512Mi
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "template_file")]
    memory: Option<String>,
    /// Cores, for example 2 or 0.5
    #[arg(long, value_name = "CORES", value_parser = units::parse_cpu, conflicts_with = "template_file")]
    cpu: Option<String>,
    /// Disk limit, for example 2Gi
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "template_file")]
    disk: Option<String>,
    /// Template as JSON: a pod template, or fields of a create; `-` reads standard input
    #[arg(short = 'f', long, value_name = "PATH")]
    template_file: Option<PathBuf>,
}

/// How many sandboxes there are.
#[derive(Args, Debug, Default)]
pub struct Numbers {
    /// How many wait: a number, or MIN..MAX between which nothing is made or removed
    #[arg(long, value_name = "N|MIN..MAX", value_parser = parse_range)]
    ready: Option<(i64, i64)>,
    /// Most sandboxes, waiting or taken
    #[arg(long, value_name = "N")]
    max: Option<i64>,
    /// Fewest sandboxes, waiting or taken
    #[arg(long, value_name = "N")]
    min: Option<i64>,
    /// What becomes of a create for which nobody waits
    #[arg(long, value_name = "create|refuse")]
    when_empty: Option<String>,
}

/// Reads `4` or `2..6`.
fn parse_range(text: &str) -> Result<(i64, i64), String> {
    let wrong = || format!("`{text}` is neither a number nor MIN..MAX");
    let number = |word: &str| word.trim().parse::<i64>().ok().filter(|number| *number >= 0).ok_or_else(wrong);
    match text.split_once("..") {
        Some((least, most)) => Ok((number(least)?, number(most)?)),
        None => number(text).map(|count| (count, count)),
    }
}

impl Numbers {
    /// These numbers over others.
    fn over(&self, before: Option<&PoolCapacitySpec>) -> PoolCapacitySpec {
        let (buffer_min, buffer_max) = self
            .ready
            .or(before.map(|before| (before.buffer_min, before.buffer_max)))
            .unwrap_or((DEFAULT_READY, DEFAULT_READY));
        let default_max = buffer_max.max(1).saturating_mul(DEFAULT_MAX_FACTOR);
        PoolCapacitySpec {
            buffer_max,
            buffer_min,
            pool_max: self.max.or(before.map(|before| before.pool_max)).unwrap_or(default_max),
            pool_min: self.min.or(before.map(|before| before.pool_min)).unwrap_or(0),
        }
    }
}

/// Runs one of the commands.
pub async fn run(ctx: &Context, command: &PoolCommand) -> Outcome {
    let client = ctx.client()?;
    match command {
        PoolCommand::Create(args) => {
            let request = CreatePoolRequest {
                name: args.name.clone(),
                template: template(ctx, args)?,
                capacity_spec: args.numbers.over(None),
                when_empty: args.numbers.when_empty.clone(),
            };
            let made = client.create_pool(&request).await?;
            let name = &made.name;
            ctx.printer.document(&to_value(&made), || {
                format!("{}\ntake one: osb sandbox create --pool {name}", detail(&made).trim_end())
            })?;
        }
        PoolCommand::List => {
            let pools = client.pools().await?;
            ctx.printer.document(&json!({ "items": to_value(&pools) }), || {
                let rows = pools.iter().map(row).collect();
                table::rows(&["name", "image", "ready", "taken", "max", "hits", "misses", "refused", "claim"], rows)
            })?;
        }
        PoolCommand::Get { name } => {
            let pool = client.pool(name).await?;
            ctx.printer.document(&to_value(&pool), || detail(&pool))?;
        }
        PoolCommand::Update { name, numbers } => {
            let before = client.pool(name).await?;
            let request = UpdatePoolRequest {
                capacity_spec: numbers.over(Some(&before.capacity_spec)),
                when_empty: numbers.when_empty.clone(),
            };
            let pool = client.update_pool(name, &request).await?;
            ctx.printer.document(&to_value(&pool), || detail(&pool))?;
        }
        PoolCommand::Rm { names } => {
            let mut rows = Rows::default();
            for name in names {
                rows.push("name", name, client.remove_pool(name).await.map(|()| "removed"));
            }
            return rows.finish(&ctx.printer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn template(ctx: &Context, args: &CreateArgs) -> Result<Map<String, Value>, Failure> {
    if let Some(path) = &args.template_file {
        return super::sandbox::read_json(path);
    }
    let image = args.image.clone().unwrap_or_else(|| ctx.settings.image.value.clone());
    let mut template = Map::from_iter([("image".to_owned(), json!({ "uri": image }))]);
    let limits = [("memory", &args.memory), ("cpu", &args.cpu), ("disk", &args.disk)];
    let limits = limits.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::from(value.clone()?))));
    let limits = Map::from_iter(limits);
    if !limits.is_empty() {
        template.insert("resourceLimits".to_owned(), Value::Object(limits));
    }
    if !args.env.is_empty() {
        let env = args.env.iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
        template.insert("env".to_owned(), Value::Object(env.collect()));
    }
    Ok(template)
}

/// The image that a template names, in either of its forms.
fn image(pool: &PoolResponse) -> String {
    let template = Value::Object(pool.template.clone().unwrap_or_default());
    let places = ["/image/uri", "/spec/containers/0/image"];
    places.iter().find_map(|place| template.pointer(place)?.as_str()).unwrap_or("-").to_owned()
}

fn claim(status: &PoolStatus) -> String {
    status.claim_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"))
}

fn row(pool: &PoolResponse) -> Vec<String> {
    let status = pool.status.clone().unwrap_or_default();
    let numbers = [status.available, status.allocated, pool.capacity_spec.pool_max.unsigned_abs()];
    let mut row = vec![pool.name.clone(), image(pool)];
    row.extend(numbers.iter().chain(&[status.hits, status.misses, status.refused]).map(u64::to_string));
    row.push(claim(&status));
    row
}

fn detail(pool: &PoolResponse) -> String {
    let capacity = &pool.capacity_spec;
    let status = pool.status.clone().unwrap_or_default();
    table::facts(&[
        ("name", Some(pool.name.clone())),
        ("image", Some(image(pool))),
        (
            "ready",
            Some(format!("{} (kept between {} and {})", status.available, capacity.buffer_min, capacity.buffer_max)),
        ),
        ("taken", Some(status.allocated.to_string())),
        ("in all", Some(format!("{} (kept between {} and {})", status.total, capacity.pool_min, capacity.pool_max))),
        ("when empty", pool.when_empty.clone()),
        ("claims", Some(format!("{} hits, {} misses, {} refused", status.hits, status.misses, status.refused))),
        ("claim", status.claim_ms.map(|ms| format!("{ms:.1} ms"))),
        ("refilled", Some(status.refilled.to_string())),
        ("failing", status.message.clone()),
        ("made", pool.created_at.clone()),
    ])
}
