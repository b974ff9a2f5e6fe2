//! Users and their tokens.

use axum::Json;
use axum::extract::State;
use domain::{Timestamp, TokenId, UserId};
use serde::{Deserialize, Serialize};
use store::Names;
use utoipa::{IntoParams, ToSchema};

use super::Done;
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, JsonBody, Query};
use crate::error::ApiError;

/// A person, or a program that acts as one.
#[derive(Serialize, ToSchema)]
pub(crate) struct User {
    /// Which.
    id: UserId,
    /// The name that people use.
    name: String,
    /// Whether everything is theirs to see and do.
    admin: bool,
    /// When they came.
    created: Timestamp,
}

impl From<store::User> for User {
    fn from(user: store::User) -> Self {
        Self {
            id: user.id,
            name: user.name,
            admin: user.admin,
            created: user.created,
        }
    }
}

/// Users.
#[derive(Serialize, ToSchema)]
pub(crate) struct Users {
    /// By name.
    users: Vec<User>,
}

/// Who you are.
#[utoipa::path(get, path = "/me", tag = "people", responses((status = 200, description = "You.", body = User)))]
pub(crate) async fn get_me(Caller(identity): Caller) -> Json<User> {
    Json(identity.user.into())
}

/// List users. Admins only.
#[utoipa::path(get, path = "/users", tag = "people", responses((status = 200, description = "Everybody.", body = Users)))]
pub(crate) async fn list_users(State(doors): State<Doors>, caller: Caller) -> Result<Json<Users>, ApiError> {
    let users = doors.control.users(caller.asker()).await?;
    Ok(Json(Users {
        users: users.into_iter().map(User::from).collect(),
    }))
}

/// A user to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateUser {
    /// The name that people use.
    name: String,
    /// Whether everything is theirs to see and do.
    #[serde(default)]
    admin: bool,
}

/// Add a user. Admins only.
#[utoipa::path(post, path = "/users", tag = "people", request_body = CreateUser, responses((status = 200, description = "The user.", body = User)))]
pub(crate) async fn create_user(
    State(doors): State<Doors>,
    caller: Caller,
    JsonBody(body): JsonBody<CreateUser>,
) -> Result<Json<User>, ApiError> {
    Ok(Json(
        doors
            .control
            .create_user(caller.asker(), &body.name, body.admin)
            .await?
            .into(),
    ))
}

/// Remove a user. Their tokens open nothing from now on, their runs are cancelled, and their sessions take no prompt; they stay for admins to see. Admins only.
#[utoipa::path(delete, path = "/users/{user}", tag = "people", params(("user" = UserId, Path)), responses((status = 200, description = "It is done.", body = Done)))]
pub(crate) async fn remove_user(
    State(doors): State<Doors>,
    caller: Caller,
    Id(user): Id<UserId>,
) -> Result<Json<Done>, ApiError> {
    // Who may not see a user is told that there is none, not that they may not remove it.
    doors.control.user(caller.asker(), user).await?;
    doors.control.remove_user(caller.asker(), user).await?;
    doors.doubts.send_modify(|doubts| *doubts += 1);
    Ok(Done::JSON)
}

/// A token, without what opens the door.
#[derive(Serialize, ToSchema)]
pub(crate) struct Token {
    /// Which.
    id: TokenId,
    /// The user it stands for.
    user: UserId,
    /// What people call them.
    user_name: Option<String>,
    /// What it is for.
    label: String,
    /// When it was made.
    created: Timestamp,
    /// From when it opens nothing.
    expires: Option<Timestamp>,
    /// When it was revoked.
    revoked: Option<Timestamp>,
}

impl Token {
    fn of(token: store::Token, names: &Names) -> Self {
        Self {
            id: token.id,
            user: token.user,
            user_name: names.user(token.user),
            label: token.label,
            created: token.created,
            expires: token.expires,
            revoked: token.revoked,
        }
    }
}

/// Tokens.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tokens {
    /// The newest first.
    tokens: Vec<Token>,
}

/// Whose tokens.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListTokens {
    /// This user's; yours where left out.
    user: Option<UserId>,
}

/// List tokens.
#[utoipa::path(get, path = "/tokens", tag = "people", params(ListTokens), responses((status = 200, description = "The tokens.", body = Tokens)))]
pub(crate) async fn list_tokens(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<ListTokens>,
) -> Result<Json<Tokens>, ApiError> {
    let user = query.user.unwrap_or(caller.0.user.id);
    let tokens = doors.control.tokens(caller.asker(), user).await?;
    let names = doors.names(&caller, vec![user], Vec::new()).await?;
    Ok(Json(Tokens {
        tokens: tokens.into_iter().map(|token| Token::of(token, &names)).collect(),
    }))
}

/// A token to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateToken {
    /// What it is for.
    label: String,
    /// The user it stands for; you, where left out.
    user: Option<UserId>,
    /// From when it opens nothing; no later than the token that makes it.
    expires: Option<Timestamp>,
}

/// A token that was just made.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewToken {
    /// The token.
    #[serde(flatten)]
    token: Token,
    /// What opens the door. It is shown this once.
    secret: String,
}

/// Make a token.
#[utoipa::path(post, path = "/tokens", tag = "people", request_body = CreateToken, responses((status = 200, description = "The token.", body = NewToken)))]
pub(crate) async fn create_token(
    State(doors): State<Doors>,
    caller: Caller,
    JsonBody(body): JsonBody<CreateToken>,
) -> Result<Json<NewToken>, ApiError> {
    let user = body.user.unwrap_or(caller.0.user.id);
    let expires = body.expires.or(caller.0.expires);
    let new = doors
        .control
        .create_token(&caller.0, user, &body.label, expires)
        .await?;
    let names = doors.names(&caller, vec![user], Vec::new()).await?;
    Ok(Json(NewToken {
        token: Token::of(new.token, &names),
        secret: new.secret.expose().to_owned(),
    }))
}

/// Take a token back. It opens nothing from now on.
#[utoipa::path(delete, path = "/tokens/{token}", tag = "people", params(("token" = TokenId, Path)), responses((status = 200, description = "It is done.", body = Done)))]
pub(crate) async fn revoke_token(
    State(doors): State<Doors>,
    caller: Caller,
    Id(token): Id<TokenId>,
) -> Result<Json<Done>, ApiError> {
    doors.control.revoke_token(caller.asker(), token).await?;
    doors.doubts.send_modify(|doubts| *doubts += 1);
    Ok(Done::JSON)
}
