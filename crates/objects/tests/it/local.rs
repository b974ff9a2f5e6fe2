//! Objects in a folder.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use domain::{ContentHash, SessionId};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use objects::{Key, ObjectError, Objects, Store};
use ring::digest::{SHA256, digest};

pub(crate) fn key(session: SessionId, content: &[u8]) -> Key {
    let sha256 = ContentHash(digest(&SHA256, content).as_ref().try_into().unwrap());
    Key { session, sha256 }
}

/// The bytes in small pieces.
pub(crate) fn pieces(content: &[u8]) -> BoxStream<'static, std::io::Result<Bytes>> {
    let pieces: Vec<_> = content
        .chunks(7)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    stream::iter(pieces).boxed()
}

pub(crate) async fn content(objects: &Objects, key: Key) -> Vec<u8> {
    let (bytes, stream) = objects.get(key).await.unwrap();
    let content: Vec<Bytes> = stream.try_collect().await.unwrap();
    let content = content.concat();
    assert_eq!(content.len() as u64, bytes);
    content
}

/// What every kind of store does.
pub(crate) async fn keeps_objects(objects: &Objects) {
    let session = SessionId::new();
    let (one, other) = (&b"the first content"[..], &b"another content"[..]);
    let (first, second) = (key(session, one), key(session, other));
    assert_eq!(objects.head(first).await.unwrap(), None);
    assert!(matches!(objects.get(first).await, Err(ObjectError::NotFound(_))));
    objects.put(first, one.len() as u64, pieces(one)).await.unwrap();
    objects.put(first, one.len() as u64, pieces(one)).await.unwrap();
    objects.put(second, other.len() as u64, pieces(other)).await.unwrap();
    assert_eq!(objects.head(first).await.unwrap(), Some(one.len() as u64));
    assert_eq!(content(objects, first).await, one);
    assert_eq!(content(objects, second).await, other);
    // Another session has none of it.
    assert_eq!(objects.head(key(SessionId::new(), one)).await.unwrap(), None);
    objects.delete(first).await.unwrap();
    objects.delete(first).await.unwrap();
    assert_eq!(objects.head(first).await.unwrap(), None);
    assert_eq!(content(objects, second).await, other);

    // What is not what it should be is refused.
    let third = key(session, b"third");
    assert!(objects.put(third, 5, pieces(b"thirD")).await.is_err());
    assert!(objects.put(third, 5, pieces(b"thi")).await.is_err());
    let cut = stream::iter([
        Ok(Bytes::from_static(b"th")),
        Err(std::io::ErrorKind::BrokenPipe.into()),
    ])
    .boxed();
    assert!(objects.put(third, 5, cut).await.is_err());
    // A service may leave what it refused, until the right one comes.
    objects.put(third, 5, pieces(b"third")).await.unwrap();
    assert_eq!(content(objects, third).await, b"third");
}

#[tokio::test]
async fn a_folder_keeps_objects() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Objects::open(Store::Local(folder.path().join("objects"))).unwrap();
    keeps_objects(&objects).await;
    let third = key(SessionId::new(), b"third");
    assert!(objects.put(third, 5, pieces(b"third and more")).await.is_err());
    assert_eq!(objects.head(third).await.unwrap(), None);
    objects.delete(third).await.unwrap();
    // Nothing that was begun is left, and no folder of a session without objects.
    let left = std::fs::read_dir(folder.path().join("objects/unfinished")).unwrap();
    assert_eq!(left.count(), 0);
    let gone = folder.path().join("objects/sessions").join(third.session.to_string());
    objects.put(third, 5, pieces(b"third")).await.unwrap();
    assert!(gone.exists());
    objects.delete(third).await.unwrap();
    assert!(!gone.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_kept_while_the_last_beside_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Objects::open(Store::Local(folder.path().join("objects"))).unwrap();
    let session = SessionId::new();
    let (one, other) = (key(session, b"one"), key(session, b"other"));
    for _ in 0..50 {
        let keep = async {
            objects.put(one, 3, pieces(b"one")).await.unwrap();
        };
        let remove = async {
            objects.put(other, 5, pieces(b"other")).await.unwrap();
            objects.delete(other).await.unwrap();
        };
        futures::join!(keep, remove);
        assert_eq!(content(&objects, one).await, b"one");
        objects.delete(one).await.unwrap();
    }
}

/// A file system of its own, until this is dropped.
struct Small<'f>(&'f Path);

impl<'f> Small<'f> {
    fn mount(place: &'f Path, bytes: u64) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Most of it is never written.
        file.as_file().set_len(bytes).unwrap();
        testkit::run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(file.path()));
        testkit::run(Command::new("mount").args(["-o", "loop"]).arg(file.path()).arg(place));
        Self(place)
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        testkit::run(Command::new("umount").arg(self.0));
    }
}

#[tokio::test]
async fn of_what_has_no_room_nothing_is_kept_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let _small = Small::mount(folder.path(), 800 << 20);
    let place = folder.path().join("objects");
    let objects = Objects::open(Store::Local(place.clone())).unwrap();
    let session = SessionId::new();
    let bytes: Vec<u8> = (0..4_u32 << 20)
        .map(|place| u8::try_from(place % 251 + 1).unwrap())
        .collect();
    let (whole, filler) = (key(session, &bytes), folder.path().join("filler"));
    let fill = |filler: &Path| {
        let file = std::fs::File::create(filler).unwrap();
        let space = rustix::fs::fstatvfs(&file).unwrap();
        let free = space.f_bavail * space.f_frsize;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free - (64 << 10)).unwrap();
    };

    // The disk becomes full when half of it is written.
    let (first, second) = bytes.split_at(2 << 20);
    let (first, second) = (Bytes::copy_from_slice(first), Bytes::copy_from_slice(second));
    let filling = filler.clone();
    let then = stream::once(async move {
        fill(&filling);
        Ok(second)
    });
    let body = stream::iter([Ok(first)]).chain(then).boxed();
    let refused = objects.put(whole, bytes.len() as u64, body).await;
    assert!(matches!(refused, Err(ObjectError::Full { .. })), "{refused:?}");
    assert_eq!(objects.head(whole).await.unwrap(), None);
    assert!(matches!(objects.get(whole).await, Err(ObjectError::NotFound(_))));
    assert_eq!(std::fs::read_dir(place.join("unfinished")).unwrap().count(), 0);
    // What would take what others need is not begun.
    let refused = objects.put(whole, bytes.len() as u64, pieces(&bytes)).await;
    assert!(matches!(refused, Err(ObjectError::Full { .. })), "{refused:?}");

    std::fs::remove_file(&filler).unwrap();
    objects.put(whole, bytes.len() as u64, pieces(&bytes)).await.unwrap();
    assert!(content(&objects, whole).await == bytes);
}
