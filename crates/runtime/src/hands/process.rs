//! The hands themselves.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use causes::with_causes;
use channel::{ChannelError, Descriptors, Lines};
use domain::ToolCallId;
use lifecycle::{Stop, Tasks};
use protocol::{FileEntry, FileRequest, FromHands, Grants, ToHands};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use sandbox::inside::SERVICES_SOCKET;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use tools::{Created, FileError, Files, Packing, Settings, Tools, Unpacking};

use super::{FileFailure, LONGEST};
use crate::program::event_loop;

/// Answers that may wait for PID 1 to read them; progress beyond that is dropped.
const ANSWERS: usize = 256;

/// Calls at once; further ones wait.
const CALLS: usize = 32;

/// Files that may be under way into the workspace.
const CREATED: usize = 16;

/// Entries of a list.
const ENTRIES: usize = 20_000;

/// The hands could not begin, or cannot go on; PID 1 starts others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandsError {
    #[error("cannot give up what the hands must not have")]
    Confine(#[source] io::Error),
    #[error("the hands' standard input is no socket")]
    Socket(#[source] io::Error),
    #[error("cannot start the event loop")]
    EventLoop(#[source] io::Error),
    #[error(transparent)]
    Files(#[from] FileError),
    #[error("cannot hear PID 1")]
    Hear(#[from] ChannelError),
    #[error("cannot answer PID 1")]
    Answer(#[source] io::Error),
}

/// Lives as the hands, until PID 1 hangs up.
pub(crate) fn run() -> Result<(), HandsError> {
    let socket = confine().map_err(HandsError::Confine)?;
    let event_loop = event_loop(4).map_err(HandsError::EventLoop)?;
    event_loop.block_on(live(socket))
}

/// A session of their own, no way to more rights, no look into their memory, and death before PID 1 where memory ends. The
/// socket leaves the place where a child would inherit it.
fn confine() -> io::Result<OwnedFd> {
    // Fails only for who leads a group already, which is as good.
    let _ = setsid();
    rustix::thread::set_no_new_privs(true)?;
    // Before the next step makes this file root's. Where it may not be raised, memory ends in another order.
    let _ = std::fs::write("/proc/self/oom_score_adj", "300");
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket)
}

async fn live(socket: OwnedFd) -> Result<(), HandsError> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    let socket = socket
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(socket))
        .map_err(HandsError::Socket)?;
    let socket = Arc::new(socket);
    let image: BTreeMap<_, _> = std::env::vars().collect();
    let supervisor = vec!["/proc/self/exe".into(), "supervise".into()];
    let settings = Settings {
        services: Some(SERVICES_SOCKET.into()),
        ..Settings::sandbox(supervisor, image.clone())
    };
    let tools = Arc::new(Tools::new(settings)?);
    if let Err(error) = tools.files().recover() {
        eprintln!("what was left of an archive stays: {}", with_causes(&error));
    }
    // What went wrong until here stands in the host's log, which no user's process may write to.
    rustix::stdio::dup2_stderr(std::fs::File::open("/dev/null").map_err(HandsError::Confine)?)
        .map_err(|error| HandsError::Confine(error.into()))?;
    let (answers, answered) = mpsc::channel(ANSWERS);
    // The queue is new.
    let _ = answers.try_send(Line::from(FromHands::Ready));
    tools.stand_by().await;
    let process = Process {
        tools,
        image,
        answers,
        tasks: Tasks::new(),
        under_way: TaskTracker::new(),
        background: Stop::new(),
        in_background: TaskTracker::new(),
        calls: Arc::new(Semaphore::new(CALLS)),
        stop: Stop::new(),
        stops: HashMap::new(),
        created: Arc::default(),
    };
    tokio::select! {
        ended = process.listen(Lines::new(Arc::clone(&socket), LONGEST, Descriptors::Refused)) => Ok(ended?),
        ended = speak(&socket, answered) => ended.map_err(HandsError::Answer),
    }
}

/// An answer, and the descriptor that goes with it.
struct Line {
    said: FromHands,
    descriptor: Option<OwnedFd>,
}

impl From<FromHands> for Line {
    fn from(said: FromHands) -> Self {
        Self { said, descriptor: None }
    }
}

async fn speak(socket: &UnixStream, mut answers: mpsc::Receiver<Line>) -> io::Result<()> {
    while let Some(line) = answers.recv().await {
        channel::write(socket, &line.said, line.descriptor.as_ref().map(AsFd::as_fd)).await?;
    }
    Ok(())
}

struct Process {
    tools: Arc<Tools>,
    /// What the image says of the environment.
    image: BTreeMap<String, String>,
    answers: mpsc::Sender<Line>,
    tasks: Tasks,
    under_way: TaskTracker,
    /// Stops every program in the background.
    background: Stop,
    in_background: TaskTracker,
    calls: Arc<Semaphore>,
    /// Stops every call that is under way.
    stop: Stop,
    /// Stops one.
    stops: HashMap<ToolCallId, Stop>,
    created: Arc<Mutex<HashMap<u64, Begun>>>,
}

/// What was begun and waits for its `commit`.
enum Begun {
    File(Created),
    Packing(Packing),
    Unpacking(Unpacking),
}

impl Process {
    async fn listen(mut self, mut lines: Lines) -> Result<(), ChannelError> {
        while let Some(order) = lines.read::<ToHands>().await? {
            match order {
                ToHands::Environment { environment } => {
                    let mut whole = self.image.clone();
                    whole.extend(environment);
                    self.tools.set_environment(whole).await;
                }
                ToHands::Prepare { on: true, grants } => {
                    self.tools.grant(grants);
                    self.tools.prepare();
                }
                ToHands::Prepare { on: false, .. } => {
                    self.tools.grant(Grants::default());
                    let (resting, tools, answers) = (self.tools.rest(), Arc::clone(&self.tools), self.answers.clone());
                    self.tasks.spawn(async move {
                        resting.await;
                        tools.stand_by().await;
                        let _ = answers.send(FromHands::Rested.into()).await;
                    });
                }
                ToHands::Call { call, limits } => self.call(call, limits),
                ToHands::Cancel { call } => {
                    if let Some(stop) = self.stops.remove(&call) {
                        stop.cancel();
                    }
                }
                ToHands::Stop { request, background } => self.stop(request, background),
                ToHands::Background {
                    request,
                    command,
                    seconds,
                } => self.background(request, &command, Duration::from_secs(seconds)),
                ToHands::File { request, file } => self.file(request, file),
            }
        }
        Ok(())
    }

    fn call(&mut self, call: domain::ToolCall, limits: domain::RunLimits) {
        self.stops.retain(|_, stop| !stop.is_cancelled());
        let stop = self.stop.child_token();
        self.stops.insert(call.id.clone(), stop.clone());
        let (tools, answers, places) = (Arc::clone(&self.tools), self.answers.clone(), Arc::clone(&self.calls));
        let ended = self.under_way.token();
        self.tasks.spawn(async move {
            // Cancelled when the call is over, so that it is forgotten.
            let over = stop.clone().drop_guard();
            let _place = places.acquire().await;
            let progress = |text: &str| {
                let (call, text) = (call.id.clone(), text.to_owned());
                let _ = answers.try_send(FromHands::Progress { call, text }.into());
            };
            let result = tools.use_tool(&call, &limits, &progress, &stop).await;
            // Fails only where PID 1 has hung up.
            let _ = answers.send(FromHands::Result { result }.into()).await;
            drop((over, ended));
        });
    }

    fn stop(&mut self, request: u64, background: bool) {
        std::mem::take(&mut self.stop).cancel();
        self.stops.clear();
        // Calls of later orders are counted anew.
        let ending = std::mem::take(&mut self.under_way);
        ending.close();
        let programs = background.then(|| {
            std::mem::take(&mut self.background).cancel();
            let programs = std::mem::take(&mut self.in_background);
            programs.close();
            programs
        });
        let (resting, tools, answers) = (self.tools.rest(), Arc::clone(&self.tools), self.answers.clone());
        self.tasks.spawn(async move {
            resting.await;
            ending.wait().await;
            if let Some(programs) = programs {
                programs.wait().await;
            }
            tools.stand_by().await;
            let _ = answers.send(FromHands::Stopped { request }.into()).await;
        });
    }

    fn background(&self, request: u64, command: &str, time: Duration) {
        let (tools, answers) = (Arc::clone(&self.tools), self.answers.clone());
        let started = tools.start_in_background(command);
        let (stop, ended) = (self.background.clone(), self.in_background.token());
        self.tasks.spawn(async move {
            let failure = started.as_ref().err().cloned();
            // Fails only where PID 1 has hung up.
            let _ = answers.send(FromHands::Background { request, failure }.into()).await;
            if let Ok(program) = started {
                program.finish(time, &stop).await;
                tools.stand_by().await;
                drop(ended);
                let _ = answers.send(FromHands::BackgroundEnded { request }.into()).await;
            }
        });
    }

    fn file(&self, request: u64, file: FileRequest) {
        let (tools, created, answers) = (Arc::clone(&self.tools), Arc::clone(&self.created), self.answers.clone());
        self.tasks.spawn(async move {
            let work = move || serve_file(tools.files(), &created, request, file);
            let done = tokio::task::spawn_blocking(work).await;
            let (descriptor, entries, failure) = match done.unwrap_or_else(|error| Err(error.to_string().into())) {
                Ok(Served::Descriptor(descriptor)) => (Some(descriptor), Vec::new(), None),
                Ok(Served::Entries(entries)) => (None, entries, None),
                Err(failure) => (None, Vec::new(), Some(failure)),
            };
            let missing = failure.as_ref().is_some_and(|failure| failure.missing);
            let said = FromHands::File {
                request,
                opened: descriptor.is_some(),
                entries,
                failure: failure.map(|failure| failure.words),
                missing,
            };
            let _ = answers.send(Line { said, descriptor }).await;
        });
    }
}

/// What became of a request for files.
enum Served {
    Descriptor(OwnedFd),
    Entries(Vec<FileEntry>),
}

fn serve_file(
    files: &Files,
    created: &Mutex<HashMap<u64, Begun>>,
    request: u64,
    file: FileRequest,
) -> Result<Served, FileFailure> {
    let said = |error: FileError| FileFailure {
        missing: matches!(error, FileError::Missing { .. }),
        words: with_causes(&error),
    };
    let under_way = || created.lock().unwrap_or_else(PoisonError::into_inner);
    let room = || match under_way().len() {
        CREATED.. => Err(format!("{CREATED} files are being written already")),
        _ => Ok(()),
    };
    match file {
        FileRequest::Open { path } => Ok(Served::Descriptor(files.read(&path).map_err(said)?.into())),
        FileRequest::List { path } => match files.list(&path, ENTRIES).map_err(said)? {
            (entries, false) => Ok(Served::Entries(entries)),
            (_, true) => {
                let words = format!("more than {ENTRIES} files are in {path:?}; list a folder that is further down");
                Err(words.into())
            }
        },
        FileRequest::Create { path } => {
            room()?;
            let made = files.create(&path).map_err(said)?;
            let descriptor = made.file().try_clone().map_err(|error| error.to_string())?;
            under_way().insert(request, Begun::File(made));
            Ok(Served::Descriptor(descriptor.into()))
        }
        FileRequest::Pack => {
            room()?;
            let (archive, packing) = files.pack().map_err(|error| error.to_string())?;
            under_way().insert(request, Begun::Packing(packing));
            Ok(Served::Descriptor(archive))
        }
        FileRequest::Unpack => {
            room()?;
            let (archive, unpacking) = files.unpack().map_err(|error| error.to_string())?;
            under_way().insert(request, Begun::Unpacking(unpacking));
            Ok(Served::Descriptor(archive))
        }
        FileRequest::Commit { created } => {
            let begun = under_way().remove(&created).ok_or("no such file is being written")?;
            let done = match begun {
                Begun::File(made) => made.commit().map_err(said),
                Begun::Packing(packing) => packing.commit().map_err(|error| with_causes(&error).into()),
                Begun::Unpacking(unpacking) => {
                    unpacking
                        .commit()
                        .map_err(|error| with_causes(&error).into())
                        .map(|left| {
                            // Nobody waits for it.
                            drop(std::thread::spawn(move || left.remove()));
                        })
                }
            };
            done.map(|()| Served::Entries(Vec::new()))
        }
        FileRequest::Discard { created } => {
            drop(under_way().remove(&created));
            Ok(Served::Entries(Vec::new()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_told_from_what_cannot_be_had() {
        let settings = Settings {
            workspace: std::env::temp_dir(),
            ..Settings::sandbox(Vec::new(), BTreeMap::new())
        };
        let tools = Tools::new(settings).unwrap();
        let missing = |path: &str| {
            let file = FileRequest::Open { path: path.to_owned() };
            let served = serve_file(tools.files(), &Mutex::default(), 1, file);
            served.err().map(|failure| failure.missing)
        };
        assert_eq!(missing("nothing-is-called-so"), Some(true));
        assert_eq!(missing("."), Some(false));
        assert_eq!(missing("../elsewhere"), Some(false));
    }
}
