//! A fuzzer without coverage, for stable compilers: examples, changed at random, given to a parser for some
//! seconds. What makes it panic is printed so that it can become an example.
//!
//! `OSB_FUZZ_SECONDS` says how long each target runs: [`DEFAULT_SECONDS`] in a plain `cargo test`, a minute in
//! `cargo xtask test`, an hour before a release. A target lies beside its parser, as a unit test.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

mod random;

pub use random::Random;

/// Seconds of one target where nothing else is said.
pub const DEFAULT_SECONDS: u64 = 6;
/// Inputs that are kept to be changed further.
const MAX_POOL: usize = 512;
/// Bytes of an input.
const MAX_BYTES: usize = 4096;
/// Values at which parsers go wrong.
const BYTES: [u8; 16] =
    [0, b'\n', b'\r', b' ', b'"', b'\'', b'\\', b'$', b'{', b'}', b'=', b'-', b'/', 0x7f, 0x80, 0xff];
/// Numbers at which parsers go wrong.
const NUMBERS: [&str; 6] = ["0", "-1", "4294967296", "9223372036854775807", "18446744073709551616", "1e999"];

/// Gives changed examples to `parse` until the time is up; `parse` panics where an invariant is broken.
pub fn run(name: &str, examples: &[&[u8]], parse: impl Fn(&[u8])) {
    run_for(span(), name, examples, parse);
}

/// The same for a tenth of the time: for what our own programs say to each other, which is short and has few forms.
pub fn run_briefly(name: &str, examples: &[&[u8]], parse: impl Fn(&[u8])) {
    run_for(span() / 10, name, examples, parse);
}

fn span() -> Duration {
    let seconds = std::env::var("OSB_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS))
}

fn run_for(span: Duration, name: &str, examples: &[&[u8]], parse: impl Fn(&[u8])) {
    let seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let mut random = Random::new(seed);
    let mut pool: Vec<Vec<u8>> = examples.iter().map(|example| example.to_vec()).collect();
    let begun = Instant::now();
    let mut inputs = 0u64;
    for example in examples {
        check(name, seed, example, &parse);
    }
    while begun.elapsed() < span {
        let mut input = random.pick(&pool).clone();
        for _ in 0..=random.below(4) {
            change(&mut input, &pool, &mut random);
        }
        input.truncate(MAX_BYTES);
        check(name, seed, &input, &parse);
        inputs += 1;
        if random.chance(64) {
            if pool.len() < MAX_POOL {
                pool.push(input);
            } else {
                let at = examples.len() + random.below(MAX_POOL - examples.len());
                pool[at] = input;
            }
        }
    }
    println!("{name}: {inputs} inputs in {:.0?}, seed {seed}", begun.elapsed());
    assert!(inputs > 100, "{name}: {inputs} inputs prove nothing");
}

fn check(name: &str, seed: u64, input: &[u8], parse: &impl Fn(&[u8])) {
    if catch_unwind(AssertUnwindSafe(|| parse(input))).is_err() {
        panic!("{name} broke, seed {seed}, on b\"{}\"", input.escape_ascii());
    }
}

fn change(input: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let end = at + random.below(input.len() - at + 1);
    match random.below(8) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = *random.pick(&BYTES),
        2 => input.insert(at, *random.pick(&BYTES)),
        3 => drop(input.drain(at..end)),
        4 => {
            let copied = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, copied);
        }
        5 => {
            let other = random.pick(pool);
            let from = random.below(other.len() + 1);
            input.splice(at..end, other[from..].iter().copied());
        }
        6 => drop(input.splice(at..end, random.pick(&NUMBERS).bytes())),
        _ => input.insert(at, random.number() as u8),
    }
}
