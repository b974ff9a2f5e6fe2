//! The release before: what its control plane said to its host agent is said to today's host agent, and the other way round.
//! `tests/recorded/README.md` says how a release is recorded.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use channel::{Descriptors, Lines};
use domain::{InstallationId, SandboxId, SessionId, SnapshotId, Timestamp};
use host::HostClient;
use lifecycle::Tasks;
use sandbox::{
    ImageDigest, ImageStatus, Kept, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus,
    SandboxUsage, SnapshotStatus, Snapshots,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use testkit::within;
use tokio::net::UnixStream;

use crate::agent::{Agent, image, simulator};

/// The number of the host API that is recorded, and the one of this release.
const BEFORE: u32 = 1;
const OURS: u32 = 2;

const LONGEST: usize = 1 << 20;

fn id<T: serde::de::DeserializeOwned>(number: u8) -> T {
    serde_json::from_value(json!(format!("0197f0a0-0000-7000-8000-0000000000{number:02}"))).unwrap()
}

fn spec(number: u8) -> SandboxSpec {
    SandboxSpec {
        id: id(number),
        session: id(number + 50),
        image: image(),
        limits: Limits::default(),
        builder: false,
    }
}

fn status(number: u8, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: id(number),
        session: id(number + 50),
        image: image(),
        state,
        root_uid: 100_000,
        created: Timestamp(1_764_000_000_000),
        builder: false,
    }
}

fn statuses() -> Vec<SandboxStatus> {
    let dead = SandboxState::Dead {
        reason: "it was killed".to_owned(),
    };
    vec![
        status(1, SandboxState::Running),
        status(2, SandboxState::Frozen),
        status(3, dead),
    ]
}

fn usage() -> SandboxUsage {
    serde_json::from_value(json!({"memory_bytes": 1, "cpu_micros": 2, "pids": 3, "disk_bytes": 4})).unwrap()
}

/// Every way in which an order fails.
fn failures() -> Vec<ProviderError> {
    let inner = std::io::Error::other(ProviderError::Limit("the least is 8".to_owned()));
    vec![
        ProviderError::NotFound(id(10)),
        ProviderError::Exists(id(11)),
        ProviderError::Dead {
            id: id(12),
            reason: "it was killed".to_owned(),
        },
        ProviderError::DiskInUse {
            session: id(63),
            sandbox: id(13),
        },
        ProviderError::ImageMissing {
            image: image(),
            reason: "nobody built it".to_owned(),
        },
        ProviderError::Limit("the least is 8".to_owned()),
        ProviderError::Machine {
            lacks: "nft".to_owned(),
        },
        ProviderError::Unavailable("it is late".to_owned()),
        ProviderError::failed("mount the disk", inner),
    ]
}

/// Answers each order in its own way, always the same.
struct Answers(Mutex<Vec<String>>);

impl Answers {
    fn see(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

#[async_trait]
impl SandboxProvider for Answers {
    async fn create(&self, wanted: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.see(format!("create {}", wanted.id));
        if *wanted == spec(1) {
            return Ok(status(1, SandboxState::Running));
        }
        let failures = failures().into_iter().zip(10..);
        let failure = failures.into_iter().find(|(_, number)| *wanted == spec(*number));
        Err(failure.unwrap().0)
    }

    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError> {
        self.see(format!("link {id}"));
        let folder = tempfile::tempdir().unwrap();
        Ok(UnixListener::bind(folder.path().join("link.sock")).unwrap())
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.see(format!("freeze {id}"));
        Ok(())
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.see(format!("thaw {id}"));
        Ok(())
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.see(format!("destroy {id}"));
        Ok(())
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        self.see(format!("status {id}"));
        Ok(statuses().into_iter().find(|status| status.id == id).unwrap())
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.see(format!("usage {id}"));
        Ok(usage())
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        self.see("list".to_owned());
        Ok(statuses())
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.see(format!("remove disk {session}"));
        Ok(())
    }

    async fn assign(&self, _: SandboxId, _: SessionId) -> Result<SandboxStatus, ProviderError> {
        unknown()
    }

    async fn hibernate(&self, _: SandboxId) -> Result<Kept, ProviderError> {
        unknown()
    }

    async fn wake(&self, _: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        unknown()
    }

    async fn forget(&self, _: SessionId) -> Result<(), ProviderError> {
        unknown()
    }

    async fn words(&self, _: SandboxId) -> Result<String, ProviderError> {
        unknown()
    }

    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError> {
        unknown()
    }

    async fn snapshot(&self, _: SessionId, _: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        unknown()
    }

    async fn restore(&self, _: SnapshotId, _: SessionId) -> Result<(), ProviderError> {
        unknown()
    }

    async fn remove_snapshot(&self, _: SnapshotId) -> Result<(), ProviderError> {
        unknown()
    }

    async fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        unknown()
    }

    async fn commit(&self, _: SandboxId) -> Result<ImageDigest, ProviderError> {
        unknown()
    }

    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        unknown()
    }

    async fn remove_image(&self, _: &ImageDigest) -> Result<(), ProviderError> {
        unknown()
    }
}

/// What no control plane of the release before orders.
fn unknown<T>() -> Result<T, ProviderError> {
    panic!("it was asked for something newer")
}

/// Orders everything, and hears what it is to hear.
async fn orders(client: &HostClient) {
    assert_eq!(client.create(&spec(1)).await.unwrap(), status(1, SandboxState::Running));
    for (expected, number) in failures().into_iter().zip(10..) {
        let error = client.create(&spec(number)).await.unwrap_err();
        assert_eq!(causes(&error), causes(&expected));
        assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&expected));
    }
    client.link(id(1)).await.unwrap();
    client.freeze(id(1)).await.unwrap();
    client.thaw(id(1)).await.unwrap();
    for expected in statuses() {
        assert_eq!(client.status(expected.id).await.unwrap(), expected);
    }
    assert_eq!(client.usage(id(1)).await.unwrap(), usage());
    assert_eq!(client.list().await.unwrap(), statuses());
    client.destroy(id(1)).await.unwrap();
    client.remove_disk(id(51)).await.unwrap();
}

/// What the machine's end is then to have been asked.
fn asked() -> Vec<String> {
    let sandbox = id::<SandboxId>;
    let mut asked = vec![format!("create {}", sandbox(1))];
    asked.extend((10..19).map(|number| format!("create {}", sandbox(number))));
    asked.extend(["link", "freeze", "thaw"].map(|order| format!("{order} {}", sandbox(1))));
    asked.extend((1..4).map(|number| format!("status {}", sandbox(number))));
    asked.extend([format!("usage {}", sandbox(1)), "list".to_owned()]);
    asked.extend([
        format!("destroy {}", sandbox(1)),
        format!("remove disk {}", sandbox(51)),
    ]);
    asked
}

fn causes(error: &ProviderError) -> Vec<String> {
    let first: &(dyn Error + 'static) = error;
    let all = std::iter::successors(Some(first), |cause| (**cause).source());
    all.map(ToString::to_string).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Control,
    Host,
}

/// A line, and whether a descriptor came with it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    from: Side,
    line: Value,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    descriptor: bool,
}

fn recording(protocol: u32) -> String {
    format!("host-api-{protocol}.jsonl")
}

fn load(protocol: u32) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/recorded")
        .join(recording(protocol));
    let lines = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The next line, and the descriptor that came with it.
async fn hear(lines: &mut Lines) -> Option<(Value, Option<OwnedFd>)> {
    let line = within("a line", lines.next()).await.unwrap()?;
    Some((serde_json::from_slice(&line).unwrap(), lines.descriptor()))
}

async fn say(stream: &UnixStream, line: &Value, descriptor: Option<&OwnedFd>) {
    channel::write(stream, line, descriptor.map(AsFd::as_fd)).await.unwrap();
}

/// Says what one side said then, as soon as it has heard what it heard then; and hears nothing else.
async fn play(side: Side, stream: UnixStream, steps: &[Step]) {
    let stream = Arc::new(stream);
    let mut lines = Lines::new(Arc::clone(&stream), LONGEST, Descriptors::Taken);
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("link.sock")).unwrap();
    let descriptor = OwnedFd::from(listener);
    for step in steps {
        if step.from == side {
            say(&stream, &step.line, step.descriptor.then_some(&descriptor)).await;
            continue;
        }
        let (line, descriptor) = hear(&mut lines).await.expect("it ended too early");
        if let Some(theirs) = protocol(&step.line) {
            // Both say first, and at once, what they speak. Of it the release before reads the number and the build.
            assert_eq!((theirs, protocol(&line)), (u64::from(BEFORE), Some(u64::from(OURS))));
            continue;
        }
        assert_eq!((&line, descriptor.is_some()), (&step.line, step.descriptor));
    }
    if side == Side::Control {
        rustix::net::shutdown(&stream, rustix::net::Shutdown::Write).unwrap();
    }
    let more = hear(&mut lines).await.map(|(line, _)| line);
    assert_eq!(more, None, "more was said than in the recording");
}

/// The number that a hello names.
fn protocol(line: &Value) -> Option<u64> {
    line.get("hello").unwrap_or(line).get("protocol")?.as_u64()
}

#[tokio::test]
async fn the_host_agent_says_to_the_control_plane_before_what_the_host_agent_before_said() {
    let answers = Arc::new(Answers(Mutex::default()));
    let agent = Agent::start(Arc::clone(&answers) as _, 0);
    let control_plane = UnixStream::connect(agent.socket()).await.unwrap();
    play(Side::Control, control_plane, &load(BEFORE)).await;
    assert_eq!(*answers.0.lock().unwrap(), asked());
}

#[tokio::test]
async fn a_failure_that_the_control_plane_before_does_not_know_is_told_in_words() {
    let simulator = Arc::new(simulator());
    let agent = Agent::start(Arc::clone(&simulator) as _, 0);
    let stream = Arc::new(UnixStream::connect(agent.socket()).await.unwrap());
    let mut lines = Lines::new(Arc::clone(&stream), LONGEST, Descriptors::Refused);
    say(&stream, &json!({"protocol": BEFORE, "build": "0.1.0"}), None).await;
    hear(&mut lines).await.unwrap();
    simulator.fail_next_create(ProviderError::Full("make a disk".to_owned()));
    let create = json!({"number": 1, "order": {"create": spec(1)}});
    say(&stream, &create, None).await;
    let (reply, _) = hear(&mut lines).await.unwrap();
    let failed = &reply["reply"]["answer"]["failed"]["failed"];
    assert!(
        failed["causes"][0].as_str().unwrap().contains("disk pool is full"),
        "{reply}"
    );
    // Who is not of the release before is told as it is.
    let client = agent.client(&Tasks::new());
    simulator.fail_next_create(ProviderError::Full("make a disk".to_owned()));
    let error = client.create(&spec(1)).await.unwrap_err();
    assert!(matches!(error, ProviderError::Full(_)), "{error:?}");
}

#[tokio::test]
async fn the_control_plane_says_to_the_host_agent_before_what_the_control_plane_before_said() {
    let (folder, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let socket = folder.path().join("host.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let client = HostClient::new(&socket, InstallationId::new(), &tasks);
    let ordering = async {
        orders(&client).await;
        // What it does not know it is not asked: it would hang up on who does.
        let builder = SandboxSpec {
            builder: true,
            ..spec(1)
        };
        let error = client.create(&builder).await.unwrap_err();
        assert!(error.to_string().contains("does not know that order"), "{error}");
        // It keeps no processes, and has none to be forgotten.
        let woken = client.wake(&spec(1)).await;
        assert!(matches!(woken, Err(ProviderError::NothingKept { .. })), "{woken:?}");
        client.forget(id(51)).await.unwrap();
        drop(client);
    };
    let host = async {
        let (stream, _) = listener.accept().await.unwrap();
        play(Side::Host, stream, &load(BEFORE)).await;
    };
    within("the exchange", async { tokio::join!(ordering, host) }).await;
}

/// Both ends of today have the same exchange, and what they say is written where the next release finds it.
#[tokio::test]
async fn the_exchange_of_this_release_can_be_recorded() {
    let answers = Arc::new(Answers(Mutex::default()));
    let agent = Agent::start(Arc::clone(&answers) as _, 0);
    let (folder, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let front = folder.path().join("front.sock");
    let listener = tokio::net::UnixListener::bind(&front).unwrap();
    let client = agent.client_at(&front, &tasks);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let between = record(listener, agent.socket(), Arc::clone(&steps));
    tokio::select! {
        () = within("the exchange", orders(&client)) => {}
        () = between => panic!("one of them hung up"),
    }
    assert_eq!(*answers.0.lock().unwrap(), asked());
    let line = |step: &Step| serde_json::to_string(step).unwrap() + "\n";
    let lines: String = steps.lock().unwrap().iter().map(line).collect();
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(recording(OURS)), lines).unwrap();
}

/// Leads a control plane that connects to a host agent, and writes down what they say.
async fn record(front: tokio::net::UnixListener, back: PathBuf, steps: Arc<Mutex<Vec<Step>>>) {
    let near = Arc::new(front.accept().await.unwrap().0);
    let far = Arc::new(UnixStream::connect(back).await.unwrap());
    tokio::select! {
        () = carry(Side::Control, &near, &far, &steps) => {}
        () = carry(Side::Host, &far, &near, &steps) => {}
    }
}

async fn carry(from: Side, read: &Arc<UnixStream>, write: &UnixStream, steps: &Mutex<Vec<Step>>) {
    let mut lines = Lines::new(Arc::clone(read), LONGEST, Descriptors::Taken);
    while let Some(line) = lines.next().await.unwrap() {
        let (line, descriptor): (Value, _) = (serde_json::from_slice(&line).unwrap(), lines.descriptor());
        steps.lock().unwrap().push(Step {
            from,
            line: line.clone(),
            descriptor: descriptor.is_some(),
        });
        say(write, &line, descriptor.as_ref()).await;
    }
}
