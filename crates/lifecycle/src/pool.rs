//! Pools: how many sandboxes wait in one, and what a create out of it asks for. Pure.

use std::collections::BTreeMap;

use protocol::error::code;
use protocol::lifecycle::{CreateSandboxRequest, ImageSpec, PoolCapacitySpec};
use serde_json::Value;

use crate::admit::Refusal;
use crate::spec::HOST_IMAGE;

mod template;
#[cfg(test)]
mod tests;

pub use template::template;

/// Most sandboxes that one pool may hold: more than one machine carries.
pub const MAX_POOL: u32 = 10_000;
/// Longest name of a pool (published).
const MAX_NAME_BYTES: usize = 253;
/// What a sandbox of a pool runs that names no main process: nothing, until it is ended.
const IDLE: [&str; 3] = ["tail", "-f", "/dev/null"];

/// Accepts a pool's name: `[a-z0-9]` with `-` between, at most 253 characters.
///
/// # Errors
/// A [`Refusal`] that says what a name is.
pub fn check_name(name: &str) -> Result<(), Refusal> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    match good {
        true => Ok(()),
        false => Err(Refusal::invalid("name", "must be 1 to 253 of a-z, 0-9 and -, and neither start nor end with -")),
    }
}

/// Between which numbers a pool keeps itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Most that wait.
    pub buffer_max: u32,
    /// Fewest that wait.
    pub buffer_min: u32,
    /// Most that there are, waiting or not.
    pub pool_max: u32,
    /// Fewest that there are.
    pub pool_min: u32,
}

impl Capacity {
    /// Reads what was asked for.
    ///
    /// # Errors
    /// A [`Refusal`] for numbers that contradict each other.
    pub fn parse(asked: &PoolCapacitySpec) -> Result<Self, Refusal> {
        let number = |name: &str, value: i64| {
            let field = format!("capacitySpec.{name}");
            match u32::try_from(value) {
                Ok(number) if number <= MAX_POOL => Ok(number),
                Ok(_) => Err(Refusal::bad(field, format!("{value} is more than a pool can hold, {MAX_POOL}"))),
                Err(_) => Err(Refusal::invalid(field, format!("{value} must be a number from 0 to {MAX_POOL}"))),
            }
        };
        let capacity = Self {
            buffer_max: number("bufferMax", asked.buffer_max)?,
            buffer_min: number("bufferMin", asked.buffer_min)?,
            pool_max: number("poolMax", asked.pool_max)?,
            pool_min: number("poolMin", asked.pool_min)?,
        };
        for (low, least, high, most) in [
            ("bufferMin", capacity.buffer_min, "bufferMax", capacity.buffer_max),
            ("poolMin", capacity.pool_min, "poolMax", capacity.pool_max),
            ("bufferMin", capacity.buffer_min, "poolMax", capacity.pool_max),
        ] {
            if least > most {
                let problem = format!("{least} is more than {high} {most}; lower it or raise {high}");
                return Err(Refusal::bad(format!("capacitySpec.{low}"), problem));
            }
        }
        Ok(capacity)
    }

    /// As clients write it.
    pub fn spec(&self) -> PoolCapacitySpec {
        PoolCapacitySpec {
            buffer_max: self.buffer_max.into(),
            buffer_min: self.buffer_min.into(),
            pool_max: self.pool_max.into(),
            pool_min: self.pool_min.into(),
        }
    }
}

/// How many sandboxes a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// That somebody has.
    pub bound: u32,
    /// That wait.
    pub ready: u32,
    /// That are being made to wait.
    pub making: u32,
}

impl Census {
    /// All of them.
    pub fn total(&self) -> u32 {
        self.bound + self.ready + self.making
    }

    fn buffer(&self) -> u32 {
        self.ready + self.making
    }
}

/// What a pool needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing.
    Nothing,
    /// So many more that wait.
    Make(u32),
    /// So many fewer.
    Drop(u32),
}

/// Keeps a pool between its numbers without swinging: outside the band it goes to the middle, within it nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Governor {
    /// It was below the band and has not reached the middle yet.
    is_filling: bool,
    /// It was above the band and has not reached the middle yet.
    is_draining: bool,
}

impl Governor {
    /// What is to be done now. Whoever has been given away is never counted on: only those that wait can go.
    pub fn want(&mut self, capacity: &Capacity, census: &Census) -> Want {
        let (buffer, total) = (census.buffer(), census.total());
        let sum = capacity.buffer_min + capacity.buffer_max;
        let (fill_to, drain_to) = (sum.div_ceil(2), sum / 2);
        self.is_filling = buffer < capacity.buffer_min || (self.is_filling && buffer < fill_to);
        self.is_draining = buffer > capacity.buffer_max || (self.is_draining && buffer > drain_to);

        let over = total.saturating_sub(capacity.pool_max);
        if over > 0 {
            return some(Want::Drop, over.min(census.ready));
        }
        let below = capacity.pool_min.saturating_sub(total);
        let missing = if self.is_filling { fill_to.saturating_sub(buffer) } else { 0 };
        let make = missing.max(below).min(capacity.pool_max - total);
        if make > 0 {
            return Want::Make(make);
        }
        let surplus = if self.is_draining { buffer.saturating_sub(drain_to) } else { 0 };
        some(Want::Drop, surplus.min(census.ready).min(total.saturating_sub(capacity.pool_min)))
    }
}

fn some(want: impl FnOnce(u32) -> Want, count: u32) -> Want {
    if count == 0 { Want::Nothing } else { want(count) }
}

/// What a create out of a pool asks for: the pool's template, with what the request says for itself.
///
/// # Errors
/// A [`Refusal`] for what the sandboxes of a pool have in common and the request wants otherwise.
pub fn join(
    pool: &str,
    template: &CreateSandboxRequest,
    request: CreateSandboxRequest,
) -> Result<CreateSandboxRequest, Refusal> {
    let common = |field: &str, problem: String| Err(Refusal::bad(field, problem));
    if request.snapshot_id.is_some() || request.template_id.is_some() {
        let field = if request.snapshot_id.is_some() { "snapshotId" } else { "templateId" };
        return common(field, format!("the sandboxes of pool \"{pool}\" have an image; leave this or poolRef out"));
    }
    let image = template.image.clone();
    let uri = |image: &Option<ImageSpec>| image.as_ref().map(|image| image.uri.trim().to_owned()).unwrap_or_default();
    let (has, wants) = (uri(&image), uri(&request.image));
    if !wants.is_empty() && wants != has {
        return common(
            "image.uri",
            format!("pool \"{pool}\" has the image \"{has}\" and not \"{wants}\"; leave it out"),
        );
    }
    if request.image.as_ref().is_some_and(|image| image.auth.is_some()) {
        return common("image.auth", format!("the image of pool \"{pool}\" is there already; leave the login out"));
    }
    if request.platform.is_some() && request.platform != template.platform && template.platform.is_some() {
        return common("platform", format!("pool \"{pool}\" has another platform; leave it out"));
    }
    let limits = joined(template.resource_limits.clone(), request.resource_limits);
    let env = joined(template.env.clone(), request.env);
    let metadata = joined(template.metadata.clone(), request.metadata).filter(|labels| !labels.is_empty());
    let entrypoint = request.entrypoint.or_else(|| template.entrypoint.clone());
    Ok(CreateSandboxRequest {
        image: image.or_else(|| Some(ImageSpec { uri: HOST_IMAGE.to_owned(), auth: None })),
        platform: request.platform.or_else(|| template.platform.clone()),
        resource_limits: Some(limits.unwrap_or_default()),
        env,
        metadata,
        entrypoint: Some(entrypoint.unwrap_or_else(|| IDLE.map(str::to_owned).to_vec())),
        lifecycle: request.lifecycle.or_else(|| template.lifecycle.clone()),
        network_policy: request.network_policy.or_else(|| template.network_policy.clone()),
        ..request
    })
}

fn joined<T>(common: Option<BTreeMap<String, T>>, own: Option<BTreeMap<String, T>>) -> Option<BTreeMap<String, T>> {
    let mut all = common.unwrap_or_default();
    all.extend(own.unwrap_or_default());
    Some(all)
}

/// What a pool does with a create for which nobody waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenEmpty {
    /// Makes the sandbox as if there were no pool, within its `poolMax`.
    #[default]
    Create,
    /// Refuses it until somebody waits again.
    Refuse,
}

impl WhenEmpty {
    /// Reads `create` or `refuse`.
    ///
    /// # Errors
    /// A [`Refusal`] for another word.
    pub fn parse(word: Option<&str>) -> Result<Self, Refusal> {
        match word {
            None | Some("create") => Ok(Self::Create),
            Some("refuse") => Ok(Self::Refuse),
            Some(other) => Err(Refusal::bad("whenEmpty", format!("\"{other}\" is unknown; use create or refuse"))),
        }
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Refuse => "refuse",
        }
    }
}

/// A field of a template that does not exist here.
fn unknown(field: impl Into<String>, problem: &str) -> Refusal {
    Refusal::of(400, code::NOT_SUPPORTED, field, problem)
}

/// A template as its owner wrote it, which is an object.
pub type Template = serde_json::Map<String, Value>;
