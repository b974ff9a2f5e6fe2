use std::os::unix::net::UnixListener as Listener;

use channel::{Descriptors, Lines};

use super::*;
use crate::wire::{Failure, Hello, LONGEST_REQUEST, Request, Saying};

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
            ..HostClient::new(self.folder.path().join("host.sock"), InstallationId::new(), &self.tasks)
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
        ..HostClient::new(folder.path().join("host.sock"), InstallationId::new(), &Tasks::new())
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

/// An agent that goes away while it makes a sandbox, comes back, and then says this of it.
async fn create_interrupted(then: impl FnOnce(&SandboxSpec) -> Answer) -> Result<SandboxStatus, ProviderError> {
    let agent = Agent::new();
    let client = agent.client();
    let spec = SandboxSpec {
        id: SandboxId::new(),
        session: SessionId::new(),
        image: sandbox::ImageDigest::from_bytes([1; 32]),
        limits: sandbox::Limits::default(),
        builder: false,
    };
    let answering = async {
        let (_, mut lines) = agent.accept(Saying::Hello(Hello::ours())).await;
        let request: Request = serde_json::from_slice(&lines.next().await.unwrap().unwrap()).unwrap();
        assert_eq!(request.order, Order::Create(spec.clone()));
        drop(lines);
        let (stream, mut lines) = agent.accept(Saying::Hello(Hello::ours())).await;
        let request: Request = serde_json::from_slice(&lines.next().await.unwrap().unwrap()).unwrap();
        assert_eq!(request.order, Order::Status(spec.id), "a sandbox was ordered twice");
        let reply = Saying::Reply {
            number: request.number,
            answer: then(&spec),
        };
        channel::write(&stream, &reply, None).await.unwrap();
        lines
    };
    testkit::within("the answer", async { tokio::join!(client.create(&spec), answering) })
        .await
        .0
}

#[tokio::test]
async fn a_sandbox_that_was_made_while_the_connection_was_lost_is_found() {
    let made = |spec: &SandboxSpec| {
        Answer::Status(SandboxStatus {
            id: spec.id,
            session: spec.session,
            image: spec.image.clone(),
            state: sandbox::SandboxState::Running,
            root_uid: 7,
            created: domain::Timestamp(1),
            builder: false,
        })
    };
    assert_eq!(create_interrupted(made).await.unwrap().root_uid, 7);
}

#[tokio::test]
async fn a_sandbox_of_which_nothing_is_left_may_be_ordered_again() {
    let error = create_interrupted(|spec| Answer::Failed(Failure::NotFound(spec.id)))
        .await
        .unwrap_err();
    assert!(matches!(error, ProviderError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn an_older_agent_is_asked_for_nothing_that_it_does_not_know() {
    let agent = Agent::new();
    let client = agent.client();
    let older = async {
        let hello = Hello {
            protocol: 1,
            ..Hello::ours()
        };
        let (stream, mut lines) = agent.accept(Saying::Hello(hello)).await;
        let asked = lines.next().await.unwrap().unwrap();
        let asked: Request = serde_json::from_slice(&asked).unwrap();
        assert_eq!(asked.order, Order::List);
        let reply = Saying::Reply {
            number: asked.number,
            answer: Answer::Statuses(Vec::new()),
        };
        channel::write(&stream, &reply, None).await.unwrap();
        assert!(lines.next().await.unwrap().is_none());
    };
    let asking = async {
        let error = client.assign(SandboxId::new(), SessionId::new()).await.unwrap_err();
        assert!(error.to_string().contains("does not know that order"), "{error}");
        assert!(client.list().await.unwrap().is_empty());
        drop(client);
    };
    testkit::within("the client to ask for what is known", async {
        tokio::join!(older, asking)
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_is_older_than_the_release_before_is_refused_in_words() {
    let agent = Agent::new();
    let client = agent.client();
    let hello = Hello {
        protocol: crate::wire::PROTOCOL - 2,
        ..Hello::ours()
    };
    let asking = async { client.list().await.unwrap_err() };
    let answering = agent.accept(Saying::Hello(hello));
    let (error, _connection) = testkit::within("the refusal", async { tokio::join!(asking, answering) }).await;
    assert!(matches!(error, ProviderError::Unavailable(_)));
    let words = "run the same release of Belljar on both sides";
    assert!(error.to_string().contains(words), "{error}");
}
