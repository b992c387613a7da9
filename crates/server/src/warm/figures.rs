//! What waited and how it served, for Prometheus. The one label that is not a word of ours is a pool's name, which an operator
//! chose; kinds that were asked for count together, under the empty name.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Warm;
use super::group::Counts;
use super::keep::word;

impl Warm {
    /// In the text format of Prometheus (version 0.0.4).
    pub(crate) fn text(&self) -> String {
        let mut sums: BTreeMap<String, ([u64; 3], Counts)> = BTreeMap::new();
        for (name, group) in &self.lock().groups {
            let (numbers, counts) = sums.entry(word(name).to_owned()).or_default();
            let census = group.census();
            for (sum, number) in numbers.iter_mut().zip([census.bound, census.ready, census.making]) {
                *sum += u64::from(number);
            }
            counts.hits += group.counts.hits;
            counts.misses += group.counts.misses;
            counts.waits += group.counts.waits;
            counts.refused += group.counts.refused;
            counts.refilled += group.counts.refilled;
            counts.failed += group.counts.failed;
            counts.claim_seconds += group.counts.claim_seconds;
            counts.claimed += group.counts.claimed;
        }
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, String)>| {
            // Writing to memory does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let mut sandboxes = Vec::new();
        let mut claims = Vec::new();
        let mut refills = Vec::new();
        let (mut seconds, mut count) = (Vec::new(), Vec::new());
        for (pool, (numbers, counts)) in &sums {
            for (state, number) in ["bound", "ready", "making"].iter().zip(numbers) {
                sandboxes.push((format!("{{pool=\"{pool}\",state=\"{state}\"}}"), number.to_string()));
            }
            let outcomes =
                [("hit", counts.hits), ("miss", counts.misses), ("waited", counts.waits), ("refused", counts.refused)];
            for (outcome, number) in outcomes {
                claims.push((format!("{{pool=\"{pool}\",outcome=\"{outcome}\"}}"), number.to_string()));
            }
            for (outcome, number) in [("made", counts.refilled), ("failed", counts.failed)] {
                refills.push((format!("{{pool=\"{pool}\",outcome=\"{outcome}\"}}"), number.to_string()));
            }
            seconds.push((format!("{{pool=\"{pool}\"}}"), format!("{:.6}", counts.claim_seconds)));
            count.push((format!("{{pool=\"{pool}\"}}"), counts.claimed.to_string()));
        }
        family("pool_sandboxes", "gauge", "Sandboxes that wait, are being made to, or were given away.", sandboxes);
        family("pool_claims_total", "counter", "Creates by what became of them; who waited counts again.", claims);
        family("pool_refills_total", "counter", "Sandboxes that were made to wait, or could not be.", refills);
        family("pool_claim_seconds_sum", "counter", "Time from taking a waiting sandbox until it ran.", seconds);
        family("pool_claim_seconds_count", "counter", "How many those are.", count);
        text
    }
}
