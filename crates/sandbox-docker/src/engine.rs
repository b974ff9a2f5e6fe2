//! Docker's engine, asked from threads that may wait.

use std::future::{self, Future};
use std::path::Path;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions, WaitContainerOptions, WaitContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, service};
use futures::{StreamExt, TryStreamExt};
use sandbox::ProviderError;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// How long the engine may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long to wait for the end of a removal before trying again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The oldest engine whose API has all that is asked for here: 20.10.
const LEAST: (usize, usize) = (1, 41);

/// The oldest engine that mounts a part of a volume: 26.
const LEAST_WITH_PARTS: (usize, usize) = (1, 45);

/// What an engine is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Its version.
    pub version: String,
    /// The uid outside of a container's root: 0 unless it maps users.
    pub root_uid: u32,
}

/// The engine of this machine.
#[derive(Debug)]
pub struct Engine {
    docker: Docker,
    carrier: Carrier,
    about: About,
    /// Whether groups are slices, which systemd makes.
    by_systemd: bool,
}

impl Engine {
    /// Connects, and learns what matters of it. `by_volume`: it is shown parts of a volume, and no folder of this machine.
    /// Blocks.
    ///
    /// # Errors
    /// [`ProviderError::Machine`] where it does not answer, is too old, or of a kind that sandboxes cannot be made with.
    pub fn connect(socket: &Path, by_volume: bool) -> Result<Self, ProviderError> {
        let mend = format!(
            "start it (systemctl start docker), or name its socket in sandbox.docker_socket, which is {}",
            socket.display()
        );
        let lacks = |why: String| ProviderError::Machine {
            lacks: format!("Docker's engine cannot be asked ({why}); {mend}"),
        };
        let carrier = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("docker")
            .enable_all()
            .build()
            .map_err(|error| lacks(error.to_string()))?;
        let carrier = Carrier(Some(carrier));
        let asked = carrier.wait(async {
            let docker = Docker::connect_with_unix(&socket.to_string_lossy(), PATIENCE.as_secs(), API_DEFAULT_VERSION)?;
            let docker = docker.negotiate_version().await?;
            let about = docker.info().await?;
            Ok::<_, Error>((docker, about))
        });
        let (docker, about) = asked.map_err(|error| lacks(words(&error)))?;
        let negotiated = docker.client_version();
        let version = about.server_version.unwrap_or_default();
        if (negotiated.major_version, negotiated.minor_version) < LEAST {
            return Err(ProviderError::Machine {
                lacks: format!("Docker's engine {version} is too old: it must be 20.10 or later"),
            });
        }
        if by_volume && (negotiated.major_version, negotiated.minor_version) < LEAST_WITH_PARTS {
            return Err(ProviderError::Machine {
                lacks: format!(
                    "Docker's engine {version} is too old to mount a part of a volume, as sandbox.docker_volume asks: it must be 26 \
                     or later; without sandbox.docker_volume, and with the host agent on the engine's machine itself, 20.10 will do"
                ),
            });
        }
        let options = about.security_options.unwrap_or_default();
        let has = |name: &str| options.iter().any(|option| option.split(',').any(|part| part == name));
        if has("name=rootless") {
            return Err(ProviderError::Machine {
                lacks:
                    "this engine is rootless, so it sees none of root's folders; only one that root runs is supported"
                        .into(),
            });
        }
        if !by_volume && about.operating_system.is_some_and(|name| name == "Docker Desktop") {
            return Err(ProviderError::Machine {
                lacks: "this is Docker Desktop, whose engine runs in a machine of its own and sees none of this one's folders: run \
                        Belljar in a container of it, with its data in a volume that sandbox.docker_volume names \
                        (docs/providers.md); or use an engine of Linux"
                    .into(),
            });
        }
        let root_uid = if has("name=userns") {
            remapped(about.docker_root_dir.as_deref().unwrap_or_default())?
        } else {
            0
        };
        let by_systemd = about.cgroup_driver == Some(service::SystemInfoCgroupDriverEnum::SYSTEMD);
        Ok(Self {
            docker,
            carrier,
            about: About { version, root_uid },
            by_systemd,
        })
    }

    /// What it is.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The uid outside of root inside.
    pub(crate) fn root_uid(&self) -> u32 {
        self.about.root_uid
    }

    pub(crate) fn by_systemd(&self) -> bool {
        self.by_systemd
    }

    /// Asks for something and waits for the answer.
    pub(crate) fn ask<T>(
        &self,
        attempt: impl FnOnce() -> String,
        question: impl AsyncFnOnce(&Docker) -> Result<T, Error>,
    ) -> Result<T, ProviderError> {
        self.wait(question(&self.docker))
            .map_err(|error| failure(attempt(), error))
    }

    fn wait<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.carrier.wait(future)
    }

    /// Makes a container and starts it; gives the number of its first process, unless that has ended already.
    pub(crate) fn run(
        &self,
        name: &str,
        container: service::ContainerCreateBody,
    ) -> Result<Option<i32>, ProviderError> {
        let started = self.ask(
            || format!("have Docker's engine start the container {name}"),
            async |docker| {
                let options = CreateContainerOptionsBuilder::new().name(name).build();
                docker.create_container(Some(options), container).await?;
                docker.start_container(name, None::<StartContainerOptions>).await?;
                docker.inspect_container(name, None).await
            },
        )?;
        let state = started.state.unwrap_or_default();
        Ok(state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0))
    }

    /// Waits for the end of a container's first process, and says how it ended; a failure where it goes on for too long.
    pub(crate) fn exit_code(&self, name: &str) -> Result<i64, ProviderError> {
        let attempt = || format!("have Docker's engine wait for the container {name}");
        self.ask(attempt, async |docker| {
            let ended = docker.wait_container(name, None::<WaitContainerOptions>);
            match timeout(PATIENCE, ended.try_collect::<Vec<_>>()).await {
                Err(_) => Err(Error::RequestTimeoutError),
                Ok(Err(Error::DockerContainerWaitError { code, .. })) => Ok(code),
                Ok(ended) => ended.map(|_| 0),
            }
        })
    }

    /// What the container said last.
    pub(crate) fn last_words(&self, name: &str) -> String {
        let said = self.ask(String::new, async |docker| {
            let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail("20").build();
            let lines: Vec<_> = docker.logs(name, Some(options)).try_collect().await?;
            Ok(lines.iter().map(ToString::to_string).collect::<String>())
        });
        // One that cannot be heard has said nothing.
        said.unwrap_or_default().trim().to_owned()
    }

    /// Whether the container runs, as far as the engine says.
    pub(crate) fn runs(&self, name: &str) -> bool {
        let found = self.ask(String::new, async |docker| docker.inspect_container(name, None).await);
        found.is_ok_and(|found| found.state.and_then(|state| state.running).unwrap_or(false))
    }

    /// Whether the kernel ended the container for want of memory.
    pub(crate) fn ran_out_of_memory(&self, name: &str) -> bool {
        let found = self.ask(String::new, async |docker| docker.inspect_container(name, None).await);
        found.is_ok_and(|found| found.state.and_then(|state| state.oom_killed).unwrap_or(false))
    }

    /// Removes a container, running or not. One that is not there is removed already.
    pub(crate) fn remove(&self, name: &str) -> Result<(), ProviderError> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let begun = Instant::now();
        loop {
            match self.wait(self.docker.remove_container(name, Some(options.clone()))) {
                Err(error) if is(&error, 404) => return Ok(()),
                // Somebody has begun to, such as a host agent that was killed then.
                Err(error) if is(&error, 409) && begun.elapsed() < PATIENCE => self.wait_until_removed(name),
                Err(error) if ended_by_itself(&error) && begun.elapsed() < PATIENCE => self.wait_until_removed(name),
                removed => {
                    let attempt = || format!("have Docker's engine remove the container {name}");
                    return removed.map_err(|error| failure(attempt(), error));
                }
            }
        }
    }

    /// Waits for the end of a removal. One that failed a moment ago ends no more: then for a little while only.
    fn wait_until_removed(&self, name: &str) {
        let gone = WaitContainerOptionsBuilder::new().condition("removed").build();
        let gone = self
            .docker
            .wait_container(name, Some(gone))
            .for_each(|_| future::ready(()));
        // What came of it is learnt from the next try.
        let _ = self
            .carrier
            .wait(async { tokio::time::timeout(LOOK_AGAIN, gone).await });
    }

    /// The names of all containers that carry this label.
    pub(crate) fn names(&self, label: &str) -> Result<Vec<String>, ProviderError> {
        let filters = std::collections::HashMap::from([("label", vec![label])]);
        let found = self.ask(
            || "have Docker's engine list containers".into(),
            async |docker| {
                let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
                docker.list_containers(Some(options)).await
            },
        )?;
        let names = found
            .into_iter()
            .flat_map(|container| container.names.unwrap_or_default());
        Ok(names.map(|name| name.trim_start_matches('/').to_owned()).collect())
    }

    /// Gives the engine an image as an archive, as `docker load` takes it.
    pub(crate) fn load(
        &self,
        attempt: impl FnOnce() -> String,
        archive: impl futures::Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static,
    ) -> Result<(), ProviderError> {
        self.ask(attempt, async |docker| {
            // The engine's first words come with the first layer. Quiet, it says nothing before all are there, which may take
            // longer than is waited for its answer.
            let options = bollard::query_parameters::ImportImageOptionsBuilder::new()
                .quiet(false)
                .build();
            let mut answers = Box::pin(docker.import_image_stream(options, archive, None));
            while let Some(answer) = answers.next().await {
                answer?;
            }
            Ok(())
        })
    }
}

/// The event loop that carries the requests; none only while it is dropped.
#[derive(Debug)]
struct Carrier(Option<Runtime>);

impl Carrier {
    /// Waits here for what is done there: whoever calls may have an event loop of its own, which knows nothing of this one.
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let _there = self.0.as_ref().map(Runtime::enter);
        futures::executor::block_on(future)
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // Whoever drops it may be a task, which must not wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The uid of a container's root, which the engine's folder is named after: `/var/lib/docker/165536.165536`.
fn remapped(folder: &str) -> Result<u32, ProviderError> {
    let last = folder.rsplit('/').next().unwrap_or_default();
    let uid = last.split_once('.').and_then(|(uid, _)| uid.parse().ok());
    uid.ok_or_else(|| ProviderError::Machine {
        lacks: format!("Docker's engine maps users and its folder {folder} does not say to which ids"),
    })
}

/// Whether the engine answered with this status.
pub(crate) fn is(error: &Error, status: u16) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// Whether a container was over a moment before the engine would have killed it: it may be removed now.
fn ended_by_itself(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 500, message } if message.contains("is not running"))
}

fn failure(attempt: String, error: Error) -> ProviderError {
    match error {
        Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. } => {
            ProviderError::failed(attempt, words(&error))
        }
        error => ProviderError::Unavailable(format!("Docker's engine does not answer ({})", words(&error))),
    }
}

/// An error of the engine without the library's words about it.
fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_s_folder_says_to_which_ids_it_maps() {
        assert_eq!(remapped("/var/lib/docker/165536.165536").unwrap(), 165_536);
        assert!(remapped("/var/lib/docker").is_err());
    }
}
