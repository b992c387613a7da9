//! One process is killed before and after every effect that the lives of sandboxes have, while a client works.
//!
//! A few lives without a kill teach the kinds of effects (see `e2e::trace`). Then lives are led again and again, each
//! with a kill in some of its sections, until every kind has been struck on both sides. After each life every promise
//! must have been kept and nothing may be left.
//!
//! `OSB_E2E_ONLY` strikes only at places whose words contain it, `OSB_E2E_SHOW` lists the kinds, and
//! `OSB_E2E_EFFECTS=long` also strikes the second and third of equal effects, and those of recoveries.

mod life;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::trace::Place;
use life::{Lab, Life};

/// Lives of each kind that teach: what is done ahead (seats, disks) comes in any of them.
const TEACHERS: usize = 3;
/// An effect that did not come in so many lives was one of chance.
const MAX_CHANCES: u32 = 3;
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
    let occurrences = if long { 3 } else { 1 };
    agenda.add(&lab, occurrences);
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
        agenda.settle(&places, &lived.struck, &lived.reached);
        if long {
            agenda.add(&lab, occurrences);
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

/// Which places are still to be struck.
#[derive(Default)]
struct Agenda {
    /// With the section in which the effect comes, and how often it did not come.
    open: BTreeMap<Place, (String, u32)>,
    struck: BTreeSet<Place>,
    missed: BTreeSet<Place>,
}

impl Agenda {
    fn add(&mut self, lab: &Lab, occurrences: u32) {
        let only = std::env::var("OSB_E2E_ONLY").unwrap_or_default();
        for place in lab.places(occurrences) {
            if !place.0.to_string().contains(&only) {
                continue;
            }
            let known = self.struck.contains(&place.0) || self.missed.contains(&place.0);
            if !known {
                self.open.entry(place.0).or_insert((place.1, 0));
            }
        }
    }

    /// The next life, with one place for each of its sections that has any left.
    fn next(&self) -> Option<(Life, Vec<Place>)> {
        let (_, (section, _)) = self.open.first_key_value()?;
        let life = Life::with(section);
        let first = |section: &&str| self.open.iter().find(|(_, (found, _))| found == section);
        let places = life.sections().iter().filter_map(first).map(|(place, _)| place.clone());
        Some((life, places.collect()))
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
