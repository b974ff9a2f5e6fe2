//! Connections that break, and input that is too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lifecycle::Tasks;
use serde_json::Value;
use tempfile::tempdir;
use testkit::model_server::Answer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::program::{ada, belljar, run};
use crate::world::World;

/// What of an event stream gets through before its connection is cut.
const CUT_AFTER: usize = 900;
/// What a connection is used for, where that matters.
const WATCHES: usize = 1;
const LOSES: usize = 2;

/// A bad line to the server: the answer to the first prompt gets lost, and connections that carry an event stream are cut again and
/// again. Gives its address and counts the cuts.
async fn bad_line(world: &World) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = world.url.strip_prefix("http://").unwrap().to_owned();
    let (cuts, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (tasks, counted) = (world.tasks.clone(), Arc::clone(&cuts));
    world.tasks.spawn_until_stopped(async move {
        while let Ok((client, _)) = listener.accept().await {
            tasks.spawn_until_stopped(pass(
                client,
                server.clone(),
                Arc::clone(&counted),
                Arc::clone(&lost),
                tasks.clone(),
            ));
        }
    });
    (address, cuts)
}

async fn pass(client: TcpStream, server: String, cuts: Arc<AtomicUsize>, lost: Arc<AtomicBool>, tasks: Tasks) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(server).await.unwrap().into_split();
    let watching = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&watching);
    tasks.spawn_until_stopped(async move {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut piece).await {
            let names = |path: &[u8]| piece[..length].windows(path.len()).any(|window| window == path);
            if names(b"/events") {
                seen.store(WATCHES, Ordering::SeqCst);
            } else if names(b"/prompts") && !lost.swap(true, Ordering::SeqCst) {
                seen.store(LOSES, Ordering::SeqCst);
            }
            if to_server.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    });
    let (mut piece, mut passed) = (vec![0; 64 << 10], 0);
    while let Ok(length @ 1..) = from_server.read(&mut piece).await {
        if watching.load(Ordering::SeqCst) == LOSES {
            return;
        }
        let cut = watching.load(Ordering::SeqCst) == WATCHES && passed + length > CUT_AFTER;
        let end = if cut { CUT_AFTER.saturating_sub(passed) } else { length };
        if to_client.write_all(&piece[..end]).await.is_err() {
            return;
        }
        if watching.load(Ordering::SeqCst) == WATCHES {
            passed += length;
        }
        if cut {
            cuts.fetch_add(1, Ordering::SeqCst);
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_again_and_again_loses_and_doubles_nothing() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    let answer: String = (0..40).map(|number| format!("word{number} ")).collect();
    let (url, cuts) = bad_line(&world).await;
    for json in [false, true] {
        world.models.next(Answer::text(&answer));
        let mut command = belljar(folder.path());
        command
            .env("BELLJAR_URL", &url)
            .env("BELLJAR_TOKEN", &world.ada)
            .args(["run", "do it", "--session", "mine"]);
        if json {
            command.arg("--json");
        }
        let came = run(command, "").await;
        assert_eq!(came.code, 0, "{came:?}");
        if json {
            let numbers = came
                .out
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_i64());
            let numbers: Vec<i64> = numbers.collect();
            let whole: Vec<i64> = (numbers[0]..numbers[0] + numbers.len() as i64).collect();
            assert_eq!(numbers, whole, "each event once, in order");
            let shown = ada(&world, folder.path(), &["events", "mine", "--json"], "").await;
            assert_eq!(shown.out.lines().last(), came.out.lines().last(), "to the very last");
        } else {
            assert_eq!(came.out.trim_end(), answer.trim_end(), "every word once");
        }
    }
    assert_eq!(
        world.models.count(),
        2,
        "the prompt whose answer was lost was done once"
    );
    assert!(cuts.load(Ordering::SeqCst) >= 2, "the line was good after all");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_megabytes_are_no_prompt() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    let came = ada(&world, folder.path(), &["run", "-"], &"x".repeat(50 << 20)).await;
    assert_eq!(came.code, 1);
    assert!(came.notes.contains("bytes at most"), "{}", came.notes);
    let nothing = ada(&world, folder.path(), &["run", ""], "").await;
    assert!(nothing.code == 2 && nothing.notes.contains("empty"), "{nothing:?}");
}
