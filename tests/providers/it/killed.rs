//! The process that is killed by the conformance suite while it carries out orders.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use containers::{Config, DiskChoice};
use images::ImageFolder;
use sandbox::SandboxProvider;
use sandbox::conformance::{Kill, Moment, Orders};
use testkit::DockerEngine;

use crate::world::{By, volume};

/// Where the process is told what to do.
const TOLD: &str = "BELLJAR_TEST_KILLED";

/// What it is at, as a number that only rises, and how many microseconds that took the last time round.
const MARK: &str = "mark";

/// Kills a process that has this test's provider.
pub(crate) fn by(by: By, config: &Config) -> Kill {
    let config = config.clone();
    Box::new(move |provider, orders, moment| {
        let config = config.clone();
        Box::pin(async move {
            drop(provider);
            let killed = tokio::task::spawn_blocking(move || {
                kill(by, &config, &orders, moment);
                by.open(config)
            });
            Arc::new(killed.await.unwrap().unwrap()) as Arc<dyn SandboxProvider>
        })
    })
}

fn kill(by: By, config: &Config, orders: &Orders, moment: Moment) {
    let mark = config.run.join(MARK);
    let how = match by {
        By::Oci(command) => command.to_owned(),
        By::Docker => format!("docker:{}", DockerEngine::of_this_process().socket().display()),
        By::DockerAt(socket) => format!("docker:{}", socket.display()),
        By::DockerInVolume => format!(
            "docker:{}:{}",
            DockerEngine::newer().unwrap().socket().display(),
            volume(config)
        ),
    };
    let told = (
        how,
        &config.data,
        &config.run,
        config.first_uid,
        config.disk,
        orders,
        moment,
    );
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--ignored", "killed::give_orders_until_killed"]);
    process.env(TOLD, serde_json::to_string(&told).unwrap());
    process.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = process.spawn().unwrap();
    let took = testkit::eventually("the process to come so far", || {
        let said = fs::read_to_string(&mark).ok()?;
        let (at, took) = said.split_once(' ')?;
        let is_there = at.parse::<usize>().ok()? >= moment.number();
        is_there.then(|| Duration::from_micros(took.parse().unwrap()))
    });
    if let Moment::During(_) = moment {
        let after = took.mul_f64(rand::random());
        println!("killed after {after:?} of about {took:?}");
        thread::sleep(after);
    }
    process.kill().unwrap();
    process.wait().unwrap();
    fs::remove_file(&mark).unwrap();
}

/// Not a test: the process that is killed.
#[tokio::test]
#[ignore = "is run by the conformance suite, in a process of its own"]
async fn give_orders_until_killed() {
    let Ok(told) = std::env::var(TOLD) else {
        return;
    };
    type Told = (String, PathBuf, PathBuf, u32, DiskChoice, Orders, Moment);
    let (how, data, run, first_uid, disk, orders, last): Told = serde_json::from_str(&told).unwrap();
    let mut config = Config::new(data, env!("CARGO_BIN_EXE_sandbox-standin"));
    (config.run, config.first_uid, config.disk) = (run, first_uid, disk);
    config.pool_bytes = 2 << 30;
    let (mark, beside) = (config.run.join(MARK), config.run.join("mark.new"));
    let images = Arc::new(ImageFolder::open(config.data.join("images")));
    let provider = match how.strip_prefix("docker:") {
        Some(engine) => {
            let (socket, volume) = engine
                .split_once(':')
                .map_or((engine, None), |(socket, volume)| (socket, Some(volume)));
            sandbox_docker::open(socket.as_ref(), volume, config, images)
        }
        None => sandbox_oci::open(testkit::program(&how), config, images),
    };
    let provider = provider.unwrap();
    let (Moment::During(order) | Moment::After(order)) = last;
    let mut began = Instant::now();
    let mut took = [Duration::ZERO; Orders::COUNT];
    let given = orders.give(&provider, |moment| {
        match moment {
            Moment::During(_) => began = Instant::now(),
            Moment::After(order) => took[order % Orders::COUNT] = began.elapsed(),
        }
        let (Moment::During(at) | Moment::After(at)) = moment;
        let words = format!("{} {}", moment.number(), took[at % Orders::COUNT].as_micros());
        fs::write(&beside, words).unwrap();
        fs::rename(&beside, &mark).unwrap();
        if moment == Moment::After(order) {
            // Nobody is told of what was done.
            loop {
                std::thread::park();
            }
        }
    });
    given.await.unwrap();
}
