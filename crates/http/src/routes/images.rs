//! Images.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use control::{GenerationEntry, ImageEntry};
use domain::{ExternalKey, GenerationId, SandboxId, SessionId, Timestamp};
use serde::Serialize;
use store::{DiskOn, Generation as Row, Names};
use utoipa::ToSchema;

use crate::api::Doors;
use crate::authenticate::Caller;
use crate::error::ApiError;

/// An image that is built anew from time to time.
#[derive(Serialize, ToSchema)]
pub(crate) struct Image {
    /// Its recipe's name.
    name: String,
    /// The digest of what `belljar image build` made: generations begin with it.
    base: String,
    /// The digest of what new sessions get.
    newest: String,
    /// How often it is built anew, in seconds.
    refresh_seconds: u64,
    /// What is cloned into its `/knowledge`.
    repositories: Vec<Repository>,
    /// Its generations, the newest first.
    generations: Vec<Generation>,
}

/// A repository of an image.
#[derive(Serialize, ToSchema)]
pub(crate) struct Repository {
    /// Its folder in `/knowledge`.
    name: String,
    /// Where it comes from.
    url: String,
    /// Its branch; null: the one that the repository itself begins with.
    branch: Option<String>,
}

/// One dated build of an image.
#[derive(Serialize, ToSchema)]
pub(crate) struct Generation {
    /// Which.
    id: GenerationId,
    /// `wanted`, `building`, `ready`, `failed` or `gone` (it was removed when nobody used it any more).
    state: String,
    /// When it was first wanted or begun.
    asked: Timestamp,
    /// When it was begun; null while nobody has.
    begun: Option<Timestamp>,
    /// When it was ready or had failed; null before.
    ended: Option<Timestamp>,
    /// Why it failed, with the last words of what failed, which may come out of a sandbox.
    error: Option<String>,
    /// The digest of its image; null where there is none.
    digest: Option<String>,
    /// Bytes that it has beside its base's; null where it is not there.
    bytes: Option<u64>,
    /// Sandboxes that were made of it.
    sandboxes: usize,
}

/// Images.
#[derive(Serialize, ToSchema)]
pub(crate) struct Images {
    /// Those that are built anew from time to time.
    images: Vec<Image>,
    /// The digests of those that must stay: sandboxes, disks or snapshots lie on them, or the next sandboxes will.
    used: Vec<String>,
}

/// Who needs an image.
#[derive(Serialize, ToSchema)]
pub(crate) struct ImageUse {
    /// `new` (the next sandboxes are made of it), `session` (its files lie on it), `snapshot`, `sandbox`, or `other` (something that is under way,
    /// or files of which an earlier release did not write down what they lie on).
    by: &'static str,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    /// What its owner calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_key: Option<ExternalKey>,
    /// The snapshot, by its name or else its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    /// The sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxId>,
}

/// Who needs an image.
#[derive(Serialize, ToSchema)]
pub(crate) struct ImageUses {
    /// Some of them where they are many; where there are none it may be removed.
    uses: Vec<ImageUse>,
}

impl ImageUse {
    fn of(found: control::ImageUse, names: &Names) -> Self {
        let mut told = Self {
            by: "other",
            session: None,
            session_key: None,
            snapshot: None,
            sandbox: None,
        };
        match found {
            control::ImageUse::New => told.by = "new",
            control::ImageUse::Sandbox(sandbox) => (told.by, told.sandbox) = ("sandbox", Some(sandbox)),
            control::ImageUse::Disk(DiskOn { session, snapshot }) => {
                told.by = if snapshot.is_some() { "snapshot" } else { "session" };
                (told.session, told.session_key) = (Some(session), names.session(session));
                told.snapshot = snapshot;
            }
            control::ImageUse::Other => {}
        }
        told
    }
}

impl Generation {
    fn of(row: Row, bytes: Option<u64>, sandboxes: usize) -> Self {
        Self {
            id: row.id,
            state: row.state.as_str().to_owned(),
            asked: row.asked,
            begun: row.begun,
            ended: row.ended,
            error: row.error,
            digest: row.digest.map(|digest| digest.to_string()),
            bytes,
            sandboxes,
        }
    }
}

impl From<GenerationEntry> for Generation {
    fn from(entry: GenerationEntry) -> Self {
        let bytes = entry.built.map(|(_, bytes)| bytes);
        Self::of(entry.generation, bytes, entry.sandboxes)
    }
}

impl From<ImageEntry> for Image {
    fn from(entry: ImageEntry) -> Self {
        let knowledge = entry.refresh.knowledge;
        let repositories = knowledge.repositories.into_iter().map(|repository| Repository {
            name: repository.name,
            url: repository.url,
            branch: repository.branch,
        });
        Self {
            name: entry.name,
            base: entry.base.to_string(),
            newest: entry.newest.to_string(),
            refresh_seconds: knowledge.refresh.as_secs(),
            repositories: repositories.collect(),
            generations: entry.generations.into_iter().map(Generation::from).collect(),
        }
    }
}

/// List the images that are built anew from time to time, and their generations. Admins only.
#[utoipa::path(get, path = "/images", tag = "images", responses((status = 200, description = "All there are.", body = Images)))]
pub(crate) async fn list_images(State(doors): State<Doors>, caller: Caller) -> Result<Json<Images>, ApiError> {
    let images = doors.control.images(caller.asker()).await?;
    let used = doors.control.used_images(caller.asker()).await?;
    Ok(Json(Images {
        images: images.into_iter().map(Image::from).collect(),
        used: used.iter().map(ToString::to_string).collect(),
    }))
}

/// Have an image built anew now, or as soon as the one under way has ended. Admins only; audited.
#[utoipa::path(post, path = "/images/{image}/refresh", tag = "images", params(("image" = String, Path)), responses((status = 202, description = "What is going to be built.", body = Generation)))]
pub(crate) async fn refresh_image(
    State(doors): State<Doors>,
    caller: Caller,
    Path(image): Path<String>,
) -> Result<(StatusCode, Json<Generation>), ApiError> {
    let wanted = doors.control.refresh_image(caller.asker(), &image).await?;
    Ok((StatusCode::ACCEPTED, Json(Generation::of(wanted, None, 0))))
}

/// Who needs an image, by its digest: as long as anybody does it must not be removed. Admins only.
#[utoipa::path(get, path = "/images/{image}/uses", tag = "images", params(("image" = String, Path)), responses((status = 200, description = "Who needs it.", body = ImageUses)))]
pub(crate) async fn list_image_uses(
    State(doors): State<Doors>,
    caller: Caller,
    Path(image): Path<String>,
) -> Result<Json<ImageUses>, ApiError> {
    let uses = doors.control.image_uses(caller.asker(), &image).await?;
    let sessions = uses.iter().filter_map(|found| match found {
        control::ImageUse::Disk(disk) => Some(disk.session),
        _ => None,
    });
    let names = doors.names(&caller, Vec::new(), sessions.collect()).await?;
    Ok(Json(ImageUses {
        uses: uses.into_iter().map(|found| ImageUse::of(found, &names)).collect(),
    }))
}
