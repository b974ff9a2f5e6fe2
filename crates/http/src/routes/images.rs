//! Images.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use control::{GenerationEntry, ImageEntry};
use domain::{GenerationId, Timestamp};
use serde::Serialize;
use store::Generation as Row;
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
