//! What leaves sandboxes: bytes that nobody looks into, requests into which a credential is put, and neighbours.

use std::time::Duration;

use anyhow::Result;

use super::super::Bench;
use super::super::peer::way_out::WayOut;
use super::super::report::{Figure, Row, Unit};

/// Connections at once, and the million bytes that a second of the processor must move with them.
const FLOWS: [(usize, f64); 3] = [(1, 2000.0), (64, 2000.0), (256, 1000.0)];
/// By whom the same goes in the same run; those with processes that pass bytes on first.
const SUBJECTS: [&str; 3] = ["osb", "nginx stream", "direct"];

/// Everything that leaves, in the order of the targets.
pub async fn run(bench: &Bench) -> Result<Vec<Row>> {
    let length = Duration::from_millis(300 * bench.runs(10) as u64);
    let found = WayOut::run(bench, "plain", length)?;
    let mut rows = plain(&found, "plain TCP")?;
    rows.push(latency(&found)?);
    rows.extend(plain(&WayOut::run(bench, "tls", length)?, "TLS passed through")?);
    rows.extend(injection(&WayOut::run(bench, "injection", length)?)?);
    rows.push(fairness(&WayOut::run(bench, "fairness", length)?)?);
    Ok(rows)
}

fn plain(found: &WayOut, what: &str) -> Result<Vec<Row>> {
    let note = "Read as fast as it comes from an origin that sends without end, through the steering of a sandbox's \
                namespace and the egress process; nginx passes the same on in the same place, direct is one connection \
                over the same interface. Per second of the processor: of the processes that pass bytes on, the kernel's \
                work for them included.";
    let mut rows = Vec::new();
    for (flows, bound) in FLOWS {
        let mut rates = Vec::new();
        for who in SUBJECTS {
            rates.push(Figure::new(who, Unit::Megabytes, found.of(&format!("rate {flows}"), who)?));
        }
        let share = 100.0 * rates[0].p50() / rates[2].p50();
        for who in &SUBJECTS[..2] {
            let subject = format!("{who}, per second of the processor");
            rates.push(Figure::new(subject, Unit::Megabytes, found.of(&format!("per cpu {flows}"), who)?));
        }
        let per_second = rates[3].p50();
        rows.push(
            Row::new(format!("egress, {what}, {}", counted(flows)), rates, note)
                .at_least("per second of the processor", per_second, bound, " MB")
                .at_least("share of direct", share, 70.0, " %"),
        );
    }
    Ok(rows)
}

fn counted(flows: usize) -> String {
    match flows {
        1 => "1 flow".to_owned(),
        more => format!("{more} flows"),
    }
}

fn latency(found: &WayOut) -> Result<Row> {
    let mut figures = Vec::new();
    for who in SUBJECTS {
        figures.push(Figure::new(who, Unit::Millis, found.of("latency", who)?));
    }
    let added = figures[0].p99() - figures[2].p99();
    let note = "64 bytes there and back on one connection, with a pause between; added is against direct.";
    Ok(Row::new("egress, plain TCP: latency", figures, note).at_most("added p99", added, 0.3, " ms"))
}

fn injection(found: &WayOut) -> Result<Vec<Row>> {
    let (mut latencies, mut memory) = (Vec::new(), Vec::new());
    for who in ["osb", "mitmproxy", "direct"] {
        latencies.push(Figure::new(who, Unit::Millis, found.of("latency", who)?));
    }
    let added = latencies[0].p99() - latencies[2].p99();
    for who in ["osb", "mitmproxy", "direct"] {
        latencies.push(Figure::new(format!("{who}, requests answered"), Unit::Rate, found.of("rate", who)?));
    }
    for (what, who) in [("PSS", "osb"), ("RSS", "osb"), ("idle PSS", "osb"), ("PSS", "mitmproxy"), ("RSS", "mitmproxy")]
    {
        memory.push(Figure::new(format!("{who}, {what}"), Unit::Memory, found.of(what, who)?));
    }
    let process = memory[0].p50();
    let note = "1,000 requests in a second over 20 kept-alive connections, HTTP/1.1 over TLS, a bearer token put into each \
                and looked for in each answer; mitmproxy puts one in and looks for nothing. Added is against direct.";
    Ok(vec![
        Row::new("egress, credential injection: latency", latencies, note).at_most("added p99", added, 1.2, " ms"),
        Row::new("egress, credential injection: memory", memory, "After the requests of the row above.")
            .at_most("process", process, 24.0, " MiB"),
    ])
}

fn fairness(found: &WayOut) -> Result<Row> {
    let mut figures = Vec::new();
    for (what, who) in [("alone", "osb"), ("beside", "osb"), ("alone", "direct"), ("beside", "direct")] {
        figures.push(Figure::new(format!("{who}, {what}"), Unit::Millis, found.of(what, who)?));
    }
    let (alone, beside) = (figures[0].p99(), figures[1].p99());
    let allowed = (alone * 0.1).max(2.0);
    let note = "64 bytes there and back for one sandbox, alone and beside one at its caps: as many flows as it may have, most \
                of them standing still, more that wait, and five times the questions for names that it may ask. Direct is \
                beside the same: what the machine itself makes worse.";
    // Beside it may be quicker by chance.
    let grown = (beside - alone).max(0.0);
    Ok(Row::new("egress, a neighbour at its caps", figures, note).at_most("grown p99", grown, allowed, " ms"))
}
