//! What a session waits for as its people see it: through a real control plane, over HTTP, with everything that it stores,
//! signs, checks and tells on the way.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::installation::{Api, Installation, Programs};
use crate::models::{Models, Say};
use crate::report::Measure;
use crate::sample::{Sample, WARM_UPS, scaled};
use crate::selection::Selection;

/// Sandboxes that are there before a session wants one.
const AHEAD: usize = 4;

/// What a session keeps while it sleeps.
const NOTE: &[u8] = b"kept";

/// A default installation whose sandboxes are made ahead.
struct Served {
    api: Api,
    models: Models,
    _installation: Installation,
}

/// Measures what of it is wanted, beside a container that is made and says what its first command says.
pub(super) async fn measure(
    programs: &Programs,
    wanted: &Selection,
    container: Option<f64>,
) -> anyhow::Result<Vec<Measure>> {
    let served = Served::open(programs).await?;
    let mut found = Vec::new();
    if wanted.has("S2") {
        found.push(served.listing().await?.at_most(5.0, Some(15.0)));
        found.push(served.prompting().await?);
    }
    if wanted.has("S3") {
        let row = served.commanding().await?.beside_any("docker run", container);
        found.push(row.at_most(10.0, Some(30.0)));
    }
    if wanted.has("S6") {
        found.push(served.waking().await?.at_most(150.0, None));
    }
    Ok(found)
}

impl Served {
    async fn open(programs: &Programs) -> anyhow::Result<Self> {
        let models = Models::start(|_| Say::Words("Yes.")).await?;
        let mut installation = Installation::new(programs, Some(models.address), "")?.warm(AHEAD)?;
        installation.start_host()?;
        installation.start_serve()?;
        Ok(Self {
            api: installation.api()?,
            models,
            _installation: installation,
        })
    }

    /// From the first request of a new session that needs a sandbox to its answer.
    async fn listing(&self) -> anyhow::Result<Measure> {
        let mut sample = Sample::default();
        for number in 0..scaled(100) + WARM_UPS {
            self.are_ahead().await?;
            let session = self.api.session().await?;
            let began = Instant::now();
            self.api.0.get(&format!("/api/v1/sessions/{session}/files")).await?;
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            self.put_away(&session).await?;
        }
        let what = "  through serve: the files of a new session are listed";
        Ok(Measure::times("S2", what, &sample))
    }

    /// From a new session's prompt to the request that its runtime has the model asked.
    async fn prompting(&self) -> anyhow::Result<Measure> {
        let mut sample = Sample::default();
        for number in 0..scaled(100) + WARM_UPS {
            self.are_ahead().await?;
            let session = self.api.session().await?;
            let asked = self.models.count();
            let began = Instant::now();
            self.api.prompt(&session, "Are you there?").await?;
            let request = self.models.asked(asked, |_| true).await?;
            if number >= WARM_UPS {
                sample.add(request.at.duration_since(began));
            }
            self.put_away(&session).await?;
        }
        let what = "  through serve: first prompt of a session → model asked";
        Ok(Measure::times("S2", what, &sample))
    }

    /// A new session and the output of its first command.
    async fn commanding(&self) -> anyhow::Result<Measure> {
        let mut sample = Sample::default();
        for number in 0..scaled(100) + WARM_UPS {
            self.are_ahead().await?;
            let began = Instant::now();
            let session = self.api.session().await?;
            let command = json!({"command": "ls /workspace"});
            self.api
                .0
                .post(&format!("/api/v1/sessions/{session}/exec"), &command)
                .await?;
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            self.put_away(&session).await?;
        }
        let what = "create and the first command's output, over HTTP";
        Ok(Measure::times("S3", what, &sample))
    }

    /// From a request for a file of a session whose processes are gone to its bytes.
    async fn waking(&self) -> anyhow::Result<Measure> {
        self.are_ahead().await?;
        let session = self.api.session().await?;
        let file = format!("/api/v1/sessions/{session}/file?path=notes/kept.txt");
        self.api.0.bytes(Method::PUT, &file, Bytes::from_static(NOTE)).await?;
        let mut sample = Sample::default();
        for number in 0..scaled(100) + WARM_UPS {
            self.hibernate(&session).await?;
            let began = Instant::now();
            let read = self.api.0.bytes(Method::GET, &file, Bytes::new()).await?;
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            ensure!(read == NOTE, "a session that woke has another file than before");
        }
        self.put_away(&session).await?;
        let what = "  through serve: a file of a session that sleeps is read";
        Ok(Measure::times("S6", what, &sample))
    }

    /// Waits until as many sandboxes as are wanted are there, and nobody's.
    async fn are_ahead(&self) -> anyhow::Result<()> {
        while self
            .sandboxes()
            .await?
            .iter()
            .filter(|sandbox| sandbox["warm"] == true)
            .count()
            < AHEAD
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Ends a session's processes and keeps its files.
    async fn hibernate(&self, session: &str) -> anyhow::Result<()> {
        let all = self.sandboxes().await?;
        let sandbox = all.iter().find(|sandbox| sandbox["session"] == session);
        let id = sandbox.and_then(|sandbox| sandbox["id"].as_str());
        let path = format!("/api/v1/sandboxes/{}", id.context("the session has a sandbox")?);
        self.api.0.bytes(Method::DELETE, &path, Bytes::new()).await?;
        Ok(())
    }

    async fn sandboxes(&self) -> anyhow::Result<Vec<Value>> {
        let listed = self.api.0.get("/api/v1/sandboxes").await?;
        Ok(listed["sandboxes"].as_array().context("sandboxes are listed")?.clone())
    }

    async fn put_away(&self, session: &str) -> anyhow::Result<()> {
        let archive = format!("/api/v1/sessions/{session}/archive");
        self.api.0.post(&archive, &json!({})).await?;
        Ok(())
    }
}
