//! `belljar host`: the small root process that makes sandboxes. It holds no key: its environment is cleared, and it follows no reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use lifecycle::Tasks;

use crate::config::{Containers, Loaded, Settings};
use crate::end::End;
use crate::{places, process, system_user, wiring};

/// How long orders under way may take when the host agent is told to end.
const DEADLINE: Duration = Duration::from_secs(30);

/// The program that is PID 1 in every sandbox.
const RUNTIME: &str = "belljar-runtime";

/// Runs the host agent until it is told to end. Living sandboxes stay, for the next one to adopt.
pub(crate) fn host(loaded: &Loaded) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    process::log(settings);
    process::raise_descriptors();
    if !rustix::process::geteuid().is_root() {
        bail!("the host agent makes sandboxes and must be root: run it with sudo, or `belljar up` as root");
    }
    let user = system_user::find_user(&settings.server.user)?
        .with_context(|| format!("there is no user {}: `belljar up` makes it", settings.server.user))?;
    let mut config = containers::Config::new(&settings.server.data, program(settings)?);
    config.run.clone_from(&settings.sandbox.run);
    let images = Arc::new(wiring::images(settings));
    let provider = match &settings.sandbox.provider {
        Containers::Oci => sandbox_oci::open(settings.sandbox.runtime.clone(), config, images),
        Containers::Docker { socket, volume } => sandbox_docker::open(socket, volume.as_deref(), config, images),
    };
    let provider = provider.context("cannot provide sandboxes on this machine; `belljar doctor` says more")?;
    process::runtime()?.block_on(async {
        let socket = places::host_socket(settings);
        let listener = host::listen(&socket, user.uid)?;
        let tasks = Tasks::new();
        let claim = places::claim(settings);
        let serving = tasks.spawn(host::serve(
            listener,
            Arc::new(provider),
            user.uid,
            claim,
            tasks.child(),
        ));
        let _gone = cli::line(format_args!("ready: {}", socket.display()));
        process::told_to_end().await?;
        if !tasks.shut_down(DEADLINE).await {
            tracing::warn!("orders were cut off after {} s", DEADLINE.as_secs());
        }
        serving
            .await
            .context("the host agent's server broke down")?
            .context("cannot serve the host agent's socket")?;
        Ok(End::Done)
    })
}

/// Where the program that is PID 1 in every sandbox is looked for.
pub(crate) fn places(settings: &Settings) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(program) = &settings.sandbox.program {
        return Ok(vec![program.clone()]);
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(places_near(&own))
}

/// Beside this program, and where a build puts it: it has a profile of its own, and so a folder of its own.
fn places_near(own: &Path) -> Vec<PathBuf> {
    let beside = own.with_file_name(RUNTIME);
    let built = own.parent().and_then(Path::parent);
    let built = built.map(|folder| folder.join("runtime").join(RUNTIME));
    [beside].into_iter().chain(built).collect()
}

fn program(settings: &Settings) -> anyhow::Result<PathBuf> {
    let places = places(settings)?;
    match places.iter().find(|place| place.is_file()) {
        Some(program) => Ok(program.clone()),
        None => {
            let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            bail!(
                "there is no {}: build or install belljar-runtime, or name it in sandbox.program",
                places.join(" and no ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_looked_for_beside_the_program_and_in_the_build_folder() {
        let places = places_near(Path::new("/src/target/release/belljar"));
        let expected = [
            "/src/target/release/belljar-runtime",
            "/src/target/runtime/belljar-runtime",
        ];
        assert_eq!(places, expected.map(PathBuf::from));
    }
}
