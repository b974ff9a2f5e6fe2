//! Real git against git's own HTTP server.

use std::path::Path;
use std::process::Stdio;

use http::{HeaderName, HeaderValue, StatusCode};
use tokio::process::Command;

use super::house::{House, REFERENCE};
use super::upstream::{Answer, Seen, text};

const HOST: &str = "git.bound.test";
/// A user without a password is let in by nobody.
const TOKEN: &str = "ghs_abcdefghijklmnop";

/// Answers as a forge does: `git http-backend` behind a password.
fn backend(root: &Path) -> impl Fn(&Seen) -> Answer + Send + Sync + 'static {
    let root = root.to_owned();
    move |seen| {
        use base64::Engine as _;
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("x-access-token:{TOKEN}"));
        if seen.header("authorization") != [format!("Basic {pair}")] {
            let mut answer = text("who are you?");
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            answer
                .headers_mut()
                .insert("www-authenticate", HeaderValue::from_static("Basic realm=\"git\""));
            return answer;
        }
        let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
        let mut child = std::process::Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REMOTE_USER", "agent")
            .env("REQUEST_METHOD", &seen.method)
            .env("PATH_INFO", path)
            .env("QUERY_STRING", query)
            .env("CONTENT_TYPE", seen.header("content-type").join(""))
            .env("CONTENT_LENGTH", seen.body.len().to_string())
            .env("HTTP_CONTENT_ENCODING", seen.header("content-encoding").join(""))
            .env("GIT_PROTOCOL", seen.header("git-protocol").join(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let body = seen.body.clone();
        let writer = std::thread::spawn(move || {
            use std::io::Write as _;
            let _ = input.write_all(&body);
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let end = output
            .stdout
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap();
        let mut answer = text(output.stdout[end + 4..].to_vec());
        for line in String::from_utf8_lossy(&output.stdout[..end]).lines() {
            let (name, value) = line.split_once(": ").unwrap();
            if name == "Status" {
                *answer.status_mut() = value[..3].parse().unwrap();
            } else {
                let name = HeaderName::try_from(name).unwrap();
                answer.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        answer
    }
}

struct Git {
    folder: tempfile::TempDir,
    url: String,
}

impl Git {
    async fn new(house: &House) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), house.ours.pem()).unwrap();
        let port = house.gate(HOST).await;
        Self {
            folder,
            url: format!("https://{HOST}:{port}"),
        }
    }

    /// Runs git as in a sandbox, where the name leads to the way out.
    async fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let port = self.url.rsplit(':').next().unwrap();
        let output = Command::new("git")
            .args(["-c", &format!("http.curloptResolve={HOST}:{port}:127.0.0.1")])
            .args([
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@b.test",
                "-c",
                "init.defaultBranch=main",
            ])
            .args(arguments)
            .current_dir(self.folder.path())
            .env("GIT_SSL_CAINFO", self.folder.path().join("ca.pem"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env_remove("HTTPS_PROXY")
            .env_remove("https_proxy")
            .output()
            .await
            .unwrap();
        let words = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(words) } else { Err(words) }
    }
}

async fn forge(write: bool) -> (House, tempfile::TempDir, Git) {
    let rule =
        |write: bool| format!("git = {{ repositories = [\"acme/app\"], write = {write}, secret = \"{REFERENCE}\" }}");
    let house = House::new(&[("forge", &rule(write))]);
    house.secrets.set(REFERENCE, TOKEN);
    let root = tempfile::tempdir().unwrap();
    for name in ["acme/app.git", "acme/other.git"] {
        let made = Command::new("git")
            .args(["init", "-q", "--bare", "-b", "main", name])
            .current_dir(root.path())
            .status()
            .await
            .unwrap();
        assert!(made.success());
    }
    house.upstream(HOST, backend(root.path())).await;
    let git = Git::new(&house).await;
    (house, root, git)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_052_git_clones_pushes_and_fetches_what_the_rule_names_and_nothing_else() {
    let (_house, _root, git) = forge(true).await;
    let app = format!("{}/acme/app.git", git.url);
    git.run(&["clone", "-q", &app, "work"]).await.unwrap();
    std::fs::write(git.folder.path().join("work/large"), vec![b'x'; 3_000_000]).unwrap();
    git.run(&["-C", "work", "add", "."]).await.unwrap();
    git.run(&["-C", "work", "commit", "-q", "-m", "first"]).await.unwrap();
    git.run(&["-C", "work", "push", "-q", "origin", "HEAD:main"])
        .await
        .unwrap();
    git.run(&["clone", "-q", &app, "again"]).await.unwrap();
    assert_eq!(
        std::fs::metadata(git.folder.path().join("again/large")).unwrap().len(),
        3_000_000
    );
    git.run(&["-C", "again", "fetch", "-q"]).await.unwrap();
    for other in ["acme/other.git", "acme/app.git/../other.git", "other/app.git"] {
        let refused = git
            .run(&["clone", "-q", &format!("{}/{other}", git.url), "no"])
            .await
            .unwrap_err();
        assert!(refused.contains("403"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_052_a_push_is_refused_where_only_reading_is_allowed() {
    let (house, root, git) = forge(false).await;
    git.run(&["clone", "-q", &format!("{}/acme/app.git", git.url), "work"])
        .await
        .unwrap();
    git.run(&["-C", "work", "commit", "-q", "--allow-empty", "-m", "first"])
        .await
        .unwrap();
    let refused = git
        .run(&["-C", "work", "push", "-q", "origin", "HEAD:main"])
        .await
        .unwrap_err();
    assert!(refused.contains("403"), "{refused}");
    let heads = std::fs::read_dir(root.path().join("acme/app.git/refs/heads")).unwrap();
    assert_eq!(heads.count(), 0);
    let reply = house
        .ask(HOST, super::house::get(HOST, "/acme/app.git/objects/info/alternates"))
        .await;
    assert_eq!(reply.code(), "not_in_rule");
}
