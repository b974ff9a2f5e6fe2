//! Secrets: set, listed, removed and used; and what root does in a folder that is not root's.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::mpsc;

use tempfile::{TempDir, tempdir};
use testkit::model_server::ModelServer;
use testkit::upstream::{Authority, Upstream, answered};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::program::{Came, belljar, run};

/// A user of every machine that is not root.
const NOBODY: u32 = 65_534;

/// A data directory, and the key of its secrets beside it.
struct Place {
    folder: TempDir,
}

impl Place {
    /// Everybody may come in: the control plane's user has to read the configuration.
    fn new(user: &str, more: &str) -> Self {
        let folder = tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("keys")).unwrap();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"{0}/data\"\nuser = \"{user}\"\n[secrets]\nkey_file = \"{0}/keys/secrets.key\"\n[sandbox]\nimage = \"{1}\"\nrun = \"{0}/run\"\n{more}",
            folder.path().display(),
            "ab".repeat(32),
        );
        fs::write(folder.path().join("belljar.toml"), text).unwrap();
        Self { folder }
    }

    /// Where the control plane's own folder is nobody's.
    fn of_nobody() -> Self {
        let place = Self::new("nobody", "");
        fs::create_dir_all(place.control()).unwrap();
        for path in [place.control(), place.path("keys")] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn control(&self) -> PathBuf {
        self.path("data/control")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = belljar(self.folder.path());
        command.args(words);
        command
    }

    async fn run(&self, words: &[&str], input: &str) -> Came {
        run(self.command(words), input).await
    }
}

#[tokio::test]
async fn secrets_go_in_and_never_come_out() {
    let place = Place::new("root", "");
    let set = place.run(&["secret", "set", "crm"], "hunter2 hunter2\n").await;
    assert!(set.code == 0 && set.out.contains("store:crm is set (new)"), "{set:?}");
    let again = place.run(&["secret", "set", "crm", "--json"], "hunter3").await;
    assert_eq!(again.out.trim(), r#"{"change":"replaced","name":"crm"}"#);
    let listed = place.run(&["secret", "list"], "").await;
    assert!(listed.out.starts_with("crm  set 20"), "{listed:?}");
    let listed = place.run(&["secret", "list", "--json"], "").await;
    let known: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert!(known["name"] == "crm" && known["set"].is_i64() && known.as_object().unwrap().len() == 3);
    for came in [&set, &again, &listed] {
        assert!(!format!("{came:?}").contains("hunter"), "{came:?}");
    }
    let removed = place.run(&["secret", "rm", "crm"], "").await;
    assert!(removed.code == 0 && removed.out.contains("is removed"), "{removed:?}");

    let gone = place.run(&["secret", "rm", "crm"], "").await;
    assert!(
        gone.code == 1 && gone.notes.contains("there is no secret crm"),
        "{gone:?}"
    );
    let empty = place.run(&["secret", "set", "crm"], "\n").await;
    assert!(
        empty.code == 1 && empty.notes.contains("the value is empty"),
        "{empty:?}"
    );
    for words in [
        &["secret", "set", "a/b"][..],
        &["secret", "set"],
        &["secret", "set", "crm", "value"],
    ] {
        assert_eq!(place.run(words, "x").await.code, 2, "{words:?}");
    }
    assert!(place.run(&["secret", "list"], "").await.out.contains("no secrets"));
}

#[tokio::test]
async fn a_passphrase_takes_the_key_files_place() {
    let place = Place::new("root", "");
    let text = fs::read_to_string(place.path("belljar.toml")).unwrap();
    let key = text
        .lines()
        .find(|line| line.starts_with("key_file"))
        .unwrap()
        .to_owned();
    fs::write(
        place.path("belljar.toml"),
        text.replace(&key, "passphrase = \"env:PASSPHRASE\""),
    )
    .unwrap();
    let without = place.run(&["secret", "set", "crm"], "hunter2").await;
    assert!(
        without.code == 1 && without.notes.contains("set PASSPHRASE"),
        "{without:?}"
    );
    let with = |words: &[&str]| {
        let mut command = place.command(words);
        command.env("PASSPHRASE", "correct horse battery");
        command
    };
    assert_eq!(run(with(&["secret", "set", "crm"]), "hunter2").await.code, 0);
    assert!(run(with(&["secret", "list"]), "").await.out.contains("crm"));
    assert!(!place.path("keys/secrets.key").exists());
    let checked = run(with(&["check"]), "").await;
    assert_eq!(checked.code, 0, "{checked:?}");
    let checked = place.run(&["check"], "").await;
    assert!(
        checked.code == 1 && checked.notes.contains("secrets.passphrase: the secret env:PASSPHRASE"),
        "{checked:?}"
    );
}

/// A process that has been running all along: what another sets, changes and removes counts with its next request.
#[tokio::test]
async fn threat_068_a_secret_counts_at_once_in_a_running_process() {
    let server = ModelServer::start().await;
    let more = format!(
        "[models.m]\nprovider = \"openai-chat\"\nbase_url = \"{}\"\nkey = \"store:model\"\nwindow = 100000\nmax_output = 1000\n",
        server.base_url()
    );
    let place = Place::new("root", &more);
    let checked = place.run(&["check"], "").await;
    assert!(
        checked.code == 1
            && checked
                .notes
                .contains("models.m.key: the secret store:model cannot be had"),
        "{checked:?}"
    );
    let mut dev = place
        .command(&["dev", "--no-jail"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut notes) = (
        dev.stdin.take().unwrap(),
        BufReader::new(dev.stderr.take().unwrap()).lines(),
    );
    let mut until = async |part: &str| {
        testkit::within(part, async {
            while let Some(line) = notes.next_line().await.unwrap() {
                assert!(!line.contains(server.key()), "{line}");
                if line.contains(part) {
                    return;
                }
            }
            panic!("nothing more is said");
        })
        .await;
    };
    until("warning: models.m.key: the secret store:model cannot be had").await;
    input.write_all(b"first\n").await.unwrap();
    until("model m has no key: the secret store:model").await;
    assert_eq!(server.count(), 0);

    assert_eq!(place.run(&["secret", "set", "model"], server.key()).await.code, 0);
    input.write_all(b"second\n").await.unwrap();
    testkit::eventually_async("the model to be asked", async || (server.count() == 1).then_some(())).await;

    assert_eq!(place.run(&["secret", "rm", "model"], "").await.code, 0);
    input.write_all(b"third\n").await.unwrap();
    until("model m has no key: the secret store:model").await;
    assert_eq!(server.count(), 1, "nobody is asked without a key");
    dev.kill().await.unwrap();
}

/// Secrets of `serve`'s environment are in no environment once it is ready, and other processes of its user cannot look inside.
#[tokio::test(flavor = "multi_thread")]
async fn threat_065_no_secret_is_left_in_an_environment() {
    let more = "[models.m]\nprovider = \"openai-chat\"\nbase_url = \"http://127.0.0.1:1\"\nkey = \"env:MODEL_KEY\"\nwindow = 100000\nmax_output = 1000\n[models.n]\nprovider = \"openai-chat\"\nbase_url = \"http://127.0.0.1:1\"\nkey = \"env:NOT_THERE\"\nwindow = 100000\nmax_output = 1000\n";
    let place = Place::new("nobody", &format!("{more}[vault]\n"));
    let text = fs::read_to_string(place.path("belljar.toml")).unwrap();
    fs::write(
        place.path("belljar.toml"),
        text.replace("user = ", "model = \"m\"\nuser = "),
    )
    .unwrap();
    fs::create_dir_all(place.control()).unwrap();
    chown(place.control(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut serve = place.command(&["serve"]);
    serve.env("MODEL_KEY", "sk-planted-canary").env("LANG", "C.UTF-8");
    let mut serve = serve
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut lines, mut notes) = (
        BufReader::new(serve.stdout.take().unwrap()).lines(),
        BufReader::new(serve.stderr.take().unwrap()).lines(),
    );
    // What does not resolve is said, and all else works.
    testkit::within("the warning", async {
        while let Some(line) = notes.next_line().await.unwrap() {
            if line.contains("models.n.key: the secret env:NOT_THERE cannot be had") {
                return;
            }
            assert!(!line.contains("models.m.key"), "{line}");
        }
        panic!("no warning");
    })
    .await;
    testkit::within("the control plane to be ready", async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("ready: ") {
                return;
            }
        }
        panic!("it ended");
    })
    .await;
    let inside = PathBuf::from(format!("/proc/{}", serve.id().unwrap()));
    let environment = String::from_utf8_lossy(&fs::read(inside.join("environ")).unwrap()).into_owned();
    assert!(
        environment.contains("LANG=C.UTF-8") && !environment.contains("canary"),
        "{environment}"
    );
    assert!(!String::from_utf8_lossy(&fs::read(inside.join("cmdline")).unwrap()).contains("canary"));
    assert_eq!(fs::read_link(inside.join("fd/0")).unwrap(), Path::new("/dev/null"));
    for descriptor in fs::read_dir(inside.join("fd")).unwrap() {
        let target = fs::read_link(descriptor.unwrap().path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("memfd"), "{target:?}");
    }
    for name in ["environ", "mem", "maps"] {
        assert_eq!(
            fs::metadata(inside.join(name)).unwrap().uid(),
            0,
            "{name} is not its user's to open"
        );
    }
    serve.kill().await.unwrap();
}

/// A provider that replaces its refresh token with each use, and a process that is killed when it uses what came of it.
#[tokio::test]
async fn a_refresh_token_that_its_provider_replaced_survives_kill_9() {
    let (never, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let upstream = Upstream::start(&Authority::new(), &[], move |arrived| {
        let json = [("content-type", "application/json")];
        let body = String::from_utf8_lossy(&arrived.body).into_owned();
        match (arrived.path(), arrived.header("authorization")) {
            ("/token", _) if body.contains("canary-0") => answered(
                200,
                &json,
                r#"{"access_token":"token-1","expires_in":3600,"refresh_token":"canary-1"}"#,
            ),
            ("/token", _) if body.contains("canary-1") => {
                answered(200, &json, r#"{"access_token":"token-2","expires_in":3600}"#)
            }
            ("/contacts", "Bearer token-1") => {
                // It is killed before this ends.
                let _ = waits.lock().unwrap().recv();
                answered(500, &[], "")
            }
            ("/contacts", "Bearer token-2") => answered(200, &json, "[1]"),
            _ => answered(400, &json, r#"{"error":"invalid_grant"}"#),
        }
    })
    .await;
    let at = upstream.address();
    let place = Place::new(
        "root",
        &format!(
            "[services.crm]\naddresses = [\"127.0.0.0/8\"]\nbase_url = \"http://{at}\"\nauth = {{ client_id = \"me\", refresh_token = \"env:REFRESH\" }}\n"
        ),
    );
    fs::create_dir_all(place.control()).unwrap();
    fs::create_dir_all(place.path("services/crm")).unwrap();
    fs::write(
        place.path("services/crm/service.toml"),
        format!(
            "name = \"crm\"\nkind = \"http\"\nsummary = \"Contacts\"\nbase_url = \"https://crm.example.com\"\n[auth]\nkind = \"refresh_token\"\ntoken_url = \"http://{at}/token\"\n[methods.get]\nsummary = \"All\"\naccess = \"read\"\nrequest = \"GET /contacts\"\n"
        ),
    )
    .unwrap();
    let call = || {
        let mut command = place.command(&["service", "call", "crm.get", "{}"]);
        command.env("REFRESH", "canary-0");
        command
    };
    let mut killed = call();
    let mut killed = killed.stdin(Stdio::null()).spawn().unwrap();
    testkit::eventually_async("its token to be used", async || {
        let arrived = upstream.arrived();
        arrived
            .iter()
            .any(|arrived| arrived.path() == "/contacts")
            .then_some(())
    })
    .await;
    killed.kill().await.unwrap();
    drop(never);

    let came = run(call(), "").await;
    assert!(came.code == 0 && came.out.contains("[1]"), "{came:?}");
    let listed = place.run(&["secret", "list"], "").await;
    assert!(
        listed
            .out
            .contains("services.crm.auth.refresh_token  replaced by its provider 20"),
        "{listed:?}"
    );
    let json = place.run(&["secret", "list", "--json"], "").await;
    let known: serde_json::Value = serde_json::from_str(json.out.trim()).unwrap();
    assert!(known["service"] == "crm" && known["rotated"].is_i64(), "{known}");
    for came in [came, listed, json] {
        assert!(!format!("{came:?}").contains("canary"), "{came:?}");
    }
}

/// Root keeps a secret where the control plane's user owns the folder, and may have put links there.
#[tokio::test]
async fn root_sets_secrets_as_the_owner_of_the_folder() {
    let place = Place::of_nobody();
    let set = place.run(&["secret", "set", "crm"], "hunter2").await;
    assert_eq!(set.code, 0, "{set:?}");
    for name in ["data/control/secrets", "keys/secrets.key"] {
        let about = fs::metadata(place.path(name)).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (NOBODY, 0o600), "{name}");
    }
    let listed = place.run(&["secret", "list"], "").await;
    assert!(listed.code == 0 && listed.out.contains("crm"), "{listed:?}");

    let victim = place.victim();
    for name in ["secrets", "secrets.lock"] {
        let path = place.control().join(name);
        let kept = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        place.run(&["secret", "set", "other"], "hunter2").await;
        place.unharmed(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, kept).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Where nobody but root has a say in the key's folder, root makes the key and gives it to whom it is for.
#[tokio::test]
async fn root_makes_the_key_where_only_root_can() {
    let place = Place::of_nobody();
    let keys = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(keys.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = fs::read_to_string(place.path("belljar.toml")).unwrap();
    let own = place.path("keys").display().to_string();
    fs::write(
        place.path("belljar.toml"),
        text.replace(&own, &keys.path().display().to_string()),
    )
    .unwrap();
    let set = place.run(&["secret", "set", "crm"], "hunter2").await;
    assert_eq!(set.code, 0, "{set:?}");
    let about = fs::metadata(keys.path().join("secrets.key")).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (NOBODY, 0o600));
}

impl Place {
    /// A file of root's that a link may lead to, in a folder where only root could make another.
    fn victim(&self) -> PathBuf {
        let victim = self.path("root/victim");
        fs::create_dir_all(victim.parent().unwrap()).unwrap();
        fs::write(&victim, "root's own").unwrap();
        victim
    }

    fn unharmed(&self, what: &str) {
        let left: Vec<_> = fs::read_dir(self.path("root"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        let about = fs::metadata(self.path("root/victim")).unwrap();
        let content = fs::read_to_string(self.path("root/victim")).unwrap();
        assert_eq!(
            (left.len(), about.uid(), content.as_str()),
            (1, 0, "root's own"),
            "{what}"
        );
    }
}

#[tokio::test]
async fn root_copies_and_restores_the_store_as_the_owner_of_the_folder() {
    let place = Place::of_nobody();
    let backup = place.run(&["backup", "copy"], "").await;
    assert_eq!(backup.code, 0, "{backup:?}");
    let copy = fs::metadata(place.path("copy")).unwrap();
    assert_eq!((copy.uid(), copy.mode() & 0o077), (0, 0), "the copy is root's");
    let restored = place.run(&["restore", "copy"], "").await;
    assert!(restored.code == 0 && restored.out.contains("restored"), "{restored:?}");
    let mut names = Vec::new();
    for entry in fs::read_dir(place.control()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().uid(), NOBODY, "{:?}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    assert!(names.contains(&"store.db".to_owned()), "{names:?}");

    // Links in the place of everything that there is and may be.
    place.victim();
    names.extend(["store.db-wal", "store.db-shm", "store.db.lock"].map(str::to_owned));
    for target in ["root/victim", "root/new"] {
        for name in &names {
            let path = place.control().join(name);
            let _ = fs::rename(&path, place.path("aside"));
            symlink(place.path(target), &path).unwrap();
            for words in [&["restore", "copy"][..], &["backup", "another"]] {
                place.run(words, "").await;
                place.unharmed(&format!("{words:?} with {name} a link to {target}"));
            }
            let _ = (fs::remove_file(&path), fs::remove_file(place.path("another")));
            let _ = fs::rename(place.path("aside"), &path);
        }
    }
    // Nor is a copy written by a way that the folder's owner could turn.
    symlink(place.path("root"), place.control().join("way")).unwrap();
    let through = place.control().join("way/copy");
    let through = place.run(&["backup", through.to_str().unwrap()], "").await;
    assert!(
        through.code == 1 && through.notes.contains("who could lead it anywhere"),
        "{through:?}"
    );
    place.unharmed("a copy through a link");
    let there = place.run(&["backup", "copy"], "").await;
    assert!(there.code == 1 && there.notes.contains("exists already"), "{there:?}");
}
