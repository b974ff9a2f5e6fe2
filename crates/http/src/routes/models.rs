//! Models.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::Doors;
use crate::authenticate::Caller;

/// A model that can be asked.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Model {
    /// Its name here.
    pub name: String,
    /// What its API speaks.
    pub provider: String,
    /// Tokens that its window holds.
    pub window: u64,
    /// It answers where no model is named.
    pub default: bool,
}

/// Models.
#[derive(Serialize, ToSchema)]
pub(crate) struct Models {
    /// By name.
    models: Vec<Model>,
}

/// List the models that can be asked.
#[utoipa::path(get, path = "/models", tag = "models", responses((status = 200, description = "All there are.", body = Models)))]
pub(crate) async fn list_models(State(doors): State<Doors>, _: Caller) -> Json<Models> {
    Json(Models {
        models: doors.models.to_vec(),
    })
}
