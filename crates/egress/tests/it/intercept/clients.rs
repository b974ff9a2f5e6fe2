//! Programs as they are in a sandbox.

use std::path::Path;

use tokio::process::Command;

use super::house::{House, SECRET};
use super::upstream::echo;

const HOST: &str = "api.bound.test";
const BEARER: &str = r#"inject = [{ kind = "bearer", secret = "env:TOKEN" }]"#;

async fn curl(folder: &Path, port: u16, arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--noproxy",
            "*",
            "--resolve",
            &format!("{HOST}:{port}:127.0.0.1"),
        ])
        .args(arguments)
        .env("CURL_CA_BUNDLE", folder.join("ca.pem"))
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn curl_needs_nothing_and_learns_nothing() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, echo).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), house.ours.pem()).unwrap();
    let port = house.gate(HOST).await;
    let url = format!("https://{HOST}:{port}/a?b=c");
    for version in ["--http1.1", "--http2"] {
        let shown = curl(folder.path(), port, &[version, "-d", "body", &url, &url]).await;
        assert_eq!(shown.matches("POST /a?b=c\n").count(), 2, "{shown}");
        assert!(!shown.contains(SECRET) && shown.contains("Bearer ****"), "{shown}");
    }
    assert_eq!(bound.seen().len(), 4);
    for seen in bound.seen() {
        assert_eq!(seen.header("authorization"), [format!("Bearer {SECRET}")]);
        assert_eq!(seen.text(), "body");
    }
    let file = folder.path().join("large");
    std::fs::write(&file, vec![b'z'; 2_000_000]).unwrap();
    let upload = format!("@{}", file.display());
    let shown = curl(folder.path(), port, &["--http1.1", "--data-binary", &upload, &url]).await;
    assert!(shown.len() > 2_000_000, "100-continue and a large body");
    assert_eq!(house.records(5).await.len(), 5);
}
