//! The lives of sandboxes, section by section, led by a client that asks again when a kill cut it off.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::census::{Census, describe};
use e2e::client::Client;
use e2e::promise::{Promise, settled};
use e2e::server::Server;
use e2e::trace::{Effect, Kill, Phase, Place, Tracer};
use serde_json::{Value, json};

/// In this time a killed server or jailer must be back.
const BACK: Duration = Duration::from_secs(2);
/// How long the client asks again after a kill, and waits for an end that is due.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two questions.
const AGAIN: Duration = Duration::from_millis(5);
/// How long the word of a kill may be behind what it did.
const WORD: Duration = Duration::from_secs(2);
/// How often a server is started again that is killed at its start.
const STARTS: usize = 3;
/// Lines of the background command.
const LINES: usize = 20;

/// One course of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Everything that a client can ask for.
    Whole,
    /// The main process ends by itself.
    End,
    /// The deadline passes.
    Expiry,
    /// The server is started anew over a running sandbox.
    Start,
}

impl Life {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Whole, Self::End, Self::Expiry, Self::Start];

    /// What the tracer calls its sections.
    pub fn sections(self) -> &'static [&'static str] {
        match self {
            Self::Whole => &["create", "run", "background", "pause", "resume", "renew", "check", "delete"],
            Self::End => &["create", "end", "delete"],
            Self::Expiry => &["create", "expiry", "delete"],
            Self::Start => &["start", "delete"],
        }
    }

    /// The one to meet a section's effects in.
    pub fn with(section: &str) -> Self {
        Self::ALL.into_iter().find(|life| life.sections().contains(&section)).unwrap_or(Self::Whole)
    }
}

/// What came of a life.
pub struct Lived {
    /// Where something was killed.
    pub struck: Vec<Place>,
    /// Sections that it came to.
    pub reached: BTreeSet<String>,
    /// What was broken.
    pub problem: Option<anyhow::Error>,
}

/// A traced server with one client.
pub struct Lab {
    server: Server,
    client: Client,
    tracer: Tracer,
    before: Census,
    /// The same in words.
    described: BTreeMap<String, usize>,
    reached: BTreeSet<String>,
    /// Kills of earlier lives.
    told: usize,
    /// Kills that were looked at, of all lives.
    looked_at: usize,
    /// Processes that are not back yet.
    away: Vec<Kill>,
    outcomes: BTreeMap<String, usize>,
    slowest: Duration,
}

impl Lab {
    /// Starts the server and makes what is made once.
    pub async fn open() -> Result<Self> {
        let mut tracer = Tracer::start(Path::new(env!("CARGO_BIN_EXE_tracer")))?;
        tracer.section(FIRST)?;
        let server = Server::start_traced(&mut tracer)?;
        let client = server.client();
        let (id, _) = client.create(&body(&["sleep", "infinity"])).await?;
        client.endpoint(&id).await?;
        client.delete(&id).await?;
        let before = settled(&server, None).await;
        println!("before: {before:?}");
        Ok(Self {
            described: describe(&server),
            server,
            client,
            tracer,
            before,
            reached: BTreeSet::new(),
            told: 0,
            looked_at: 0,
            away: Vec::new(),
            outcomes: BTreeMap::new(),
            slowest: Duration::ZERO,
        })
    }

    /// Every kind of effect, with the section that it was met in first.
    pub fn effects(&self) -> BTreeMap<Effect, String> {
        let first = |sections: Vec<String>| sections.into_iter().find(|section| section != FIRST);
        let effects = self.tracer.effects().into_iter();
        effects.filter_map(|(effect, sections)| Some((effect, first(sections)?))).collect()
    }

    /// Both sides of every kind.
    pub fn places(&self, occurrences: u32) -> Vec<(Place, String)> {
        let mut places = Vec::new();
        for (effect, section) in self.effects() {
            for occurrence in 1..=occurrences {
                let place = |phase| Place { phase, occurrence, effect: effect.clone() };
                places.extend(Phase::BOTH.map(|phase| (place(phase), section.clone())));
            }
        }
        places
    }

    /// The longest that a killed process was away.
    pub fn slowest(&self) -> Duration {
        self.slowest
    }

    /// How often sandboxes were found how.
    pub fn outcomes(&self) -> &BTreeMap<String, usize> {
        &self.outcomes
    }

    /// Stops the server.
    pub fn close(mut self) -> Result<()> {
        self.tracer.arm([])?;
        self.server.stop()
    }

    /// Leads one life with kills at these places.
    pub async fn live(&mut self, life: Life, places: &[Place]) -> Lived {
        self.reached.clear();
        let led = match life {
            Life::Whole => self.whole(places).await,
            Life::End => self.end(places).await,
            Life::Expiry => self.expiry(places).await,
            Life::Start => self.start(places).await,
        };
        let calm = self.calm().await;
        let struck: Vec<Place> = self.kills().into_iter().map(|kill| kill.place).collect();
        self.told += struck.len();
        let reached = std::mem::take(&mut self.reached);
        let mut lived = led.and(calm);
        if lived.is_err() {
            let renewed = self.renew().await;
            lived = lived.and(renewed);
        }
        Lived { struck, reached, problem: lived.err() }
    }

    async fn whole(&mut self, places: &[Place]) -> Result<()> {
        self.tracer.arm(places)?;
        self.reach("create")?;
        let mut promise = self.create(&["sleep", "infinity"]).await?;
        self.work(&mut promise).await?;
        self.delete(&promise.id).await
    }

    /// All between creation and deletion; stops early when a kill has ended the sandbox.
    async fn work(&mut self, promise: &mut Promise) -> Result<()> {
        let id = promise.id.clone();
        let Some(at) = self.ask(&id, async |client, id| client.endpoint(id).await).await? else { return Ok(()) };
        self.reach("run")?;
        let echo = self.ask(&id, async |client, _| client.run(&at, "echo $((6 * 7))").await).await?;
        let Some(echo) = echo else { return Ok(()) };
        anyhow::ensure!(echo.stdout == "42\n", "echo gave {echo:?}");
        self.reach("background")?;
        let command = format!("for n in $(seq {LINES}); do echo line $n; done");
        let started = self.ask(&id, async |client, _| client.start(&at, &command).await).await?;
        let Some(started) = started else { return Ok(()) };
        promise.background = Some((started, (1..=LINES).map(|number| format!("line {number}\n")).collect()));
        for (section, wanted) in [("pause", "Paused"), ("resume", "Running")] {
            self.reach(section)?;
            let asked = self.ask(&id, async |client, id| turn(client, id, section, wanted).await).await?;
            if asked.is_none() {
                return Ok(());
            }
        }
        self.reach("renew")?;
        let patience = Instant::now() + PATIENCE;
        let client = self.client.clone();
        while !self.during(promise.renew(&client, 5000)).await? {
            self.excuse(anyhow::anyhow!("the renewal was refused or not answered"), patience).await?;
            if ended(&self.client, &id).await.is_some() {
                return Ok(());
            }
        }
        self.reach("check")?;
        let promise = &*promise;
        let outcome = self.ask(&id, async |client, _| promise.check(client).await).await?;
        *self.outcomes.entry(outcome.unwrap_or_else(|| "ended".into())).or_default() += 1;
        Ok(())
    }

    async fn end(&mut self, places: &[Place]) -> Result<()> {
        self.tracer.arm(places)?;
        self.reach("create")?;
        let script = "until [ -e /tmp/end ]; do sleep 0.02; done; exit 7";
        let promise = self.create(&["sh", "-c", script]).await?;
        let id = &*promise.id;
        if let Some(at) = self.ask(id, async |client, id| client.endpoint(id).await).await? {
            self.reach("end")?;
            // The sandbox may be gone before the answer is.
            let touch = async |client: &Client, _: &str| Ok(client.run(&at, "touch /tmp/end").await.is_ok());
            self.ask(id, touch).await?;
            let patience = Instant::now() + PATIENCE;
            loop {
                match self.during(ended(&self.client.clone(), id)).await? {
                    Some(cause) => {
                        anyhow::ensure!(!cause.is_empty(), "ended without a cause");
                        *self.outcomes.entry(cause).or_default() += 1;
                        break;
                    }
                    None => anyhow::ensure!(Instant::now() < patience, "it ended, and nobody says so"),
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        self.delete(id).await
    }

    async fn expiry(&mut self, places: &[Place]) -> Result<()> {
        self.tracer.arm(places)?;
        self.reach("create")?;
        let mut promise = self.create(&["sleep", "infinity"]).await?;
        let id = promise.id.clone();
        if self.ask(&id, async |client, id| client.endpoint(id).await).await?.is_some() {
            self.reach("expiry")?;
            let patience = Instant::now() + PATIENCE;
            let client = self.client.clone();
            while !self.during(promise.renew(&client, 1)).await? && !self.is_gone(&id).await? {
                self.excuse(anyhow::anyhow!("the renewal was refused or not answered"), patience).await?;
            }
            while !self.is_gone(&id).await? {
                anyhow::ensure!(Instant::now() < patience, "its deadline passed, and it is there");
                tokio::time::sleep(AGAIN).await;
            }
        }
        self.delete(&id).await
    }

    async fn start(&mut self, places: &[Place]) -> Result<()> {
        self.reach("create")?;
        let mut promise = self.create(&["sleep", "infinity"]).await?;
        let at = self.client.endpoint(&promise.id).await?;
        let started = self.client.start(&at, "echo once").await?;
        promise.background = Some((started, "once\n".into()));
        self.tracer.arm(places)?;
        self.reach("start")?;
        for attempt in 1.. {
            let Err(problem) = self.server.start_again_traced(&mut self.tracer) else { break };
            let kills = self.tracer.kills().split_off(self.looked_at);
            let killed = kills.iter().any(|kill| kill.place.effect.role() == SUPERVISOR);
            anyhow::ensure!(killed && attempt < STARTS, problem.context("start again"));
            // Whoever died before has no supervisor any more that would start it.
            self.looked_at += kills.len();
        }
        self.client = self.server.client();
        let outcome = self.ask(&promise.id, async |client, _| promise.check(client).await).await?;
        anyhow::ensure!(outcome.as_deref() == Some("Running"), "a start ended the sandbox: {outcome:?}");
        self.delete(&promise.id).await
    }

    fn reach(&mut self, section: &str) -> Result<()> {
        self.reached.insert(section.to_owned());
        self.tracer.section(section)
    }

    /// Kills of this life.
    fn kills(&self) -> Vec<Kill> {
        self.tracer.kills().split_off(self.told)
    }

    async fn create(&mut self, entrypoint: &[&str]) -> Result<Promise> {
        let patience = Instant::now() + PATIENCE;
        let (client, body) = (self.client.clone(), body(entrypoint));
        loop {
            match self.during(client.create(&body)).await? {
                Ok(answered) => return Ok(Promise::new(answered)),
                Err(problem) => self.excuse(problem.context("create"), patience).await?,
            }
        }
    }

    /// Asks until it is answered; `None` once the sandbox has ended, with a cause.
    async fn ask<T>(&mut self, id: &str, question: impl AsyncFn(&Client, &str) -> Result<T>) -> Result<Option<T>> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let client = self.client.clone();
            let problem = match self.during(question(&client, id)).await? {
                Ok(answer) => return Ok(Some(answer)),
                Err(problem) => problem,
            };
            self.excuse(problem, patience).await?;
            if let Some(cause) = ended(&client, id).await {
                let kills = self.kills();
                anyhow::ensure!(!cause.is_empty(), "ended without a cause");
                anyhow::ensure!(
                    kills.iter().any(|kill| kill.place.effect.role() != "api"),
                    "only the API process was killed, and the sandbox ended: {cause}"
                );
                *self.outcomes.entry(cause).or_default() += 1;
                return Ok(None);
            }
        }
    }

    async fn is_gone(&mut self, id: &str) -> Result<bool> {
        let (client, path) = (self.client.clone(), format!("/sandboxes/{id}"));
        Ok(match self.during(client.call("GET", &path, None)).await? {
            Ok(answer) => {
                let state = answer.body["status"]["state"].as_str().unwrap_or_default();
                answer.status == 404 || matches!(state, "Terminated" | "Failed")
            }
            Err(_) => false,
        })
    }

    async fn delete(&mut self, id: &str) -> Result<()> {
        self.reach("delete")?;
        let patience = Instant::now() + PATIENCE;
        loop {
            let client = self.client.clone();
            match self.during(client.delete(id)).await? {
                Ok(()) => return Ok(()),
                Err(problem) => self.excuse(problem.context("delete"), patience).await?,
            }
        }
    }

    /// A failure is excused by a kill, for as long as the client is patient.
    async fn excuse(&mut self, problem: anyhow::Error, patience: Instant) -> Result<()> {
        let word = Instant::now() + WORD;
        while self.kills().is_empty() {
            if Instant::now() > word {
                return Err(problem.context("nothing was killed"));
            }
            tokio::time::sleep(AGAIN).await;
        }
        if Instant::now() > patience {
            return Err(problem.context(format!("still after {PATIENCE:?}")));
        }
        tokio::time::sleep(AGAIN).await;
        self.look().await
    }

    /// Does something while those who were killed are looked for.
    async fn during<T>(&mut self, doing: impl Future<Output = T>) -> Result<T> {
        tokio::pin!(doing);
        loop {
            let done = tokio::select! {
                done = &mut doing => Some(done),
                () = tokio::time::sleep(AGAIN) => None,
            };
            self.look().await?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// Notes who has come back.
    async fn look(&mut self) -> Result<()> {
        let kills = self.tracer.kills().split_off(self.looked_at);
        self.looked_at += kills.len();
        if kills.iter().any(|kill| kill.place.effect.role() == SUPERVISOR) {
            // Killed right after it said that the server is ready; who is away waits for the next one.
            self.away.clear();
            self.server.start_again_traced(&mut self.tracer)?;
            self.client = self.server.client();
            return Ok(());
        }
        self.away.extend(kills.into_iter().filter(|kill| server_role(&kill.place.effect).is_some()));
        let mut away = std::mem::take(&mut self.away);
        while let Some(kill) = away.pop() {
            let role = server_role(&kill.place.effect).unwrap_or_default();
            let other = self.server.child_of_role(role).is_some_and(|pid| pid != kill.pid);
            if other && self.client.list().await.is_ok() {
                self.slowest = self.slowest.max(kill.at.elapsed());
                continue;
            }
            anyhow::ensure!(kill.at.elapsed() < BACK, "{role} is not back after {BACK:?}:\n{}", self.server.log());
            self.away.push(kill);
        }
        Ok(())
    }

    /// Nothing may be left of the life. What it has begun may still be struck until it is done; then it is counted.
    async fn calm(&mut self) -> Result<()> {
        self.clear().await?;
        settled(&self.server, Some(&self.before)).await;
        self.tracer.arm([])?;
        self.clear().await?;
        let after = settled(&self.server, Some(&self.before)).await;
        if after.within(&self.before) {
            return Ok(());
        }
        let mut found = describe(&self.server);
        let missing: Vec<_> = self.described.keys().filter(|word| !found.contains_key(*word)).cloned().collect();
        found.retain(|word, count| self.described.get(word) != Some(count));
        let problem = format!(
            "left over:\nbefore {:?}\nafter  {after:?}\nother {found:#?}\nmissing {missing:#?}\n{}",
            self.before,
            self.server.log()
        );
        anyhow::bail!(problem)
    }

    /// Takes another server: the next life is not to answer for what this one left.
    async fn renew(&mut self) -> Result<()> {
        for pid in self.server.everything() {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed());
            // It may have ended.
            let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
        let fresh = Self::open().await?;
        let old = std::mem::replace(self, fresh);
        (self.outcomes, self.slowest) = (old.outcomes, old.slowest);
        Ok(())
    }

    /// Deletes whatever is there: a create that was cut off may have succeeded.
    async fn clear(&mut self) -> Result<()> {
        let patience = Instant::now() + PATIENCE;
        loop {
            self.look().await?;
            let client = self.client.clone();
            let deleted = async {
                for id in client.list().await? {
                    client.delete(&id).await?;
                }
                anyhow::Ok(())
            };
            match self.during(deleted).await? {
                Ok(()) if self.away.is_empty() => return Ok(()),
                Ok(()) => tokio::time::sleep(AGAIN).await,
                Err(problem) => self.excuse(problem.context("delete what is left"), patience).await?,
            }
        }
    }
}

/// What comes before the first life.
const FIRST: &str = "first";

/// Who starts the others again, and is started again by the test.
const SUPERVISOR: &str = "supervisor";

/// How the program names a process that the supervisor starts again.
fn server_role(effect: &Effect) -> Option<&'static str> {
    match effect.role() {
        "api" => Some("api-server"),
        "jailer" => Some("jailer"),
        _ => None,
    }
}

fn body(entrypoint: &[&str]) -> Value {
    json!({
        "image": {"uri": "host"},
        "entrypoint": entrypoint,
        "timeout": 600,
        "resourceLimits": {"memory": "256Mi"},
    })
}

/// The cause, once a sandbox has ended; the empty text if it has none.
async fn ended(client: &Client, id: &str) -> Option<String> {
    let detail = client.get(id).await.ok()?;
    let text = |name: &str| detail["status"][name].as_str().unwrap_or_default().to_owned();
    let state = text("state");
    matches!(&*state, "Failed" | "Terminated").then(|| {
        let message = text("message");
        let shown: String = message.chars().take(90).collect();
        if message.is_empty() { String::new() } else { format!("{state} {}: {shown}", text("reason")) }
    })
}

/// Pauses or resumes.
async fn turn(client: &Client, id: &str, action: &str, wanted: &str) -> Result<()> {
    let answer = client.call("POST", &format!("/sandboxes/{id}/{action}"), None).await?;
    if answer.status == 202 {
        return Ok(());
    }
    // An earlier attempt that was not answered may have done it.
    let state = client.get(id).await?["status"]["state"].clone();
    anyhow::ensure!(state == wanted, "{action}: {answer:?}, and it is {state}");
    Ok(())
}
