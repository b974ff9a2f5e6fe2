//! Files in both directions.

use std::io;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use protocol::{ToControl, ToRuntime, Transfer};

use crate::rig::{rig, within};

#[tokio::test]
async fn a_file_comes_out_whole() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let pieces: Vec<Bytes> = (0..200_u8).map(|piece| vec![piece; 10_000].into()).collect();
    let whole = pieces.concat();
    let runtime = async {
        let Some(ToRuntime::Transfer {
            request,
            transfer: Transfer::Read { path },
        }) = control.reader.next().await.unwrap()
        else {
            panic!("not a read")
        };
        assert_eq!(path, "out/data.csv");
        rig.client
            .send_file(request, stream::iter(pieces).map(Ok).boxed())
            .await
            .unwrap();
    };
    let fetched = async {
        let mut reader = rig.linked.read_file("out/data.csv").await.unwrap();
        let mut fetched = Vec::new();
        while let Some(bytes) = reader.chunk().await.unwrap() {
            fetched.extend_from_slice(&bytes);
        }
        fetched
    };
    let (fetched, ()) = within(async { tokio::join!(fetched, runtime) }).await;
    assert!(fetched == whole);
}

#[tokio::test]
async fn a_file_that_breaks_off_is_no_whole_file() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
    let breaks = stream::once(async {
        let _ = has_begun.await;
        Err(io::Error::other("the disk is gone"))
    });
    let broken = stream::iter([Ok(Bytes::from_static(b"half"))]).chain(breaks).boxed();
    let runtime = async {
        let Some(ToRuntime::Transfer { request, .. }) = control.reader.next().await.unwrap() else {
            panic!("not a transfer")
        };
        rig.client.send_file(request, broken).await.unwrap_err();
    };
    let fetched = async {
        let mut reader = rig.linked.read_file("x").await.unwrap();
        assert_eq!(reader.chunk().await.unwrap().unwrap(), "half");
        begun.send(()).unwrap();
        reader.chunk().await.unwrap_err();
    };
    within(async { tokio::join!(fetched, runtime) }).await;
}

#[tokio::test]
async fn bytes_go_in_and_the_answer_ends_the_transfer() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let runtime = async {
        let Some(ToRuntime::Transfer {
            request,
            transfer: Transfer::Write { path },
        }) = control.reader.next().await.unwrap()
        else {
            panic!("not a write")
        };
        assert_eq!(path, "in.txt");
        let mut body = rig.client.fetch_file(request).await.unwrap();
        let mut got = Vec::new();
        while let Some(bytes) = body.chunk().await.unwrap() {
            got.extend_from_slice(&bytes);
        }
        // A transfer is fetched once.
        rig.client.fetch_file(request).await.unwrap_err();
        let done = ToControl::Transferred {
            request,
            entries: Vec::new(),
            failure: None,
            missing: false,
        };
        control.writer.send(&done).await.unwrap();
        got
    };
    let source = stream::iter([Ok(Bytes::from_static(b"one ")), Ok(Bytes::from_static(b"two"))]).boxed();
    let (sent, got) = within(async { tokio::join!(rig.linked.write_file("in.txt", source), runtime) }).await;
    sent.unwrap();
    assert_eq!(got, b"one two");
}

#[tokio::test]
async fn nobody_sends_or_fetches_a_file_that_was_not_asked_for() {
    let rig = rig();
    within(rig.client.fetch_file(7)).await.unwrap_err();
    let bytes = stream::iter([Ok(Bytes::from_static(b"x"))]).boxed();
    within(rig.client.send_file(7, bytes)).await.unwrap_err();
}
