//! What was spent.

use std::str::FromStr;

use axum::Json;
use axum::extract::State;
use domain::{ExternalKey, Money, RunId, SessionId, Timestamp, Usage, UserId};
use serde::{Deserialize, Serialize};
use store::{By, LedgerEntry, Names, UsageFilter, UsageSum};
use utoipa::{IntoParams, ToSchema};

use super::page_length;
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::Query;
use crate::error::ApiError;

/// What sums are made by.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SumBy {
    /// Each session.
    Session,
    /// Each user.
    User,
    /// Each day (UTC).
    #[default]
    Day,
    /// Each model.
    Model,
    /// Each trigger: a door, and the name under which a prompt came by it.
    Trigger,
}

/// Which calls are summed up.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetUsage {
    /// Of this session.
    session: Option<SessionId>,
    /// Of this user; without it an admin sees everybody, others themselves.
    user: Option<UserId>,
    /// From this day on, counted from 1970-01-01 (UTC).
    from_day: Option<i64>,
    /// Up to this day.
    to_day: Option<i64>,
    /// One sum for each of what.
    #[serde(default)]
    #[param(inline)]
    by: SumBy,
}

/// A sum.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sum {
    /// The session's or user's id, the day (`2026-05-01`), the model's name, or the trigger (`api:nightly`).
    name: String,
    /// What people call the session or the user.
    called: Option<String>,
    /// Calls of models.
    calls: i64,
    /// Calls that were counted here, since the provider said nothing.
    estimated: i64,
    /// Tokens.
    usage: Usage,
    /// What was charged.
    cost: Money,
}

/// Sums.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sums {
    /// By name.
    sums: Vec<Sum>,
}

/// The ids after which sums are named.
fn ids<I: FromStr>(sums: &[UsageSum]) -> Vec<I> {
    sums.iter().filter_map(|sum| sum.name.parse().ok()).collect()
}

/// A day that is counted from 1970-01-01, as people write it.
fn date(day: &str) -> String {
    let seconds = day.parse::<i64>().ok().and_then(|day| day.checked_mul(86_400));
    let moment = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    moment.map_or_else(|| day.to_owned(), |moment| moment.strftime("%Y-%m-%d").to_string())
}

/// What was spent.
#[utoipa::path(get, path = "/usage", tag = "money", params(GetUsage), responses((status = 200, description = "Sums of the ledger.", body = Sums)))]
pub(crate) async fn get_usage(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<GetUsage>,
) -> Result<Json<Sums>, ApiError> {
    let filter = UsageFilter {
        session: query.session,
        user: query.user,
        from_day: query.from_day,
        to_day: query.to_day,
    };
    let by = match query.by {
        SumBy::Session => By::Session,
        SumBy::User => By::User,
        SumBy::Day => By::Day,
        SumBy::Model => By::Model,
        SumBy::Trigger => By::Trigger,
    };
    let sums = doors.control.usage(caller.asker(), filter, by).await?;
    let names = match by {
        By::Session => doors.names(&caller, Vec::new(), ids(&sums)).await?,
        By::User => doors.names(&caller, ids(&sums), Vec::new()).await?,
        By::Day | By::Model | By::Trigger => Names::default(),
    };
    let called = |name: &str| match by {
        By::Session => names.session(name.parse().ok()?).map(String::from),
        By::User => names.user(name.parse().ok()?),
        By::Day | By::Model | By::Trigger => None,
    };
    let sums = sums.into_iter().map(|sum| Sum {
        called: called(&sum.name),
        name: if matches!(by, By::Day) {
            date(&sum.name)
        } else {
            sum.name
        },
        calls: sum.calls,
        estimated: sum.estimated,
        usage: sum.usage,
        cost: sum.cost,
    });
    Ok(Json(Sums { sums: sums.collect() }))
}

/// Which calls are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListCalls {
    /// Of this session.
    session: Option<SessionId>,
    /// Of this user; without it an admin sees everybody's, others their own.
    user: Option<UserId>,
    /// Those after this number; from the first where it is left out.
    after: Option<i64>,
    /// At most this many (50; never more than 200).
    limit: Option<u32>,
}

/// A call of a model that was paid.
#[derive(Serialize, ToSchema)]
pub(crate) struct PaidCall {
    /// Its place in the ledger.
    number: i64,
    /// When it was paid.
    at: Timestamp,
    /// Who pays.
    user: UserId,
    /// What people call them.
    user_name: Option<String>,
    /// The session that made it.
    session: SessionId,
    /// What its owner calls it.
    session_key: Option<ExternalKey>,
    /// The run that made it.
    run: RunId,
    /// The model.
    model: String,
    /// Tokens.
    usage: Usage,
    /// What was charged.
    cost: Money,
    /// It was counted here, since the provider said nothing.
    estimated: bool,
}

impl PaidCall {
    fn of(entry: LedgerEntry, names: &Names) -> Self {
        Self {
            number: entry.number,
            at: entry.at,
            user: entry.user,
            user_name: names.user(entry.user),
            session: entry.session,
            session_key: names.session(entry.session),
            run: entry.run,
            model: entry.model,
            usage: entry.tokens.usage(),
            cost: entry.cost,
            estimated: entry.estimated,
        }
    }
}

/// Calls, the oldest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct PaidCalls {
    /// The oldest first.
    calls: Vec<PaidCall>,
    /// Where the next page begins; none: this was the last.
    next: Option<i64>,
}

/// Every call of a model that was paid, of runs and of programs in sandboxes, one by one.
#[utoipa::path(get, path = "/usage/calls", tag = "money", params(ListCalls), responses((status = 200, description = "The ledger.", body = PaidCalls)))]
pub(crate) async fn list_calls(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<ListCalls>,
) -> Result<Json<PaidCalls>, ApiError> {
    let filter = UsageFilter {
        session: query.session,
        user: query.user,
        ..UsageFilter::default()
    };
    let limit = page_length(query.limit);
    let after = query.after.unwrap_or(0);
    let entries = doors.control.ledger(caller.asker(), filter, after, limit).await?;
    let full = u32::try_from(entries.len()).is_ok_and(|count| count == limit);
    let users = entries.iter().map(|entry| entry.user).collect();
    let sessions = entries.iter().map(|entry| entry.session).collect();
    let names = doors.names(&caller, users, sessions).await?;
    Ok(Json(PaidCalls {
        next: entries.last().filter(|_| full).map(|entry| entry.number),
        calls: entries.into_iter().map(|entry| PaidCall::of(entry, &names)).collect(),
    }))
}
