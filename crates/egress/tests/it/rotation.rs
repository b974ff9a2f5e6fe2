//! The authority's successor takes over while a long session works.

use std::sync::{Arc, Mutex};

use domain::SessionId;
use jiff::{SignedDuration, Timestamp};
use rustls::ClientConfig;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::rig::{Setting, World, trusting};

const READ: &str = r#"
    [read]
    hosts = ["read.test:*"]
    networks = ["127.0.0.0/8"]
    methods = ["GET"]
"#;

const HOST: &str = "read.test";
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// A client's clock, which is the broker's.
#[derive(Debug)]
struct Time(Arc<Mutex<Timestamp>>);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.lock().unwrap().as_second();
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(seconds).unwrap(),
        )))
    }
}

/// A server that says when a request came, and answers it once it is told to.
async fn server(world: &World, host: &str, came: &Arc<Semaphore>, go: &Arc<Semaphore>) -> u16 {
    let acceptor = TlsAcceptor::from(Arc::new(world.server_config(host)));
    let (came, go) = (Arc::clone(came), Arc::clone(go));
    let address = world
        .server(move |stream| {
            let (acceptor, came, go) = (acceptor.clone(), Arc::clone(&came), Arc::clone(&go));
            async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut piece = [0; 4_096];
                while stream.read(&mut piece).await? > 0 {
                    came.add_permits(1);
                    go.acquire().await.map_err(std::io::Error::other)?.forget();
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                        .await?;
                }
                Ok(())
            }
        })
        .await;
    world.names.lead(host, "127.0.0.1");
    address.port()
}

#[tokio::test]
async fn threat_057_no_request_is_dropped_when_the_successor_takes_over() {
    let begun = Timestamp::now();
    let now = Arc::new(Mutex::new(begun));
    let told = Arc::clone(&now);
    let world = World::with(
        READ,
        Setting {
            clock: Some(Arc::new(move || *told.lock().unwrap())),
            ..Setting::default()
        },
    );
    let pass = |days: i64| *now.lock().unwrap() = begun + DAY * i32::try_from(days).unwrap();
    let (came, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let port = server(&world, HOST, &came, &go).await;
    let request = format!("GET /x HTTP/1.1\r\nhost: {HOST}:{port}\r\n\r\n");
    let session = SessionId::new();
    let certificates = || world.broker.authorities().unwrap();
    let open = async |session: SessionId, trusts: &str| {
        let tunnel = world.tunnel(session, HOST, port).unwrap();
        let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_details(provider, Arc::new(Time(Arc::clone(&now))))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusting(trusts))
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config)).connect(name, tunnel).await
    };
    let hears = async |stream: &mut TlsStream<UnixStream>| {
        let mut heard = Vec::new();
        while !heard.ends_with(b"hello") {
            assert!(stream.read_buf(&mut heard).await.unwrap() > 0, "it was cut");
        }
    };
    let served = async |session: SessionId, trusts: &str| {
        go.add_permits(1);
        let mut stream = open(session, trusts).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        hears(&mut stream).await;
        came.acquire().await.unwrap().forget();
    };

    // Before there is a successor; and what a session that was claimed by then trusts.
    let old = certificates();
    served(session, &old).await;
    // There is one, and the old one signs: also for new sessions, whatever they were told.
    pass(620);
    let both = certificates();
    assert!(both.starts_with(&old) && both.len() > old.len());
    for trusts in [&old, &both] {
        served(session, trusts).await;
        served(SessionId::new(), trusts).await;
    }
    // The old one signs for the last time. A request is under way, on a connection that stays.
    pass(699);
    let mut stays = open(session, &old).await.unwrap();
    stays.write_all(request.as_bytes()).await.unwrap();
    let mut early = open(SessionId::new(), &both).await.unwrap();
    early.write_all(request.as_bytes()).await.unwrap();
    came.acquire_many(2).await.unwrap().forget();
    // The successor signs. What is under way goes on, and so does what follows on its connection.
    pass(701);
    go.add_permits(2);
    for stream in [&mut stays, &mut early] {
        hears(stream).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        go.add_permits(1);
        hears(stream).await;
        came.acquire().await.unwrap().forget();
    }
    // New ones work for whoever was told in the last months. The old bundle alone works for as long as the session's certificate counts.
    served(session, &both).await;
    served(SessionId::new(), &both).await;
    served(session, &old).await;
    // From then on it fails closed, and nothing is dialled by it; the session that is told anew works on.
    pass(710);
    open(session, &old).await.unwrap_err();
    served(session, &both).await;
    // The old one ends: it is told no longer, and who was told both does not notice.
    pass(731);
    assert!(!certificates().contains(old.as_str()));
    served(SessionId::new(), &both).await;
    served(SessionId::new(), &certificates()).await;
}
