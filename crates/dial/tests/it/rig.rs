//! A resolver that tells what it is told to, and a server that says hello.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dial::{Allow, Dialer, Resolve, ResolveError, Settings};
use lifecycle::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers in the order in which they were put in; the last one stays.
#[derive(Default)]
pub(crate) struct Table {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'a>(answers: impl IntoIterator<Item = (&'a str, &'a [&'a str])>) -> Arc<Self> {
        let table = Self::default();
        for (name, addresses) in answers {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let mut answers = table.answers.lock().unwrap();
            answers.entry(name.to_owned()).or_default().push_back(addresses);
        }
        Arc::new(table)
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolve for Table {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.asked.lock().unwrap().push(name.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let Some(answers) = answers.get_mut(name) else {
            let name = name.to_owned();
            return Err(ResolveError::NoAddress { name });
        };
        let answer = if answers.len() > 1 {
            answers.pop_front()
        } else {
            answers.front().cloned()
        };
        Ok(answer.unwrap())
    }
}

pub(crate) fn dialer(table: &Arc<Table>) -> Dialer {
    dialer_within(table, Duration::from_secs(60))
}

pub(crate) fn dialer_within(table: &Arc<Table>, deadline: Duration) -> Dialer {
    Dialer::new(Arc::clone(table) as Arc<dyn Resolve>, Settings { deadline })
}

pub(crate) fn allow(networks: &[&str]) -> Allow {
    Allow {
        networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
    }
}

/// A server that says a word to whoever connects. It ends with the tasks.
pub(crate) async fn greeter(tasks: &Tasks, address: &str, word: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    tasks.spawn_until_stopped(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(word.as_bytes()).await.unwrap();
        }
    });
    at
}

pub(crate) async fn heard(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}
