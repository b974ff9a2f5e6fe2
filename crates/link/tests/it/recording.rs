//! What two ends of a link said to each other, written down step by step; and one of them played to the other end of today.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lifecycle::Tasks;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::rig::within;

/// Who says something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Runtime,
    Control,
}

/// Something that was said on a connection; connections are counted from 1. Without words, the side says no more on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    connection: usize,
    from: Side,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl Step {
    /// The same with other words.
    pub(crate) fn with(mut self, words: &str, others: &str) -> Self {
        self.text = self.text.map(|text| text.replace(words, others));
        self
    }
}

/// The steps of a recording in the folder beside the tests.
pub(crate) fn load(name: &str) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(name);
    let lines = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Writes down what goes through.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Step>>>);

impl Recorder {
    /// Leads whoever connects to `front` to the socket `back`, until `tasks` are told to stop.
    pub(crate) fn stand_between(&self, front: UnixListener, back: PathBuf, tasks: &Tasks) {
        let (recorder, owner) = (self.clone(), tasks.clone());
        tasks.spawn_until_stopped(async move {
            for connection in 1.. {
                let (near, _) = front.accept().await.unwrap();
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = UnixStream::connect(&back).await.unwrap().into_split();
                let (out, back) = (recorder.clone(), recorder.clone());
                owner.spawn_until_stopped(async move {
                    out.carry(connection, Side::Runtime, near_read, far_write).await;
                });
                owner.spawn_until_stopped(async move {
                    back.carry(connection, Side::Control, far_read, near_write).await;
                });
            }
        });
    }

    async fn carry(
        &self,
        connection: usize,
        from: Side,
        mut read: impl AsyncRead + Unpin,
        mut write: impl AsyncWrite + Unpin,
    ) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            // Who hangs up while something is on its way to it says no more either.
            let bytes = read.read(&mut buffer).await.unwrap_or(0);
            let text = (bytes > 0).then(|| String::from_utf8(buffer[..bytes].to_vec()).unwrap());
            self.add(connection, from, text);
            if bytes == 0 || write.write_all(&buffer[..bytes]).await.is_err() {
                let _ = write.shutdown().await;
                return;
            }
        }
    }

    fn add(&self, connection: usize, from: Side, text: Option<String>) {
        let mut steps = self.0.lock().unwrap();
        if let (Some(more), Some(last)) = (&text, steps.last_mut())
            && (last.connection, last.from) == (connection, from)
            && let Some(said) = &mut last.text
        {
            said.push_str(more);
            return;
        }
        steps.push(Step { connection, from, text });
    }

    /// What was said so far.
    pub(crate) fn steps(&self) -> Vec<Step> {
        self.0.lock().unwrap().clone()
    }
}

/// Writes steps into a file.
pub(crate) fn keep(steps: &[Step], path: &Path) {
    let line = |step: &Step| serde_json::to_string(step).unwrap() + "\n";
    std::fs::write(path, steps.iter().map(line).collect::<String>()).unwrap();
}

/// How the played side comes to its connections.
pub(crate) enum Door {
    /// It opens them.
    Opens(PathBuf),
    /// The other side does.
    Waits(UnixListener),
}

/// A recorded side, which says what it said then as soon as it has heard what it heard then.
pub(crate) struct Player {
    side: Side,
    door: Door,
    connections: BTreeMap<usize, Played>,
}

struct Played {
    stream: UnixStream,
    /// What the other side said, then and today.
    recorded: Vec<u8>,
    heard: Vec<u8>,
}

impl Player {
    pub(crate) fn new(side: Side, door: Door) -> Self {
        let connections = BTreeMap::new();
        Self {
            side,
            door,
            connections,
        }
    }

    /// Plays its side of the steps.
    pub(crate) async fn play(&mut self, steps: &[Step]) {
        for step in steps {
            if !self.connections.contains_key(&step.connection) {
                let stream = match &self.door {
                    Door::Opens(socket) => UnixStream::connect(socket).await.unwrap(),
                    Door::Waits(listener) => within(listener.accept()).await.unwrap().0,
                };
                let (recorded, heard) = (Vec::new(), Vec::new());
                let played = Played {
                    stream,
                    recorded,
                    heard,
                };
                self.connections.insert(step.connection, played);
            }
            let played = self.connections.get_mut(&step.connection).unwrap();
            match (&step.text, step.from == self.side) {
                (Some(text), true) => played.stream.write_all(text.as_bytes()).await.unwrap(),
                (None, true) => {
                    // The other side may have gone already.
                    let _ = played.stream.shutdown().await;
                }
                (Some(text), false) => {
                    played.recorded.extend_from_slice(text.as_bytes());
                    played.hear(step.connection).await;
                }
                (None, false) => while within(played.read()).await {},
            }
        }
    }

    /// Says no more, and hears whether the other side said anything else than it did then.
    pub(crate) async fn finish(&mut self) {
        for (connection, mut played) in std::mem::take(&mut self.connections) {
            let _ = played.stream.shutdown().await;
            while within(played.read()).await {}
            assert_eq!(
                said(&played.heard),
                said(&played.recorded),
                "more was said on connection {connection} than in the recording"
            );
        }
    }
}

impl Played {
    /// False: the other side says no more.
    async fn read(&mut self) -> bool {
        self.stream.read_buf(&mut self.heard).await.is_ok_and(|bytes| bytes > 0)
    }

    /// Waits until the other side has said what it said then.
    async fn hear(&mut self, connection: usize) {
        let recorded = said(&self.recorded);
        loop {
            let heard = said(&self.heard);
            let differs =
                || format!("on connection {connection} was said\n{heard:#?}\nand in the recording\n{recorded:#?}");
            match follows(&heard, &recorded) {
                Some(true) => return,
                Some(false) => assert!(within(self.read()).await, "it ended too early: {}", differs()),
                None => panic!("{}", differs()),
            }
        }
    }
}

/// Whether all that was recorded was heard: `None` where it never will be.
fn follows(heard: &[Said], recorded: &[Said]) -> Option<bool> {
    for (place, recorded) in recorded.iter().enumerate() {
        match (heard.get(place), recorded) {
            (None, _) => return Some(false),
            (Some(Said::Bytes(heard)), Said::Bytes(recorded)) if !heard.starts_with(recorded.as_str()) => {
                return recorded.starts_with(heard.as_str()).then_some(false);
            }
            (Some(Said::Bytes(_)), Said::Bytes(_)) => {}
            (Some(heard), recorded) if heard == recorded => {}
            _ => return None,
        }
    }
    Some(true)
}

/// What is said on a connection, one direction of it.
#[derive(PartialEq, Debug)]
enum Said {
    /// The head of a request or of an answer; without its date, and without what is accepted, which the release before does not
    /// read.
    Head(String, BTreeMap<String, String>),
    /// A whole body, or a line of the control stream; without the name of a build.
    Json(Value),
    /// A whole body of something else.
    Text(String),
    /// What a connection carries, so far.
    Bytes(String),
}

/// Whole messages only: what is still to come of the last one is left out.
fn said(bytes: &[u8]) -> Vec<Said> {
    let mut rest = std::str::from_utf8(bytes).unwrap();
    let mut said = Vec::new();
    while let Some((head, after)) = rest.split_once("\r\n\r\n") {
        let (first, lines) = head.split_once("\r\n").unwrap_or((head, ""));
        let headers: BTreeMap<String, String> = lines
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .filter(|(name, _)| name != "date" && name != "accept")
            .collect();
        let length = headers.get("content-length").map(|length| length.parse().unwrap());
        let chunked = headers.contains_key("transfer-encoding");
        said.push(Said::Head(first.to_owned(), headers));
        if first.starts_with("POST /v1/control ") || first.starts_with("HTTP/1.1 101 ") {
            let (whole, _) = after.rsplit_once('\n').unwrap_or_default();
            said.extend(whole.lines().map(value));
            return said;
        }
        let body = if chunked {
            unchunk(after)
        } else if let Some(length) = length {
            after
                .split_at_checked(length)
                .map(|(body, rest)| (body.to_owned(), rest))
        } else if first.starts_with("CONNECT ") || first.starts_with("HTTP/1.1 200 ") {
            if !after.is_empty() {
                said.push(Said::Bytes(after.to_owned()));
            }
            return said;
        } else {
            Some((String::new(), after))
        };
        let Some((body, next)) = body else { return said };
        if !body.is_empty() {
            said.push(value(&body));
        }
        rest = next;
    }
    said
}

fn value(text: &str) -> Said {
    match serde_json::from_str(text) {
        Ok(Value::Object(mut value)) => {
            if value.contains_key("protocol") {
                value.remove("build");
            }
            Said::Json(Value::Object(value))
        }
        Ok(value) => Said::Json(value),
        Err(_) => Said::Text(text.to_owned()),
    }
}

/// A chunked body, and what comes after it; nothing where it is not whole.
fn unchunk(mut rest: &str) -> Option<(String, &str)> {
    let mut body = String::new();
    loop {
        let (length, after) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).unwrap();
        let (piece, after) = after.split_at_checked(length)?;
        body.push_str(piece);
        rest = after.strip_prefix("\r\n")?;
        if length == 0 {
            return Some((body, rest));
        }
    }
}
