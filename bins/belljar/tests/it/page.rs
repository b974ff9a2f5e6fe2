//! Does what docs/services.md tells people to do, word for word.

use std::path::Path;
use std::process::Command;

use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A block of the page: what stands behind its three ticks, and its lines.
struct Block {
    about: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(about), None) => {
                open = Some(Block {
                    about: about.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The pet shop of the page, on a free port: it knows one token and two pages of cats.
async fn shop() -> std::net::SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    #[allow(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                    break;
                }
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).to_lowercase();
            let known = head.contains("authorization: bearer sesame\r\n");
            let (status, body) = match head.split(' ').nth(1).unwrap_or_default() {
                _ if !known => ("401 Unauthorized", "{\"message\":\"who are you?\"}"),
                "/v1/pets?kind=cat" => (
                    "200 OK",
                    "{\"pets\":[{\"id\":1,\"kind\":\"cat\",\"name\":\"Tom\"}],\"next_cursor\":\"2\"}",
                ),
                "/v1/pets?kind=cat&cursor=2" | "/v1/pets?cursor=2&kind=cat" => {
                    ("200 OK", "{\"pets\":[],\"next_cursor\":null}")
                }
                _ => ("404 Not Found", "{}"),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

/// Types a command as a person would; what it printed. It does what it is told, or refuses.
fn typed(folder: &Path, command: &str, refuses: bool) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_belljar")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let done = Command::new("sh")
        .args(["-c", command])
        .env_clear()
        .env("PATH", format!("{}:{path}", program.display()))
        .env("PETS_TOKEN", "sesame")
        .current_dir(folder)
        .output()
        .unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.success(), !refuses, "{command}: {out}{errors}");
    if refuses { format!("{out}{errors}") } else { out }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_on_services_can_be_followed_to_the_letter() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/services.md")).unwrap();
    let page = page.replace("127.0.0.1:8080", &shop().await.to_string());
    let folder = tempdir().unwrap();
    // Programs of MCP servers are nobody where this is root's, and theirs stand in there.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(folder.path().join("services")).unwrap();
    let mut commands = 0;
    for Block { about, text } in blocks(&page) {
        match about.split_once(' ') {
            Some((_, "service.toml")) => {
                let shop = folder.path().join("all/shop");
                std::fs::create_dir_all(&shop).unwrap();
                std::fs::write(shop.join("service.toml"), text).unwrap();
                assert!(typed(folder.path(), "belljar service list --folder all", false).contains("shop: Our shop"));
            }
            Some((_, file)) if file != "refused" => {
                let file = folder.path().join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            _ if about.starts_with("console") => {
                let mut out = String::new();
                for line in text.lines() {
                    match line.strip_prefix("$ ") {
                        Some(command) => {
                            out = typed(folder.path(), command, about == "console refused");
                            commands += 1;
                        }
                        None => assert!(out.contains(line), "{line:?} is not in:\n{out}"),
                    }
                }
            }
            _ => {}
        }
    }
    assert_eq!(commands, 12);
}
