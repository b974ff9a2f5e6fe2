//! A Belljar of its own for a test: its folder, its configuration, its two processes.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use serde_json::Value;
use testkit::{eventually, eventually_asked, free_port, miniature, prepared};

use crate::leftovers::{self, Held};
use crate::processes;
use crate::program::{belljar, runtime};
use crate::transcript::Transcript;
use crate::world::World;

/// A host agent and a control plane over a folder of their own; all of it ends with the value.
pub(crate) struct Installation {
    folder: Held,
    port: u16,
    host: Mutex<Option<Child>>,
    serve: Mutex<Option<Child>>,
    /// Words before the control plane's command.
    before: Vec<OsString>,
    /// Variables of the control plane beside the test's own.
    environment: Vec<(String, OsString)>,
}

/// No sandboxes are made ahead.
const NO_WARM: &str = "warm.most = 0";

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
        let installation = Self {
            folder: leftovers::new_folder(),
            port: free_port(),
            host: Mutex::default(),
            serve: Mutex::default(),
            before: Vec::new(),
            environment: Vec::new(),
        };
        let data = installation.data();
        fs::create_dir_all(&data).expect("make the data directory");
        miniature().install(&data.join("images"));
        fs::write(installation.path("script.yaml"), script).expect("write the script");
        let (sections, keys) = more.split_once("---\n").unwrap_or((more, ""));
        // Sandboxes that are made ahead are of interest to those who ask for them.
        let warm = if keys.contains("warm.") { "" } else { NO_WARM };
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\ndata = {data:?}\nuser = \"root\"\nmodel = \"scripted\"\n\n\
             [models.scripted]\nprovider = \"scripted\"\nscript = {script:?}\nprice = {{ input = 3.00, output = 15.00 }}\n\n\
             [sandbox]\nprogram = {program:?}\nrun = {run:?}\nimage = \"{image}\"\nmemory = \"256MiB\"\ndisk = \"64MiB\"\nprocesses = 128\n{warm}\n{keys}\n{sections}",
            port = installation.port,
            script = installation.path("script.yaml"),
            program = runtime(),
            run = installation.path("run"),
            image = miniature().digest,
        );
        fs::write(installation.path("belljar.toml"), config).expect("write the configuration");
        installation
    }

    /// Lets the control plane live in a world, with these variables in its environment.
    pub(crate) fn live_in(&mut self, world: &World, environment: &[(&str, &str)]) {
        self.before = world.enter();
        self.environment.extend(world.environment());
        let variables = environment.iter();
        self.environment
            .extend(variables.map(|(name, value)| ((*name).to_owned(), OsString::from(value))));
    }

    /// Adds sections to the configuration.
    pub(crate) fn configure(&self, sections: &str) {
        let path = self.path("belljar.toml");
        let config = fs::read_to_string(&path).expect("read the configuration");
        fs::write(&path, format!("{config}\n{sections}")).expect("write the configuration");
    }

    /// Makes no more sandboxes ahead, and removes those that are there.
    pub(crate) fn cool_down(&self, settings: &str) {
        let path = self.path("belljar.toml");
        let config = fs::read_to_string(&path).expect("read the configuration");
        fs::write(&path, config.replace(settings, NO_WARM)).expect("write the configuration");
        self.replace_serve();
    }

    /// Makes sandboxes of another image, with room for what it can do.
    pub(crate) fn use_image(&self, digest: &str) {
        let path = self.path("belljar.toml");
        let config = fs::read_to_string(&path).expect("read the configuration");
        let config = config.replace(&miniature().digest, digest).replace(
            "memory = \"256MiB\"\ndisk = \"64MiB\"",
            "memory = \"2GiB\"\ndisk = \"4GiB\"",
        );
        fs::write(&path, config).expect("write the configuration");
    }

    /// Gives sandboxes room for a hundred thousand files.
    pub(crate) fn have_room(&self) {
        let path = self.path("belljar.toml");
        let config = fs::read_to_string(&path).expect("read the configuration");
        fs::write(&path, config.replace("disk = \"64MiB\"", "disk = \"1GiB\"")).expect("write the configuration");
    }

    /// Where the control plane listens.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
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
        let (before, environment) = match role {
            "serve" => (self.before.as_slice(), self.environment.as_slice()),
            _ => Default::default(),
        };
        let mut words: Vec<OsString> = before.to_vec();
        words.extend([belljar().into(), role.into(), "--config".into()]);
        let own = self.path(&format!("{role}.toml"));
        words.push(if own.exists() { own } else { self.path("belljar.toml") }.into());
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":");
        path.push(prepared(""));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env("PATH", path)
            .envs(environment.iter().map(|(name, value)| (name, value)))
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

    /// Kills the host agent.
    pub(crate) fn stop_host(&self) {
        Self::end(&self.host);
    }

    /// Kills both, and every sandbox's first process, and starts both again.
    pub(crate) fn replace_everything(&self) {
        Self::end(&self.serve);
        Self::end(&self.host);
        self.first_processes().into_iter().for_each(processes::kill);
        self.start_host();
        self.start_serve();
    }

    /// Gives the machine up on which sandboxes and disks are, and goes on with another, which has nothing but images.
    pub(crate) fn move_to_another_machine(&self) {
        self.remove_sandboxes();
        Self::end(&self.serve);
        Self::end(&self.host);
        let machine = tempfile::Builder::new().prefix("machine-").tempdir_in(self.folder());
        let data = machine.expect("make a folder").keep();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("open a folder");
        miniature().install(&data.join("images"));
        let config = fs::read_to_string(self.path("belljar.toml")).expect("read the configuration");
        let config = config.replace(&format!("data = {:?}", self.data()), &format!("data = {data:?}"));
        fs::write(self.path("host.toml"), config).expect("write the configuration");
        self.start_host();
        self.start_serve();
    }

    /// The machine is gone on which sandboxes and disks are, all at once and with its host agent; another takes its place,
    /// which has nothing but images.
    pub(crate) fn lose_the_machine(&self) {
        Self::end(&self.host);
        leftovers::wipe(self.folder.path(), &[&self.path("run"), &self.data()]);
        miniature().install(&self.data().join("images"));
        self.start_host();
    }

    fn end(process: &Mutex<Option<Child>>) {
        if let Some(mut child) = process.lock().expect("no test panicked here").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The ids of the host agent and of the control plane, which run.
    pub(crate) fn ids(&self) -> [u32; 2] {
        [&self.host, &self.serve].map(|process| {
            let process = process.lock().expect("no test panicked here");
            process.as_ref().expect("it runs").id()
        })
    }

    /// The first processes of its sandboxes.
    pub(crate) fn first_processes(&self) -> Vec<u32> {
        leftovers::first_processes(self.folder.path())
    }

    /// The first process of a session's sandbox, where it has one.
    pub(crate) fn first_processes_of(&self, session: &str) -> Vec<u32> {
        let listed = self.done(&["sandbox", "list", "--json"]);
        let sandboxes = listed
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
        let id = self.id(session);
        let its = sandboxes.filter(|sandbox| sandbox["session"] == id.as_str());
        its.flat_map(|sandbox| leftovers::first_processes(sandbox["id"].as_str().expect("an id").as_ref()))
            .collect()
    }

    /// Removes every sandbox, as an operator would; their sessions stay.
    pub(crate) fn remove_sandboxes(&self) {
        leftovers::remove_sandboxes(|arguments| self.command(arguments));
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

    /// What `belljar check` says, whether it is content or not.
    pub(crate) fn check(&self) -> String {
        let output = self.local_command(&["check"]).output().expect("run belljar");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// A command of this machine, which reads the configuration.
    pub(crate) fn local_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        command.args(arguments).arg("--config").arg(self.path("belljar.toml"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command of this machine, which reads the configuration, with some input; it must succeed. What it printed.
    pub(crate) fn locally(&self, arguments: &[&str], input: &str) -> String {
        let mut child = self
            .local_command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run belljar");
        let mut stdin = child.stdin.take().expect("its input is piped");
        stdin.write_all(input.as_bytes()).expect("write to belljar");
        drop(stdin);
        let output = child.wait_with_output().expect("wait for belljar");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "belljar {arguments:?} ended with {}: {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        said
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

    /// All sessions.
    pub(crate) fn sessions(&self) -> Vec<Value> {
        let page = self.done(&["sessions", "--limit", "1000", "--json"]);
        let page: Value = serde_json::from_str(&page).expect("a page of sessions");
        page["sessions"].as_array().expect("sessions").clone()
    }

    /// The id of a session with a name that is not put away.
    pub(crate) fn id(&self, session: &str) -> String {
        let sessions = self.sessions();
        let known = sessions.iter().find(|known| known["key"] == session);
        known
            .map_or(session, |known| known["id"].as_str().expect("an id"))
            .to_owned()
    }

    /// Everything that a session's watchers saw until now.
    pub(crate) fn transcript(&self, session: &str) -> Transcript {
        Transcript::read(&self.done(&["events", session, "--json"]))
    }

    /// Waits until a session's watchers have seen something.
    pub(crate) fn wait_for(&self, session: &str, what: &str, look: impl Fn(&Transcript) -> bool) {
        eventually_asked(what, || {
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
        // One that never got as far has none.
        if self.data().join("control/admin-token").exists() {
            self.remove_sandboxes();
        }
        if std::thread::panicking() {
            eprintln!("serve said:\n{}\nhost said:\n{}", self.log("serve"), self.log("host"));
        }
        Self::end(&self.serve);
        self.first_processes().into_iter().for_each(processes::kill);
        Self::end(&self.host);
    }
}
