//! Files in and out of the workspace.

use futures::StreamExt;
use futures::stream;

use crate::jail::Jail;

#[tokio::test]
async fn a_file_goes_in_and_comes_out_again() {
    let jail = Jail::claimed().await;
    let whole: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    let pieces: Vec<_> = whole.chunks(100_000).map(|piece| Ok(piece.to_vec().into())).collect();
    let sent = jail.linked.write_file("in/data.bin", stream::iter(pieces).boxed());
    testkit::within("the upload", sent).await.unwrap();
    assert!(std::fs::read(jail.workspace().join("in/data.bin")).unwrap() == whole);
    let back = testkit::within("the download", async {
        let mut reader = jail.linked.read_file("in/data.bin").await.unwrap();
        let mut back = Vec::new();
        while let Some(bytes) = reader.chunk().await.unwrap() {
            back.extend_from_slice(&bytes);
        }
        back
    });
    assert!(back.await == whole);
    let listed = testkit::within("the list", jail.linked.list_files("")).await.unwrap();
    assert!(
        listed
            .iter()
            .any(|entry| entry.path.ends_with("in/data.bin") && entry.bytes == 3_000_000),
        "{listed:?}"
    );
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_the_old_file_and_nothing_else() {
    let jail = Jail::claimed().await;
    let write = |pieces: Vec<std::io::Result<&'static str>>| {
        let source = stream::iter(pieces).map(|piece| piece.map(|text| text.into())).boxed();
        jail.linked.write_file("a.txt", source)
    };
    testkit::within("the upload", write(vec![Ok("old")])).await.unwrap();
    let broken = write(vec![Ok("new"), Err(std::io::Error::other("gone"))]);
    testkit::within("the broken upload", broken).await.unwrap_err();
    assert_eq!(std::fs::read_to_string(jail.workspace().join("a.txt")).unwrap(), "old");
    testkit::eventually("a clean workspace", || {
        (std::fs::read_dir(jail.workspace()).unwrap().count() == 1).then_some(())
    });
}

#[tokio::test]
async fn threat_114_no_link_pipe_or_path_leads_out_of_the_workspace() {
    let jail = Jail::claimed().await;
    jail.shell("cd /workspace && ln -s /etc/passwd link && ln -s / root && mkfifo pipe && mkdir folder")
        .await;
    for path in [
        "link",
        "root/etc/passwd",
        "../etc/passwd",
        "/etc/passwd",
        "pipe",
        "folder",
        "gone",
        "a\0b",
        "",
    ] {
        let read = testkit::within("the refusal", jail.linked.read_file(path)).await;
        assert!(read.is_err(), "{path:?} was read");
    }
    for path in ["link/x", "root/tmp/x", "../x", "/tmp/x", "folder"] {
        let source = stream::iter([Ok("x".into())]).boxed();
        let written = testkit::within("the refusal", jail.linked.write_file(path, source)).await;
        assert!(written.is_err(), "{path:?} was written");
    }
    assert!(
        std::fs::symlink_metadata(jail.workspace().join("link"))
            .unwrap()
            .is_symlink()
    );
}
