//! Objects in a folder.

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
    // Nothing that was begun is left.
    let left = std::fs::read_dir(folder.path().join("objects/unfinished")).unwrap();
    assert_eq!(left.count(), 0);
}
