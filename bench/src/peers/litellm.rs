//! LiteLLM, from PyPI, in front of the same model: in a network namespace with nothing but loopback, on the core that Belljar had.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::future::try_join_all;
use hyper::Method;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{installed, run};
use crate::http::Client;
use crate::models::{Models, Script};
use crate::sample::{Sample, WARM_UPS, scaled};

/// The word that makes the bench its own child, without a network.
pub(crate) const WORD: &str = "litellm";

const KEY: &str = "sk-bench";
const PORT: u16 = 4000;

/// Requests at once, where the rate is measured.
const TOGETHER: usize = 16;

/// What was found.
#[derive(Serialize, Deserialize)]
pub(crate) struct Found {
    /// A request a hundredth of a second.
    pub(crate) through: Sample,
    pub(crate) direct: Sample,
    /// Requests per second.
    pub(crate) rate: f64,
}

/// Measures it in a child of this process, with this request.
pub(crate) fn in_a_network_of_its_own(body: &Bytes) -> anyhow::Result<Found> {
    let program = installed("litellm/bin/litellm")?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), body)?;
    let script = "ip link set lo up && exec \"$0\" \"$@\"";
    let mut child = Command::new("unshare");
    child
        .args(["--net", "sh", "-c", script])
        .arg(std::env::current_exe()?)
        .arg(WORD)
        .arg(program)
        .arg(file.path());
    let output = run(&mut child)?;
    serde_json::from_slice(&output.stdout).context("the part that talks with LiteLLM said something else than figures")
}

/// What the child does, already on the generator's core: it prints what it found.
pub(crate) async fn talk(program: &Path, body: &Path, core: usize, script: Script) -> anyhow::Result<()> {
    let body = Bytes::from(fs::read(body)?);
    let models = Models::start(script).await?;
    let server = Server::start(program, models.address, core).await?;
    let proxied = Client::new(server.address, format!("Bearer {KEY}"));
    let model = Client::new(models.address, "Bearer none");
    let found = Found {
        through: at_a_rate(&proxied, &body).await?,
        direct: at_a_rate(&model, &body).await?,
        rate: at_once(&server, &body).await?,
    };
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

async fn at_a_rate(client: &Client, body: &Bytes) -> anyhow::Result<Sample> {
    let mut sample = Sample::default();
    let mut clock = tokio::time::interval(Duration::from_millis(10));
    for number in 0..scaled(500) + WARM_UPS {
        clock.tick().await;
        let began = Instant::now();
        client.bytes(Method::POST, "/v1/messages", body.clone()).await?;
        if number >= WARM_UPS {
            sample.add(began.elapsed());
        }
    }
    Ok(sample)
}

#[allow(clippy::cast_precision_loss, reason = "a small number")]
async fn at_once(server: &Server, body: &Bytes) -> anyhow::Result<f64> {
    let each = scaled(50);
    let began = Instant::now();
    try_join_all((0..TOGETHER).map(|_| async {
        let client = Client::new(server.address, format!("Bearer {KEY}"));
        for _ in 0..each {
            client.bytes(Method::POST, "/v1/messages", body.clone()).await?;
        }
        Ok::<_, anyhow::Error>(())
    }))
    .await?;
    Ok((TOGETHER * each) as f64 / began.elapsed().as_secs_f64())
}

struct Server {
    address: SocketAddr,
    process: Child,
    _folder: TempDir,
}

impl Server {
    async fn start(program: &Path, models: SocketAddr, core: usize) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-litellm")
            .tempdir_in("/var/tmp")?;
        let config = folder.path().join("config.yaml");
        fs::write(
            &config,
            format!(
                "model_list:\n- model_name: fake\n  litellm_params: {{model: anthropic/fake, api_base: \"http://{models}\", api_key: none}}\n\
                 general_settings: {{master_key: {KEY}}}\nlitellm_settings: {{telemetry: false}}\n"
            ),
        )?;
        let log = fs::File::create(folder.path().join("log"))?;
        let process = Command::new("taskset")
            .args(["--cpu-list", &core.to_string()])
            .arg(program)
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &PORT.to_string(),
                "--telemetry",
                "False",
                "--config",
            ])
            .arg(&config)
            .env("HOME", folder.path())
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LITELLM_LOG", "ERROR")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("LiteLLM could not be started")?;
        let mut server = Self {
            address: SocketAddr::from(([127, 0, 0, 1], PORT)),
            process,
            _folder: folder,
        };
        let client = Client::new(server.address, format!("Bearer {KEY}"));
        let until = Instant::now() + Duration::from_secs(120);
        while client.get("/health/liveliness").await.is_err() {
            if Instant::now() > until || server.process.try_wait()?.is_some() {
                bail!("LiteLLM did not answer within two minutes");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
