//! What a sandbox may do with a URL, and what it may call a file.

use futures::StreamExt;
use link::client::Client;
use sha2::{Digest, Sha256};

use super::*;

fn content(bytes: &[u8]) -> Content {
    Content {
        sha256: domain::ContentHash(Sha256::digest(bytes).into()),
        bytes: bytes.len() as u64,
    }
}

async fn ask(client: &Client, request: SyncRequest) -> Result<SyncAnswer, ClientError> {
    let disk = DiskId::try_from("ab".repeat(16)).unwrap();
    client.sync(&SyncCall { disk, request }).await
}

/// A URL by which this content may be uploaded.
async fn for_upload(client: &Client, bytes: &[u8]) -> String {
    // Refused until the process that keeps the files has begun.
    let answer = testkit::eventually_async("an offer to be taken", async || {
        let contents = vec![content(bytes)];
        ask(client, SyncRequest::Offer { contents }).await.ok()
    })
    .await;
    match answer {
        SyncAnswer::Offered { offers } => match &offers[..] {
            [protocol::Offered::Upload { url }] => url.to_string(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// A URL by which this content may be fetched, when it is kept.
async fn for_download(client: &Client, bytes: &[u8]) -> String {
    testkit::eventually_async("the content to be kept", async || {
        let contents = vec![content(bytes)];
        match ask(client, SyncRequest::Fetch { contents }).await.ok()? {
            SyncAnswer::Fetch { urls } => urls.first().map(|url| url.to_string()).filter(|url| !url.is_empty()),
            other => panic!("{other:?}"),
        }
    })
    .await
}

async fn put(client: &Client, url: &str, bytes: &'static [u8]) -> Result<(), ClientError> {
    let body = futures::stream::iter([Ok(bytes::Bytes::from_static(bytes))]).boxed();
    client.keep_object(url, bytes.len() as u64, body).await
}

/// Whether this content is kept for a session, in the folder where they are.
fn is_kept(world: &World, session: SessionId, bytes: &[u8]) -> bool {
    let name = content(bytes).sha256.to_string();
    let of_session = world.folder().join("objects/sessions").join(session.to_string());
    of_session.join(&name[..2]).join(name).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_118_a_url_is_worth_nothing_when_its_session_was_archived() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    let (_, client) = world.inside.newest();
    fs::write(workspace.join("file"), "kept before").unwrap();
    let download = for_download(&client, b"kept before").await;
    let (first, second) = (
        for_upload(&client, b"first").await,
        for_upload(&client, b"second").await,
    );
    // As long as the session is there they are good.
    put(&client, &first, b"first").await.unwrap();
    drop(client.fetch_object(&download).await.unwrap());
    // What was fetched and offered a moment ago is still in use.
    let away = async || archive(&world, session).await.ok();
    testkit::eventually_async("the session to be put away", away).await;

    // Whoever has kept them, a minute later: by the link that the sandbox had, and by that of another session.
    let stranger = {
        let (stranger, _) = super::session(&world).await;
        assert_ne!(stranger, session);
        world.inside.newest().1
    };
    for (whose, client) in [("its own", &client), ("a stranger's", &stranger)] {
        let upload = put(client, &second, b"second").await;
        let fetched = client.fetch_object(&download).await;
        assert!(
            upload.is_err() && fetched.is_err(),
            "by {whose} link: {upload:?}, {fetched:?}"
        );
    }
    assert!(matches!(
        put(&stranger, &second, b"second").await,
        Err(ClientError::Refused(_))
    ));
    assert!(!is_kept(&world, session, b"second"));
    assert!(is_kept(&world, session, b"kept before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_116_a_url_leads_nowhere_else_however_its_path_is_written() {
    let world = world().await;
    let (session, _) = session(&world).await;
    let (_, client) = world.inside.newest();
    let url = for_upload(&client, b"mine").await;
    let (path, query) = url.split_once('?').unwrap();
    let hash = content(b"mine").sha256.to_string();
    let stranger = SessionId::new();
    for other in [
        path.replace(&session.to_string(), &format!("{session}/../{stranger}")),
        path.replace(&session.to_string(), &format!("{session}%2f..%2f{stranger}")),
        path.replace(&session.to_string(), &format!("{session}/%2e%2e/{stranger}")),
        path.replace(&session.to_string(), &format!("/{session}")),
        path.replace(&session.to_string(), &format!("{session}\\..\\{stranger}")),
        path.replace(&session.to_string(), &session.to_string().to_uppercase()),
        path.replace(&hash, &hash.to_uppercase()),
        path.replace(&hash, &format!("{hash}%00")),
        path.replace(&hash, &format!("{hash}/")),
        path.replace(&hash, &format!("../../{hash}")),
        path.replace(&hash, &"a".repeat(5_000)),
        path.replace(
            &hash,
            &hash
                .replacen('a', "%61", 1)
                .replacen('0', "%30", 1)
                .replacen('1', "%31", 1),
        ),
        path.replace("/v1", "//v1"),
    ] {
        assert_ne!(other, path, "it is another");
        let refused = put(&client, &format!("{other}?{query}"), b"mine").await;
        assert!(refused.is_err(), "{other}");
    }
    assert!(!is_kept(&world, session, b"mine"));
    assert!(!is_kept(&world, stranger, b"mine"));
    put(&client, &url, b"mine").await.unwrap();
    assert!(is_kept(&world, session, b"mine"));
}

/// Names are bytes: what looks alike, or is the same elsewhere, is as many files as it is here.
#[tokio::test(flavor = "multi_thread")]
async fn threat_116_names_that_look_alike_are_files_of_their_own() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    let names = [
        // One letter, and a letter with a mark; the same letter thrice, and a ligature.
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{212b}",
        "\u{c5}",
        "A\u{30a}",
        "\u{fb01}le",
        "file",
        "File",
        "FILE",
        // What leads elsewhere if it is read once more.
        "%2e%2e%2ffile",
        "..%2ffile",
        "..\\file",
        "...",
        "a\nb",
        " ",
        "-rf",
    ];
    for name in names {
        fs::write(workspace.join(name), format!("of {name:?}")).unwrap();
    }
    fs::create_dir(workspace.join("Folder")).unwrap();
    fs::create_dir(workspace.join("folder")).unwrap();
    fs::write(workspace.join("Folder/one"), "one").unwrap();
    fs::write(workspace.join("folder/two"), "two").unwrap();
    let long = "l".repeat(255);
    fs::write(workspace.join(&long), "long").unwrap();
    let wanted = tree(&workspace);
    assert_eq!(wanted.len(), names.len() + 5);
    archived(&world, session).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
    // No tool is used before all files are known to be back. From then on new ones are kept.
    fs::write(workspace.join("since"), "since").unwrap();
    testkit::eventually_async("the new one to be recorded", async || {
        // Those of all disks but one that nobody has.
        let files = world
            .store
            .missing_files(Asker::System, session, "", None, 1_000, 1_000);
        let files = files.await.unwrap();
        files.iter().any(|(_, file)| file.path == b"since").then_some(())
    })
    .await;
    // One of two that look alike goes, and the other stays.
    fs::remove_file(workspace.join("cafe\u{301}")).unwrap();
    fs::rename(workspace.join("FILE"), workspace.join("other")).unwrap();
    let wanted = tree(&workspace);
    archived(&world, session).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

/// A sandbox that says so itself is told no.
#[tokio::test(flavor = "multi_thread")]
async fn threat_116_a_sandbox_cannot_record_what_is_no_name() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    let (_, client) = world.inside.newest();
    fs::write(workspace.join("file"), "file").unwrap();
    for_download(&client, b"file").await;
    let piece = protocol::Piece {
        at: 0,
        content: content(b"file"),
    };
    let other = format!("../{}/file", SessionId::new());
    let (long, deep) = ("l".repeat(5_000), "d/".repeat(2_500) + "f");
    for path in [&*other, "/etc/passwd", "a//b", "a\0b", "a/./b", "a/", ".", &long, &deep] {
        let record = SyncRequest::Record {
            gone: Vec::new(),
            files: vec![FileRecord {
                path: PathBytes(path.as_bytes().to_vec()),
                kept: Kept::File {
                    bytes: 4,
                    pieces: vec![piece],
                },
                mode: 0o644,
                changed: 0,
                stamp: 0,
            }],
        };
        let answer = ask(&client, record).await;
        assert!(matches!(answer, Err(ClientError::Refused(_))), "{path:?}: {answer:?}");
    }
    // Nor can it have such a one removed.
    let gone = vec![PathBytes(other.into_bytes())];
    let answer = ask(
        &client,
        SyncRequest::Record {
            gone,
            files: Vec::new(),
        },
    )
    .await;
    assert!(matches!(answer, Err(ClientError::Refused(_))), "{answer:?}");
    let wanted = tree(&workspace);
    archived(&world, session).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}
