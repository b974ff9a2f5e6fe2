//! Who may do what.

use axum::Json;
use axum::extract::State;
use domain::{Door, SessionId};
use policy::{Explanation, Question};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::Query;
use crate::error::ApiError;

/// What is asked.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Explain {
    /// `service.method`, `tool:NAME`, `skill:NAME`, `model:NAME` or `egress:HOST:PORT`.
    question: String,
    /// The name of whose request it is; yours where left out. Others' are for admins.
    user: Option<String>,
    /// The door by which it comes; `api` where left out.
    door: Option<Door>,
    /// The session for which it is, with all that narrowed it.
    session: Option<SessionId>,
}

/// The decision, and how it came about.
#[derive(Serialize, ToSchema)]
pub(crate) struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    /// What in the question names nothing that is here.
    notices: Vec<String>,
}

/// Say whether something may be done, what each layer says to it, and which of them decides.
#[utoipa::path(get, path = "/policy/explain", tag = "policy", params(Explain), responses((status = 200, description = "The decision, and how it came about.", body = Explained)))]
pub(crate) async fn explain(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<Explain>,
) -> Result<Json<Explained>, ApiError> {
    let question: Question = query
        .question
        .parse()
        .map_err(|error: policy::QuestionError| ApiError::invalid(error.to_string()))?;
    let user = query.user.as_deref().unwrap_or(&caller.0.user.name);
    let door = query.door.unwrap_or(Door::Api);
    let explanation = doors
        .control
        .explain(caller.asker(), user, door, query.session, &question)
        .await?;
    let notices = doors.control.notices(user, &question).await?;
    Ok(Json(Explained { explanation, notices }))
}
