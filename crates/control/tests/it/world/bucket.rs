//! A service that speaks as much S3 as is used of it, and can be told to fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::ContentHash;
use lifecycle::Tasks;
use objects::{Objects, S3Settings, Store};
use secret::Secret;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the service does with requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mood {
    Works,
    /// Answers 503.
    Refuses,
    /// Answers this, with the name of an error.
    Says(u16, &'static str),
    /// Hangs up.
    Gone,
    /// Answers nothing until it is told otherwise.
    Slow,
    /// Does what is asked when it is told otherwise.
    Waits,
}

pub(crate) struct Bucket {
    port: u16,
    mood: watch::Sender<Mood>,
    objects: Mutex<HashMap<String, Vec<u8>>>,
    /// Requests that were not answered as wanted.
    failed: AtomicUsize,
    puts: AtomicUsize,
    /// What has this content cannot be removed.
    held: Mutex<Option<&'static [u8]>>,
    /// What has this content cannot be uploaded.
    refused: Mutex<Option<&'static [u8]>>,
}

impl Bucket {
    pub(crate) async fn start(tasks: &Tasks) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bucket = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            mood: watch::Sender::new(Mood::Works),
            objects: Mutex::default(),
            failed: AtomicUsize::new(0),
            puts: AtomicUsize::new(0),
            held: Mutex::default(),
            refused: Mutex::default(),
        });
        let serving = Arc::clone(&bucket);
        let of_connections = tasks.clone();
        tasks.spawn_until_stopped(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let bucket = Arc::clone(&serving);
                of_connections.spawn_until_stopped(async move {
                    // Whoever hangs up has what they wanted.
                    let _ = bucket.serve(stream).await;
                });
            }
        });
        bucket
    }

    pub(crate) fn objects(&self) -> Objects {
        let settings = S3Settings {
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            bucket: "files".to_owned(),
            region: "here".to_owned(),
            prefix: String::new(),
            path_style: true,
            plain_http: true,
            access_key: Secret::new("key").into(),
            secret_key: Secret::new("secret").into(),
            session_token: None,
        };
        Objects::open(Store::S3(Box::new(settings))).unwrap()
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    pub(crate) fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    /// Waits until one more request has failed since this was called.
    pub(crate) fn fails_again(&self) -> impl Future<Output = ()> + '_ {
        let failed = self.failed();
        testkit::eventually_async("a request to be tried", async move || {
            (self.failed() > failed).then_some(())
        })
    }

    pub(crate) fn puts(&self) -> usize {
        self.puts.load(Ordering::SeqCst)
    }

    /// Only what has this content cannot be removed.
    pub(crate) fn hold(&self, content: Option<&'static [u8]>) {
        *self.held.lock().unwrap() = content;
    }

    /// Only what has this content cannot be uploaded.
    pub(crate) fn refuse(&self, content: Option<&'static [u8]>) {
        *self.refused.lock().unwrap() = content;
    }

    /// The contents that are there, sorted.
    pub(crate) fn contents(&self) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let mut contents: Vec<String> = objects
            .values()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .collect();
        contents.sort();
        contents
    }

    /// What the contents that are there are called.
    pub(crate) fn names(&self) -> Vec<ContentHash> {
        let objects = self.objects.lock().unwrap();
        let names = objects.keys().filter_map(|path| path.rsplit('/').next()?.parse().ok());
        names.collect()
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).await? == 0 {
                    return Ok(());
                }
                if line == "\r\n" {
                    break;
                }
                head.push(line.trim_end().to_ascii_lowercase());
            }
            let words: Vec<&str> = head[0].split(' ').collect();
            let (method, path) = (words[0], words[1].split('?').next().unwrap_or_default().to_owned());
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            let mut mood = self.mood.subscribe();
            let now = *mood.borrow();
            if now != Mood::Works {
                self.failed.fetch_add(1, Ordering::SeqCst);
            }
            match now {
                Mood::Gone => return Ok(()),
                Mood::Slow => {
                    let _ = mood.wait_for(|mood| *mood != Mood::Slow).await;
                    return Ok(());
                }
                Mood::Waits => {
                    let _ = mood.wait_for(|mood| *mood != Mood::Waits).await;
                }
                Mood::Works | Mood::Refuses | Mood::Says(..) => {}
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            let error = |code: &str| format!("<Error><Code>{code}</Code></Error>").into_bytes();
            let (status, answer) = match now {
                Mood::Refuses => (503, error("SlowDown")),
                Mood::Says(status, code) => (status, error(code)),
                Mood::Works | Mood::Gone | Mood::Slow | Mood::Waits => self.answer(method, path, body),
            };
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all(head.as_bytes()).await?;
            if method != "head" {
                stream.write_all(&answer).await?;
            }
        }
    }

    fn answer(&self, method: &str, path: String, body: Vec<u8>) -> (u16, Vec<u8>) {
        let mut objects = self.objects.lock().unwrap();
        match method {
            "put" => {
                if *self.refused.lock().unwrap() == Some(body.as_slice()) {
                    self.failed.fetch_add(1, Ordering::SeqCst);
                    return (503, b"<Error><Code>SlowDown</Code></Error>".to_vec());
                }
                self.puts.fetch_add(1, Ordering::SeqCst);
                objects.insert(path, body);
                (200, Vec::new())
            }
            "delete" => {
                let held = *self.held.lock().unwrap();
                if held.is_some() && objects.get(&path).map(Vec::as_slice) == held {
                    self.failed.fetch_add(1, Ordering::SeqCst);
                    return (403, b"<Error><Code>AccessDenied</Code></Error>".to_vec());
                }
                objects.remove(&path);
                (204, Vec::new())
            }
            _ => objects
                .get(&path)
                .map_or((404, Vec::new()), |bytes| (200, bytes.clone())),
        }
    }
}
