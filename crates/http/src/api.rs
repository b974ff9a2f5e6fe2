//! The API as one router and one description.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use control::{Control, ControlError};
use domain::{SessionId, UserId};
use store::{Names, Store};
use tokio::sync::watch;
use utoipa::OpenApi as _;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::authenticate::Caller;
use crate::error::ErrorBody;
use crate::metrics::Metrics;
use crate::routes::models::Model;
use crate::routes::{
    approvals, audit, backup, events, files, health, images, models, people, policy, prompts, proxy, sandboxes,
    sessions, snapshots, usage,
};
use crate::streams::Streams;
use crate::{authenticate, metrics};

/// What handlers work with.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) control: Control,
    pub(crate) store: Store,
    pub(crate) models: Arc<[Model]>,
    /// A folder of our own for files that live for moments.
    pub(crate) scratch: PathBuf,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) streams: Streams,
    /// Told when the server stops: streams end.
    pub(crate) stop: lifecycle::Stop,
    /// Told when a token may have been taken back: streams look whether theirs is still good.
    pub(crate) doubts: Arc<watch::Sender<u64>>,
}

impl Doors {
    /// What people call these users and sessions, as far as they exist for the one who asks.
    pub(crate) async fn names(
        &self,
        caller: &Caller,
        users: Vec<UserId>,
        sessions: Vec<SessionId>,
    ) -> Result<Names, ControlError> {
        Ok(self.store.names(caller.asker(), users, sessions).await?)
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Belljar",
        description = "One general agent for everybody, in sealed sandboxes. Every request but \
        `GET /healthz` needs `Authorization: Bearer <token>`. Errors are `{\"error\": {\"code\", \"message\"}}`."
    ),
    components(schemas(ErrorBody))
)]
struct Description;

fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(sessions::list_sessions, sessions::open_session))
        .routes(routes!(sessions::get_session))
        .routes(routes!(sessions::archive_session))
        .routes(routes!(snapshots::list_snapshots, snapshots::save_snapshot))
        .routes(routes!(snapshots::remove_snapshot))
        .routes(routes!(snapshots::name_snapshot))
        .routes(routes!(snapshots::restore_snapshot))
        .routes(routes!(snapshots::export_snapshot))
        .routes(routes!(snapshots::fork_session))
        .routes(routes!(prompts::prompt))
        .routes(routes!(prompts::check_prompt))
        .routes(routes!(prompts::cancel))
        .routes(routes!(events::watch_events))
        .routes(routes!(files::list_files))
        .routes(routes!(files::read_file, files::write_file))
        .routes(routes!(files::export_files, files::import_files))
        .routes(routes!(usage::get_usage))
        .routes(routes!(usage::list_calls))
        .routes(routes!(audit::list_audit))
        .routes(routes!(audit::stream_audit))
        .routes(routes!(audit::verify_audit))
        .routes(routes!(people::get_me))
        .routes(routes!(people::list_users, people::create_user))
        .routes(routes!(people::remove_user))
        .routes(routes!(people::list_tokens, people::create_token))
        .routes(routes!(people::revoke_token))
        .routes(routes!(images::list_images))
        .routes(routes!(images::list_image_uses))
        .routes(routes!(images::refresh_image))
        .routes(routes!(sandboxes::list_sandboxes, sandboxes::remove_sandboxes))
        .routes(routes!(sandboxes::remove_sandbox))
        .routes(routes!(sandboxes::read_words))
        .routes(routes!(sandboxes::run_command))
        .routes(routes!(models::list_models))
        .routes(routes!(policy::explain))
        .routes(routes!(approvals::list_approvals))
        .routes(routes!(approvals::get_approval, approvals::decide_approval))
        .routes(routes!(backup::backup))
        .routes(routes!(health::get_description))
}

fn whole() -> OpenApiRouter<Doors> {
    OpenApiRouter::with_openapi(Description::openapi())
        .nest("/api/v1", routes())
        .routes(routes!(proxy::proxy))
        .routes(routes!(health::healthz))
        .routes(routes!(health::get_metrics))
}

/// The OpenAPI description of everything that [`router`] answers.
#[must_use]
pub fn description() -> OpenApi {
    let (_, mut api) = whole().split_for_parts();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = api.components.get_or_insert_default();
    components
        .security_schemes
        .insert("token".to_owned(), SecurityScheme::Http(bearer).into());
    let error = ResponseBuilder::new()
        .description("It was not done; `code` says why for a program, `message` for a person.")
        .content(
            "application/json",
            ContentBuilder::new()
                .schema(Some(Ref::from_schema_name("ErrorBody")))
                .build(),
        )
        .build();
    for (path, item) in &mut api.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            if path != authenticate::OPEN_PATH {
                operation.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
                operation
                    .responses
                    .responses
                    .insert("default".to_owned(), error.clone().into());
            }
        }
    }
    api
}

/// What the API is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What it asks.
    pub control: Control,
    /// What control works on, for what is between a caller and the store alone.
    pub store: Store,
    /// The models that can be asked.
    pub models: Vec<Model>,
    /// A folder that nobody else can read, for files that live for moments.
    pub scratch: PathBuf,
    /// Event streams end when this says so.
    pub stop: lifecycle::Stop,
}

/// The whole API.
pub fn router(parts: Parts) -> Router {
    let doors = Doors {
        control: parts.control,
        store: parts.store,
        models: parts.models.into(),
        scratch: parts.scratch,
        metrics: Arc::new(Metrics::new(Instant::now())),
        streams: Streams::default(),
        stop: parts.stop,
        doubts: Arc::default(),
    };
    let (router, _) = whole().split_for_parts();
    router
        .fallback(health::unknown_path)
        .method_not_allowed_fallback(health::unknown_method)
        .layer(middleware::from_fn_with_state(
            doors.clone(),
            authenticate::authenticate,
        ))
        .layer(middleware::from_fn_with_state(doors.clone(), metrics::count))
        .layer(DefaultBodyLimit::disable())
        .with_state(doors)
}
