//! One generation, from its sandbox to its image.

use std::time::Duration;

use domain::Timestamp;
use knowledge::Repository;
use link::server::LinkError;
use policy::{HostPattern, Layer, Layers, Rules, Scope};
use sandbox::{ImageDigest, ProviderError};
use store::{Generation, StoreError, TakenGeneration};
use tokio::time::{Instant, timeout_at};

use super::commands::{self, Done, FETCH, SEAL};
use super::{ATTEMPTS, is_of, told};
use crate::Control;
use crate::config::Refresh;
use crate::housing::{HousingError, Site, Stay};
use crate::live::Live;

/// How much later than its commands a build is given up: a call's own limit says more.
const MARGIN: Duration = Duration::from_secs(60);

/// Why nothing came of a generation.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    #[error("somebody else builds it")]
    Lost,
    #[error(
        "its builder ended {ATTEMPTS} times before it was done, perhaps of it: the control plane's log says more, and `belljar image refresh` tries again"
    )]
    Deadly,
    #[error(
        "what a builder before left could not be cleared away; it is tried again: is the host agent well? `belljar doctor` looks"
    )]
    Left(#[source] ProviderError),
    #[error(
        "no sandbox could be made to build it in; it is tried again: `belljar doctor` looks at what sandboxes need"
    )]
    Site(#[source] HousingError),
    #[error(
        "its sandbox was lost ({step}); it is tried again: where it happens each time, [sandbox] may give too little memory for the build"
    )]
    Sandbox {
        step: String,
        #[source]
        source: LinkError,
    },
    #[error("{step} took longer than a refresh may: {} s (knowledge.time): raise it in the recipe, or build less", limit.as_secs())]
    Late { step: String, limit: Duration },
    #[error("{step} failed ({status}): {words}")]
    Command {
        step: String,
        status: String,
        words: String,
    },
    #[error("{step} failed: {words}")]
    Tool { step: String, words: String },
    #[error("what was built could not become an image; it is tried again: `belljar doctor` looks for room and rights")]
    Commit(#[source] ProviderError),
    #[error("the store could not be read; it is tried again")]
    Store(#[source] StoreError),
}

/// The time that a build has, and what it does.
struct Course {
    deadline: Instant,
    limit: Duration,
}

impl Course {
    fn left(&self) -> u64 {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A part of a second is not nothing.
        left.as_secs() + u64::from(left.subsec_nanos() > 0)
    }

    fn late(&self, step: &str) -> BuildError {
        BuildError::Late {
            step: step.to_owned(),
            limit: self.limit,
        }
    }
}

impl Control {
    /// Builds a generation. What was built in is cleared away by whoever called.
    pub(super) async fn build(&self, refresh: &Refresh, taken: &TakenGeneration) -> Result<ImageDigest, BuildError> {
        if let Some(left) = &taken.left {
            if let Some(session) = left.session {
                self.clear_site(session).await.map_err(BuildError::Left)?;
            }
            if let Some(digest) = self.made_before(refresh, &taken.generation, left).await? {
                return Ok(digest);
            }
        }
        let (Some(session), Some(made_of)) = (taken.generation.session, &taken.generation.made_of) else {
            return Err(BuildError::Lost);
        };
        if taken.generation.attempts > ATTEMPTS {
            return Err(BuildError::Deadly);
        }
        let limit = refresh.knowledge.time;
        let course = Course {
            deadline: Instant::now() + limit,
            limit,
        };
        let step = "making a sandbox";
        let fetching = may(refresh, refresh.knowledge.repository_hosts());
        let opening = self.open_site(session, made_of.parent.clone(), fetching, Site::ToBuild);
        let opened = timeout_at(course.deadline, opening).await;
        let (live, stay) = opened.map_err(|_| course.late(step))?.map_err(BuildError::Site)?;
        self.run_all(refresh, &live, &stay, &course).await?;
        let committed = self.0.housing.provider.commit(stay.id).await;
        committed.map_err(BuildError::Commit)
    }

    /// The image that a builder before this one had made, when it ended before it could say so.
    async fn made_before(
        &self,
        refresh: &Refresh,
        generation: &Generation,
        left: &Generation,
    ) -> Result<Option<ImageDigest>, BuildError> {
        let (Some(made_of), Some(begun)) = (&generation.made_of, left.begun) else {
            return Ok(None);
        };
        if !is_of(left, &made_of.recipe, &made_of.base) {
            return Ok(None);
        }
        let images = self.0.housing.provider.images().await.map_err(BuildError::Left)?;
        let known = self.0.store.generations(&refresh.image).await;
        let known = known.map_err(BuildError::Store)?;
        let is_its = |image: &&sandbox::ImageStatus| {
            image.name == refresh.image
                && image.base.as_ref() == Some(&made_of.base)
                && image.built >= Timestamp(begun.0)
                && known.iter().all(|row| row.digest.as_ref() != Some(&image.digest))
        };
        let its = images.iter().filter(is_its).max_by_key(|image| image.built);
        Ok(its.map(|image| image.digest.clone()))
    }

    /// Fetches the repositories, runs the commands, and asks whether it is ready.
    async fn run_all(&self, refresh: &Refresh, live: &Live, stay: &Stay, course: &Course) -> Result<(), BuildError> {
        let knowledge = &refresh.knowledge;
        for repository in &knowledge.repositories {
            let branch = repository.branch.as_ref();
            let branch = branch.map(|branch| format!(", branch {branch}")).unwrap_or_default();
            let step = format!("fetching {} ({}{branch})", repository.name, repository.url);
            run(live, stay, course, step, FETCH, &variables(repository)).await?;
        }
        // What is fetched runs from here on: with one repository's code, nothing of the others' is to be had.
        live.fix_rights(may(refresh, knowledge.build_hosts()));
        for command in &knowledge.build {
            let step = format!("the command `{command}` of knowledge.build");
            run(live, stay, course, step, command, &[]).await?;
        }
        if let Some(command) = &knowledge.ready {
            let step = format!("the command `{command}` of knowledge.ready");
            run(live, stay, course, step, command, &[]).await?;
        }
        for repository in &knowledge.repositories {
            let step = format!("putting away the settings of git in {}", repository.name);
            run(live, stay, course, step, SEAL, &variables(repository)).await?;
        }
        Ok(())
    }
}

/// What the scripts for a repository are told of it.
fn variables(repository: &Repository) -> [(&'static str, &str); 3] {
    [
        ("NAME", repository.name.as_str()),
        ("URL", repository.url.as_str()),
        ("BRANCH", repository.branch.as_deref().unwrap_or_default()),
    ]
}

/// What may leave while an image is built: connections to these hosts, as far as rules of the installation allow.
fn may(refresh: &Refresh, hosts: Vec<HostPattern>) -> Layers {
    let scope = Scope {
        egress: Some(Rules::allowing(hosts)),
        ..Scope::nothing()
    };
    Layers::of_roles(vec![Layer::new(format!("image {}", refresh.image), scope)])
}

/// Runs one command, which must end well.
async fn run(
    live: &Live,
    stay: &Stay,
    course: &Course,
    step: String,
    command: &str,
    environment: &[(&str, &str)],
) -> Result<(), BuildError> {
    let left = course.left();
    if left == 0 {
        return Err(course.late(&step));
    }
    let calling = stay
        .linked
        .call(commands::call(command, environment), commands::limits(left));
    let called = timeout_at(course.deadline + MARGIN, calling).await;
    let result = match called {
        Ok(Ok(result)) => result,
        Ok(Err(LinkError::Silent { .. })) | Err(_) => return Err(course.late(&step)),
        Ok(Err(source)) => return Err(BuildError::Sandbox { step, source }),
    };
    match commands::read(&result) {
        Ok(Done { status, .. }) if status == "0" => Ok(()),
        Ok(Done { status, said }) => Err(BuildError::Command {
            step,
            status,
            words: told(&said, &live.refused()),
        }),
        Err(_) if course.left() == 0 => Err(course.late(&step)),
        Err(words) => Err(BuildError::Tool {
            step,
            words: told(&words, &live.refused()),
        }),
    }
}
