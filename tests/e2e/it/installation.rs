//! A Belljar of its own for a test: its folder, its configuration, its two processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use tempfile::TempDir;
use testkit::{eventually, free_port, miniature};

use crate::processes;
use crate::program::{belljar, runtime};
use crate::transcript::Transcript;

/// A host agent and a control plane over a folder of their own; all of it ends with the value.
pub(crate) struct Installation {
    folder: TempDir,
    port: u16,
    host: Mutex<Option<Child>>,
    serve: Mutex<Option<Child>>,
}

impl Installation {
    /// Starts one whose model plays this script.
    pub(crate) fn start(script: &str) -> Self {
        Self::start_with(script, "")
    }

    /// The same, with more lines of configuration.
    pub(crate) fn start_with(script: &str, more: &str) -> Self {
        let installation = Self::prepare(script, more);
        installation.start_host();
        installation.start_serve();
        installation
    }

    /// Writes the folder and starts nothing.
    pub(crate) fn prepare(script: &str, more: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("belljar-e2e-")
            .tempdir_in("/var/tmp")
            .expect("make a folder");
        let installation = Self {
            folder,
            port: free_port(),
            host: Mutex::default(),
            serve: Mutex::default(),
        };
        let data = installation.data();
        fs::create_dir_all(&data).expect("make the data directory");
        miniature().install(&data.join("images"));
        fs::write(installation.path("script.yaml"), script).expect("write the script");
        let (sections, keys) = more.split_once("---\n").unwrap_or((more, ""));
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\ndata = {data:?}\nuser = \"root\"\nmodel = \"scripted\"\n\n\
             [models.scripted]\nprovider = \"scripted\"\nscript = {script:?}\nprice = {{ input = 3.00, output = 15.00 }}\n\n\
             [sandbox]\nprogram = {program:?}\nrun = {run:?}\nimage = \"{image}\"\nmemory = \"256MiB\"\ndisk = \"64MiB\"\nprocesses = 128\n{keys}\n{sections}",
            port = installation.port,
            script = installation.path("script.yaml"),
            program = runtime(),
            run = installation.path("run"),
            image = miniature().digest,
        );
        fs::write(installation.path("belljar.toml"), config).expect("write the configuration");
        installation
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Starts the host agent and waits until it is ready.
    pub(crate) fn start_host(&self) {
        let child = self.spawn("host");
        *self.host.lock().expect("no test panicked here") = Some(child);
    }

    /// Starts the control plane and waits until it is ready.
    pub(crate) fn start_serve(&self) {
        *self.serve.lock().expect("no test panicked here") = Some(self.spawn("serve"));
    }

    fn spawn(&self, role: &str) -> Child {
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.path(&format!("{role}.log")))
            .expect("open a log");
        let mut child = Command::new(belljar())
            .arg(role)
            .arg("--config")
            .arg(self.path("belljar.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("start belljar");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.starts_with("ready"));
        assert!(ready, "belljar {role} ended before it was ready: {}", self.log(role));
        child
    }

    /// What a process logged.
    pub(crate) fn log(&self, role: &str) -> String {
        fs::read_to_string(self.path(&format!("{role}.log"))).unwrap_or_default()
    }

    /// Kills the host agent and starts it again.
    pub(crate) fn replace_host(&self) {
        Self::end(&self.host);
        self.start_host();
    }

    /// Kills the control plane and starts it again.
    pub(crate) fn replace_serve(&self) {
        Self::end(&self.serve);
        self.start_serve();
    }

    /// Kills the control plane.
    pub(crate) fn stop_serve(&self) {
        Self::end(&self.serve);
    }

    /// Kills both, and every sandbox's first process, and starts both again.
    pub(crate) fn replace_everything(&self) {
        Self::end(&self.serve);
        Self::end(&self.host);
        self.first_processes().into_iter().for_each(processes::kill);
        self.start_host();
        self.start_serve();
    }

    fn end(process: &Mutex<Option<Child>>) {
        if let Some(mut child) = process.lock().expect("no test panicked here").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The first processes of its sandboxes: those that see this installation's link directories.
    pub(crate) fn first_processes(&self) -> Vec<u32> {
        let data = self.data();
        let data = data.to_string_lossy();
        processes::running(&["belljar-runtime", "pid1"])
            .into_iter()
            .filter(|id| {
                let mounts = fs::read_to_string(format!("/proc/{id}/mountinfo")).unwrap_or_default();
                let ours = self
                    .folder
                    .path()
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                mounts.contains(&*data) || ours.is_some_and(|ours| mounts.contains(&ours))
            })
            .collect()
    }

    /// A command of a person who may do everything here.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        command.args(arguments).stdin(Stdio::null());
        command.env("BELLJAR_URL", format!("http://127.0.0.1:{}", self.port));
        let token = eventually("the admin token", || {
            fs::read_to_string(self.data().join("control/admin-token")).ok()
        });
        command.env("BELLJAR_TOKEN", token.trim());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("run belljar")
    }

    /// Runs a command that must succeed; what it printed.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "belljar {arguments:?} ended with {}: {}{}\nserve: {}\nhost: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.log("serve"),
            self.log("host"),
        );
        String::from_utf8(output.stdout).expect("belljar prints UTF-8")
    }

    /// Everything that a session's watchers saw until now.
    pub(crate) fn transcript(&self, session: &str) -> Transcript {
        Transcript::read(&self.done(&["events", session, "--json"]))
    }

    /// Waits until a session's watchers have seen something.
    pub(crate) fn wait_for(&self, session: &str, what: &str, look: impl Fn(&Transcript) -> bool) {
        eventually(what, || {
            let output = self.run(&["events", session, "--json"]);
            let seen = output.status.success() && look(&Transcript::read(&String::from_utf8_lossy(&output.stdout)));
            seen.then_some(())
        });
    }

    /// A file out of a session's workspace.
    pub(crate) fn file(&self, session: &str, path: &str) -> String {
        self.done(&["get", session, path, "-"])
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Ok(listed) = self.command(&["sandbox", "list", "--json"]).output() {
            for sandbox in serde_json::from_slice::<serde_json::Value>(&listed.stdout)
                .iter()
                .filter_map(|list| list.as_array())
                .flatten()
            {
                if let Some(id) = sandbox["id"].as_str() {
                    let _ = self.command(&["sandbox", "rm", id]).output();
                }
            }
        }
        if std::thread::panicking() {
            eprintln!("serve said:\n{}\nhost said:\n{}", self.log("serve"), self.log("host"));
        }
        Self::end(&self.serve);
        self.first_processes().into_iter().for_each(processes::kill);
        Self::end(&self.host);
        unmount_below(self.folder.path());
    }
}

/// Takes down what is mounted below a folder, the last first.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    for point in points
        .into_iter()
        .rev()
        .filter(|point| Path::new(point).starts_with(folder))
    {
        let _ = Command::new("umount").args(["--lazy", point]).status();
    }
}
