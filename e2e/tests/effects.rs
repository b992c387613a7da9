//! One process is killed before and after every effect that the lives of sandboxes have, while a client works.
//!
//! A few lives without a kill teach the kinds of effects (see `e2e::trace`). Then lives are led again and again, each
//! with a kill of each kind of process in each of its sections, until every kind has been struck on both sides. After
//! each life every promise must have been kept and nothing may be left.
//!
//! Of effects that leave the same state one is struck, another with every seed: `OSB_E2E_SEED` repeats a choice.
//! `OSB_E2E_EFFECTS=long` strikes them all, also the second and third of equal ones and those of recoveries.
//! `OSB_E2E_ONLY` strikes only at places whose words contain it, `OSB_E2E_SHOW` lists the kinds.

mod life;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use e2e::trace::Place;
use life::{Lab, Life};

/// Lives of each kind that teach: what is done ahead (seats, disks) comes in any of them.
const TEACHERS: usize = 3;
/// An effect that did not come in so many lives was one of chance.
const MAX_CHANCES: u32 = 3;
/// So many of equal effects are struck in the long run: a database writes several pages, a jailer has several children.
const EQUAL_EFFECTS: u32 = 3;
/// At least so many places of a hundred must be struck, or the test proves nothing.
const LEAST_STRUCK_PERCENT: usize = 85;
/// Fewer kinds than this mean that the tracer is blind.
const LEAST_KINDS: usize = 60;
/// No run takes longer, the long one apart.
const BOUND: Duration = Duration::from_secs(600);
/// The long one.
const LONG_BOUND: Duration = Duration::from_secs(7200);

#[test]
fn os_002_a_kill_at_any_effect_loses_and_leaves_nothing() {
    let long = std::env::var("OSB_E2E_EFFECTS").is_ok_and(|mode| mode == "long");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let bound = if long { LONG_BOUND } else { BOUND };
    let tried = runtime.block_on(async { tokio::time::timeout(bound, try_every_effect(long)).await });
    tried.expect("in time").expect("every kill is survived");
}

async fn try_every_effect(long: bool) -> Result<()> {
    let started = Instant::now();
    let mut lab = Lab::open().await?;
    for _ in 0..TEACHERS {
        for life in Life::ALL {
            let lived = lab.live(life, &[]).await;
            lived.problem.map_or(Ok(()), |problem| Err(problem.context(format!("a {life:?} life without a kill"))))?;
        }
    }
    let mut agenda = Agenda::default();
    let seed = std::env::var("OSB_E2E_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(by_clock);
    println!("seed {seed} (repeat with OSB_E2E_SEED={seed})");
    agenda.add(&lab, if long { Scope::All } else { Scope::OneOfEach(seed) });
    let kinds = lab.effects().len();
    println!("{kinds} kinds of effects, {} places to kill at, {:?}", agenda.open.len(), started.elapsed());
    for (effect, section) in lab.effects().iter().filter(|_| std::env::var_os("OSB_E2E_SHOW").is_some()) {
        println!("  {section:10} {effect}");
    }
    anyhow::ensure!(kinds >= LEAST_KINDS, "only {kinds} kinds of effects were seen");

    let mut problems = Vec::new();
    let mut lives = 0;
    while let Some((life, places)) = agenda.next() {
        let lived = lab.live(life, &places).await;
        lives += 1;
        let struck: Vec<String> = lived.struck.iter().map(ToString::to_string).collect();
        if let Some(problem) = lived.problem {
            println!("BROKEN {life:?}: {problem:#}\n  by: {}", struck.join("\n      "));
            problems.push(format!("{life:?} {struck:?}: {problem:#}"));
        }
        if std::env::var_os("OSB_E2E_SHOW").is_some() {
            println!("{life:?} {:?}: {}", started.elapsed(), struck.join("; "));
        }
        agenda.settle(&places, &lived.struck, &lived.reached);
        if long {
            agenda.add(&lab, Scope::All);
        }
    }
    let (struck, missed) = (agenda.struck.len(), agenda.missed.len());
    println!("{lives} lives, {struck} places struck, {missed} not met again, slowest restart {:?}", lab.slowest());
    for place in &agenda.missed {
        println!("  not met again: {place}");
    }
    println!("outcomes: {:?}, all in {:?}", lab.outcomes(), started.elapsed());
    anyhow::ensure!(problems.is_empty(), "{} lives were broken:\n{}", problems.len(), problems.join("\n"));
    anyhow::ensure!(struck * 100 >= (struck + missed) * LEAST_STRUCK_PERCENT, "{missed} places were not met again");
    lab.close()
}

/// How much is struck.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Everything.
    All,
    /// One of each group of effects, by this seed.
    OneOfEach(u64),
}

fn by_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::from(now.subsec_nanos()) ^ now.as_secs()
}

/// Which places are still to be struck.
#[derive(Default)]
struct Agenda {
    /// With the section in which the effect comes, and how often it did not come.
    open: BTreeMap<Place, (String, u32)>,
    struck: BTreeSet<Place>,
    missed: BTreeSet<Place>,
}

impl Agenda {
    fn add(&mut self, lab: &Lab, scope: Scope) {
        let only = std::env::var("OSB_E2E_ONLY").unwrap_or_default();
        let mut groups: BTreeMap<String, Vec<(Place, String)>> = BTreeMap::new();
        for (place, section) in lab.places(if scope == Scope::All { EQUAL_EFFECTS } else { 1 }) {
            let group = match scope {
                Scope::All => place.to_string(),
                Scope::OneOfEach(_) => format!("{:?} {}", place.phase, place.effect.group()),
            };
            if place.to_string().contains(&only) {
                groups.entry(group).or_default().push((place, section));
            }
        }
        for mut group in groups.into_values() {
            let chosen = match scope {
                Scope::All => 0,
                Scope::OneOfEach(seed) => seed as usize % group.len(),
            };
            let (place, section) = group.swap_remove(chosen);
            if !self.struck.contains(&place) && !self.missed.contains(&place) {
                self.open.entry(place).or_insert((section, 0));
            }
        }
    }

    /// The next life, with one place for each kind of process in each of its sections.
    fn next(&self) -> Option<(Life, Vec<Place>)> {
        let (_, (section, _)) = self.open.first_key_value()?;
        let life = Life::with(section);
        let mut places: BTreeMap<(&str, &str), &Place> = BTreeMap::new();
        for (place, (section, _)) in &self.open {
            if life.sections().contains(&&**section) {
                places.entry((section, place.effect.role())).or_insert(place);
            }
        }
        Some((life, places.into_values().cloned().collect()))
    }

    fn settle(&mut self, tried: &[Place], struck: &[Place], reached: &BTreeSet<String>) {
        for place in struck {
            self.open.remove(place);
            self.struck.insert(place.clone());
        }
        for place in tried {
            let Some((section, chances)) = self.open.get_mut(place) else { continue };
            // A sandbox that a kill has ended does not come to the later sections.
            if reached.contains(section) {
                *chances += 1;
            }
            if *chances >= MAX_CHANCES {
                self.open.remove(place);
                self.missed.insert(place.clone());
            }
        }
    }
}
