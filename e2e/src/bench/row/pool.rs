//! Sandboxes that waited: claimed one after another, in a burst, and a hundred at once out of a full and an empty pool.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};

use super::super::Bench;
use super::super::client::{Connection, Payload};
use super::super::peer::docker::{Docker, IMAGE};
use super::super::peer::floor::Floor;
use super::super::report::{Figure, Row, Unit};
use super::super::sandbox::{Bed, Sandbox, body};
use super::create::create;
use super::millis;

/// Subjects take turns in blocks, so that a noisy minute hits all of them.
const BLOCKS: usize = 10;
/// Runs before the first that counts.
const WARM_UP: usize = 10;
/// Sandboxes of the pool.
const SIZE: usize = 100;
/// Clients that share the burst.
const CLIENTS: usize = 8;
/// How long a pool may take to be full before the bench gives up.
const FULL: Duration = Duration::from_secs(60);
/// Between two looks at a pool.
const LOOK: Duration = Duration::from_millis(20);

/// One sandbox after another, each of which waited.
pub async fn warm(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make_warm(bench).await?;
    let docker = Docker::start(bench)?;
    let pool = Pool::make(&mut bed, "warm", 2, 50).await?;
    for _ in 0..WARM_UP {
        pool.full(&mut bed.connection, 2).await?;
        create(&mut bed, pool.body()).await?.1.delete(&mut bed.connection, &bed.key.clone()).await?;
        docker.ask(&["run", "--rm", "--network", "none", IMAGE, "/bin/true"])?;
    }
    let (mut ours, mut ready, mut floor, mut containers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        for _ in 0..bench.runs(200) / BLOCKS {
            pool.full(&mut bed.connection, 2).await?;
            let ((whole, answering), sandbox) = create(&mut bed, pool.body()).await?;
            ours.push(whole);
            ready.push(answering);
            sandbox.delete(&mut bed.connection, &bed.key.clone()).await?;
        }
        floor.extend(Floor::run(&bench.options.floor, bench.runs(200) / BLOCKS, 1)?.millis());
        for _ in 0..bench.runs(100) / BLOCKS {
            containers.push(docker.time(&["run", "--rm", "--network", "none", IMAGE, "/bin/true"])?);
        }
    }
    let status = pool.status(&mut bed.connection).await?;
    ensure!(status["misses"] == 0, "a create found none waiting: {status}");
    let ours = Figure::new("osb, to the first output", Unit::Millis, ours);
    let ready = Figure::new("osb, to the endpoint", Unit::Millis, ready);
    let (p50, p99) = (ours.p50(), ours.p99());
    let figures = vec![
        ours,
        ready,
        Figure::new("floor", Unit::Millis, floor),
        Figure::new("docker run --network none", Unit::Millis, containers),
    ];
    let note = "As the row before, out of a pool in which two wait; limits, main process and environment are the request's. Each \
        starts when the pool is full again.";
    let row = Row::new("warm create to a command's first output", figures, note);
    Ok(vec![row.at_most("p50", p50, 5.0, " ms").at_most("p99", p99, 15.0, " ms")])
}

/// A hundred sandboxes, all answering: out of a pool in which they wait, and out of one in which none does.
pub async fn hundred(bench: &Bench) -> Result<Vec<Row>> {
    let mut bed = Bed::make_warm(bench).await?;
    let count = SIZE; // also in a quick run: what is bounded is so many
    let runs = bench.runs(50).div_ceil(5);
    let (mut full, mut accepted, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let pool = Pool::make(&mut bed, "full", count, count * 2).await?;
        pool.full(&mut bed.connection, count).await?;
        let (taken, all) = burst(&mut bed, &pool, count).await?;
        let status = pool.status(&mut bed.connection).await?;
        ensure!(status["misses"] == 0, "a create found none waiting: {status}");
        accepted.push(count as f64 / taken * 1e3);
        full.push(all);
        pool.remove(&mut bed).await?;
        let pool = Pool::make(&mut bed, "empty", 0, count * 2).await?;
        empty.push(burst(&mut bed, &pool, count).await?.1);
        pool.remove(&mut bed).await?;
    }
    let docker = Docker::start(bench)?;
    let start = Instant::now();
    for _ in 0..count {
        docker.ask(&["run", "--detach", "--network", "none", IMAGE, "/bin/sleep", "100000"])?;
    }
    let containers = millis(start);
    let rate = Figure::new("osb, claims in a second", Unit::Rate, accepted);
    let full = Figure::new("osb, full pool", Unit::Millis, full);
    let empty = Figure::new("osb, empty pool", Unit::Millis, empty);
    let (claims, of_full, of_empty) = (rate.p50(), full.p50(), empty.p50());
    let figures = vec![full, empty, rate, Figure::single("docker run, one after another", Unit::Millis, containers)];
    let note = "A hundred creates by eight clients, until the endpoint of each is there, which is when its execd answers. Claims in a \
        second are those of the full pool, to the same point.";
    Ok(vec![
        Row::new("a hundred sandboxes from a pool, all answering", figures, note)
            .at_most("full", of_full, 150.0, " ms")
            .at_most("empty", of_empty, 1200.0, " ms")
            .at_least("burst", claims, 300.0, "/s"),
    ])
}

/// A pool of a bed's server.
struct Pool {
    name: &'static str,
    key: String,
}

impl Pool {
    async fn make(bed: &mut Bed, name: &'static str, ready: usize, most: usize) -> Result<Self> {
        let pool = Self { name, key: bed.key.clone() };
        let body = json!({
            "name": name,
            "template": { "image": { "uri": "host" }, "entrypoint": ["sleep", "infinity"] },
            "capacitySpec": { "bufferMin": ready, "bufferMax": ready, "poolMax": most, "poolMin": 0 },
        });
        bed.connection.json(Method::POST, "/v1/pools", &pool.auth(), body).await?;
        Ok(pool)
    }

    fn auth(&self) -> [(&str, &str); 1] {
        [("open-sandbox-api-key", self.key.as_str())]
    }

    async fn status(&self, connection: &mut Connection) -> Result<Value> {
        let path = format!("/v1/pools/{}", self.name);
        Ok(connection.json(Method::GET, &path, &self.auth(), Value::Null).await?["status"].take())
    }

    /// Waits until so many wait.
    async fn full(&self, connection: &mut Connection, count: usize) -> Result<()> {
        let deadline = Instant::now() + FULL;
        loop {
            let status = self.status(connection).await?;
            if status["available"] == count {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the pool is not full: {status}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What a create out of it says.
    fn body(&self) -> Value {
        let mut body = body();
        if let Some(body) = body.as_object_mut() {
            body.remove("image");
            body.insert("extensions".to_owned(), json!({ "poolRef": self.name }));
        }
        body
    }

    async fn remove(self, bed: &mut Bed) -> Result<()> {
        let path = format!("/v1/pools/{}", self.name);
        bed.connection.ask(Method::DELETE, &path, &self.auth(), Payload::Empty).await.map(drop)
    }
}

/// Creates so many by several clients and deletes them; milliseconds until all were there, twice over: by the clients' own
/// clocks and by one.
async fn burst(bed: &mut Bed, pool: &Pool, count: usize) -> Result<(f64, f64)> {
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(bed.server.connect().await?);
    }
    let (key, body) = (bed.key.clone(), pool.body());
    let start = Instant::now();
    let work = connections.into_iter().enumerate().map(|(place, mut connection)| {
        let (key, body) = (key.clone(), body.clone());
        let share = count / CLIENTS + usize::from(place < count % CLIENTS);
        async move {
            let mut made = Vec::new();
            for _ in 0..share {
                made.push(Sandbox::create_as(&mut connection, &key, body.clone()).await?);
            }
            anyhow::Ok((connection, made, millis(start)))
        }
    });
    let made = try_join_all(work).await?;
    let all = millis(start);
    let slowest = made.iter().map(|(_, _, at)| *at).fold(0.0, f64::max);
    for (mut connection, sandboxes, _) in made {
        for sandbox in sandboxes {
            sandbox.delete(&mut connection, &key).await?;
        }
    }
    Ok((slowest, all))
}
