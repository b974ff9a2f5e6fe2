use std::os::unix::net::UnixListener as Listener;

use super::*;
use crate::channel::{self, Descriptors, Lines};
use crate::wire::{Hello, LONGEST_REQUEST, Saying};

/// A host agent that says what a test wants.
struct Agent {
    folder: tempfile::TempDir,
    listener: tokio::net::UnixListener,
    tasks: Tasks,
}

impl Agent {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(folder.path().join("host.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self {
            folder,
            listener: tokio::net::UnixListener::from_std(listener).unwrap(),
            tasks: Tasks::new(),
        }
    }

    fn client(&self) -> HostClient {
        HostClient {
            patience: Some(Duration::from_millis(300)),
            absence: Duration::from_millis(100),
            ..HostClient::new(self.folder.path().join("host.sock"), &self.tasks)
        }
    }

    async fn accept(&self, first: Saying) -> (Arc<tokio::net::UnixStream>, Lines) {
        let stream = Arc::new(self.listener.accept().await.unwrap().0);
        channel::write(&stream, &first, None).await.unwrap();
        let mut lines = Lines::new(Arc::clone(&stream), LONGEST_REQUEST, Descriptors::Refused);
        lines.next().await.unwrap().unwrap();
        (stream, lines)
    }
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_not_waited_for_for_ever() {
    let agent = Agent::new();
    let client = agent.client();
    let silent = async {
        let (_stream, mut lines) = agent.accept(Saying::Hello(Hello::ours())).await;
        while lines.next().await.unwrap().is_some() {}
    };
    let asking = async {
        let error = client.list().await.unwrap_err();
        assert!(error.to_string().contains("did not answer within"), "{error}");
        drop(client);
    };
    testkit::within("the client to give up", async { tokio::join!(silent, asking) }).await;
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let client = HostClient {
        absence: Duration::ZERO,
        ..HostClient::new(folder.path().join("host.sock"), &Tasks::new())
    };
    let error = testkit::within("the client to give up", client.list())
        .await
        .unwrap_err();
    assert!(matches!(error, ProviderError::Unavailable(_)));
    assert!(error.to_string().contains("belljar host"), "{error}");
}

#[tokio::test]
async fn an_agent_that_refuses_is_not_asked_again() {
    let agent = Agent::new();
    let client = agent.client();
    let asking = async { client.list().await.unwrap_err() };
    let answering = agent.accept(Saying::Refused("not today".into()));
    let (error, _connection) = testkit::within("the refusal", async { tokio::join!(asking, answering) }).await;
    assert!(error.to_string().contains("not today"), "{error}");
}

#[tokio::test]
async fn an_answer_of_another_kind_is_no_answer() {
    let agent = Agent::new();
    let client = agent.client();
    let answering = async {
        let (stream, mut lines) = agent.accept(Saying::Hello(Hello::ours())).await;
        lines.next().await.unwrap().unwrap();
        let answer = Saying::Reply {
            number: 0,
            answer: Answer::Done,
        };
        channel::write(&stream, &answer, None).await.unwrap();
        (stream, lines)
    };
    let (error, _connection) = testkit::within("the answer", async {
        tokio::join!(async { client.list().await.unwrap_err() }, answering)
    })
    .await;
    assert!(error.to_string().contains("understand the host agent"), "{error}");
}
