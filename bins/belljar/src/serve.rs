//! `belljar serve`: the control plane. It runs as an ordinary user and reaches sandboxes through the host agent only.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use causes::with_causes;
use control::{Base, Callable, Control, ControlError, Outside};
use dial::{Dialer, SystemResolver};
use host::HostClient;
use lifecycle::Tasks;
use secret::{Custody, Secret, Source};
use secrets::{Environment, Local};
use store::Store;
use tokio::net::TcpListener;

use crate::config::{Loaded, Model, Provider, Settings};
use crate::end::End;
use crate::rotations::Rotations;
use crate::{listening, places, process, sources, wiring};

/// How often it is looked whether there is a newer image.
const LOOK_FOR_IMAGE: Duration = Duration::from_secs(5);
/// How long the store may take to close.
const CLOSES: Duration = Duration::from_secs(5);

/// Runs the control plane until it is told to end: then nothing is accepted any more, what is under way may finish within
/// `server.drain`, and runs are left to the next process. Where the socket was handed over, who hands it over keeps it, and
/// connections wait in it for the next process.
pub(crate) fn serve(loaded: &Loaded) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    let environment = process::take_secrets(&sources::variables(settings))?;
    let handed = listening::handed()?;
    process::close_to_others();
    process::log(settings);
    process::raise_descriptors();
    if rustix::process::geteuid().is_root() && settings.server.user != "root" {
        tracing::warn!(
            "the control plane holds keys and should not run as root: `belljar up` starts it as {}",
            settings.server.user
        );
    }
    process::runtime()?.block_on(run(loaded, environment, handed))
}

async fn run(loaded: &Loaded, environment: Environment, handed: Option<std::net::TcpListener>) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    // In this order they end: doors first, then what they asked for, then the way to the host and to what keeps secrets.
    let (doors, work, way) = (Tasks::new(), Tasks::new(), Tasks::new());
    let rotated = sources::rotated(settings, &Local::new(environment.clone()));
    let secrets = sources::open(settings, environment, &way)?;
    for (key, unresolved) in sources::unresolved(settings, &secrets).await {
        tracing::warn!("{key}: {unresolved}; all else works");
    }
    let secrets: Arc<dyn Source> = secrets;
    let providers = wiring::providers(settings, &secrets)?;
    // A default model was chosen with the configuration wherever there is one.
    let model = settings.server.model.clone().unwrap_or_default();
    let base = wiring::base(settings)?;
    let config = wiring::control(settings, &model, base.clone());
    let own = places::control(settings);
    fs::create_dir_all(&own).with_context(|| format!("cannot make the folder {}", own.display()))?;
    let was_handed = handed.is_some();
    let listener = handed.map_or_else(|| listening::bind(settings.server.listen), Ok)?;
    let listener = TcpListener::from_std(listener).context("cannot use the socket that is listened on")?;
    let address = listener
        .local_addr()
        .context("cannot find the address that is listened on")?;
    if was_handed && address != settings.server.listen {
        tracing::info!(%address, "listening on the socket that was handed over, and not on server.listen");
    }

    let store = store::Config {
        session_bytes: Some(settings.server.history),
        ..store::Config::new(places::store(settings))
    };
    let store = Store::open(store).await?;
    let installation = store.installation().await?;
    let sandboxes = Arc::new(HostClient::new(places::host_socket(settings), installation, &way));
    let dialer = Dialer::new(Arc::new(SystemResolver::default()), dial::Settings::default());
    let custody = Custody {
        source: Arc::clone(&secrets),
        successors: Some(Arc::new(Rotations::new(rotated, store.clone()))),
    };
    let outward = wiring::services(settings, custody, dialer.clone(), &work, loaded.file.as_deref())?;
    for problem in &outward.problems {
        tracing::warn!("{problem}");
    }
    let outside = Outside {
        services: Some(Callable::new(Arc::new(outward.catalogue), outward.services)),
        egress: Some(wiring::egress(settings, own.join("egress"), &secrets, dialer)),
        files: wiring::files(settings, &own, &secrets)?,
        skills: Some(wiring::reading_skills(settings)),
        traces: wiring::traces(settings, &way)?,
        secrets: wiring::withheld(settings, &secrets),
    };
    let control = Control::start(config, store.clone(), providers, sandboxes, outside, work.clone()).await?;
    first_token(settings, &control).await?;

    let router = http_api::router(http_api::Parts {
        control: control.clone(),
        store: store.clone(),
        models: settings
            .models
            .iter()
            .map(|(name, known)| described(name, known, *name == model))
            .collect(),
        scratch: own,
        stop: doors.stop(),
    });
    let serving = doors.spawn(http_api::serve(
        listener,
        router,
        http_api::Config::default(),
        doors.clone(),
    ));
    let _gone = cli::line(format_args!("ready: http://{address}"));
    let broken = tokio::select! {
        told = process::told_to_end() => told.map(|()| false)?,
        () = store.ended() => true,
        never = follow_image(settings, base, &control) => match never {},
    };
    drop(control);
    if broken {
        tracing::error!("nothing can be written to the store any more: ending, so that it is begun anew");
    } else {
        tracing::info!("ending");
    }
    let drained = doors.shut_down(settings.server.drain).await;
    let done = work.shut_down(settings.server.drain).await;
    if !(drained && done) {
        tracing::warn!(
            "work was cut off after {} s; runs go on with the next start",
            settings.server.drain.as_secs()
        );
    }
    way.shut_down(CLOSES).await;
    let closed = tokio::time::timeout(CLOSES, store.close()).await;
    closed.context("the store did not close in time; what was acknowledged is on the disk")?;
    serving.await.context("the HTTP server broke down")?;
    if broken {
        bail!(
            "what writes the store broke down, and the log says why; what was acknowledged is on the disk: start again"
        );
    }
    Ok(End::Done)
}

/// Tells control of each image that sandboxes are to be made of, when it was built or taken in.
async fn follow_image(settings: &Settings, mut base: Base, control: &Control) -> Infallible {
    let mut failed = false;
    loop {
        tokio::time::sleep(LOOK_FOR_IMAGE).await;
        let found = tokio::task::block_in_place(|| wiring::base(settings));
        match found {
            Ok(same) if same == base => failed = false,
            Ok(newer) => {
                base = newer.clone();
                if let Err(error) = control.set_base(newer).await {
                    tracing::warn!(
                        error = with_causes(&error),
                        "it is not known what was built on the new image"
                    );
                }
            }
            Err(error) if !failed => {
                failed = true;
                tracing::warn!("sandboxes are made of the image as before, as the images cannot be read: {error:#}");
            }
            Err(_) => {}
        }
    }
}

fn described(name: &str, model: &Model, default: bool) -> http_api::Model {
    http_api::Model {
        name: name.to_owned(),
        provider: match model.provider {
            Provider::Anthropic => "anthropic",
            Provider::OpenAi => "openai",
            Provider::OpenAiChat => "openai-chat",
            Provider::Scripted => "scripted",
        }
        .to_owned(),
        window: model.window,
        default,
    }
}

/// At the very first start: makes the first admin and a token, keeps it for this machine's root, and shows it once. Where it opens
/// nothing any more, or is gone, as after `belljar restore` on another machine, another one takes its place; who wants none there
/// leaves the file empty.
async fn first_token(settings: &Settings, control: &Control) -> anyhow::Result<()> {
    let path = places::first_token(settings);
    let keep = |secret: &Secret| {
        write_secret(&path, secret.expose())
            .with_context(|| format!("cannot keep the first token in {}", path.display()))
    };
    let show = |whose: &str, secret: &Secret| {
        let _gone = cli::line(format_args!(
            "token of {whose}, shown this once (root of this machine finds it in {}):\n  {}",
            path.display(),
            secret.expose()
        ));
    };
    if let Some(secret) = control.first_admin("admin", &keep).await? {
        show("the first admin", &secret);
    } else if !opens(&path, control).await?
        && let Some(secret) = control.recover_admin().await?
    {
        keep(&secret)?;
        show("an admin, since the one that was kept opens nothing", &secret);
    }
    Ok(())
}

/// Whether the token in a file is an admin's, or the file is nobody's but root's, or empty, on purpose.
async fn opens(path: &Path, control: &Control) -> anyhow::Result<bool> {
    let kept = match std::fs::read_to_string(path) {
        Ok(kept) => Secret::new(kept.trim()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "the first token that was kept cannot be read, and is left as it is");
            return Ok(true);
        }
    };
    if kept.expose().is_empty() {
        return Ok(true);
    }
    match control.authenticate(&kept).await {
        Ok(identity) => Ok(identity.user.admin),
        Err(ControlError::Unauthorized(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn write_secret(path: &Path, secret: &str) -> std::io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
