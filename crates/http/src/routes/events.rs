//! Watching a session.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use control::{Control, ControlError, Position, Watched};
use domain::{Delta, EventNumber, NumberedEvent, SessionId};
use futures::{Stream, StreamExt, TryStreamExt, future, stream};
use serde::{Deserialize, Serialize};
use store::Asker;
use utoipa::{IntoParams, ToSchema};

use crate::api::Doors;
use crate::authenticate::{Caller, Shown, shut_out};
use crate::body::{Id, Query};
use crate::error::ApiError;

/// How often a silent stream says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Events that are read from the store at a time.
const PAGE: u32 = 256;

/// From where, and for how long.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchEvents {
    /// Only what came after this id; the header `Last-Event-ID` wins over it.
    after: Option<String>,
    /// Whether to wait for more (true), or to end with what there is.
    follow: Option<bool>,
}

/// What one server-sent event carries.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what control's own types are sent as")]
pub(crate) enum Frame {
    /// A durable event.
    Event(NumberedEvent),
    /// Something under way; what it adds up to comes as a durable event.
    Delta(Delta),
}

/// Watch a session: its events so far, then what happens. Each frame's id is `number` or `number:offset`; whoever returns with the last one
/// as `Last-Event-ID` gets the rest, nothing lost and nothing doubled. A user may have 128 streams open; one more is answered with 429.
#[utoipa::path(get, path = "/sessions/{session}/events", tag = "sessions",
    params(("session" = SessionId, Path), WatchEvents, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last frame that arrived.")),
    responses((status = 200, description = "Server-sent events.", body = Frame, content_type = "text/event-stream")))]
pub(crate) async fn watch_events(
    State(doors): State<Doors>,
    caller: Caller,
    shown: Shown,
    Id(session): Id<SessionId>,
    headers: HeaderMap,
    Query(query): Query<WatchEvents>,
) -> Result<impl IntoResponse, ApiError> {
    let from = headers
        .get("last-event-id")
        .map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())
        .or(query.after);
    let from = from.filter(|id| !id.is_empty()).map(|id| id.parse::<Position>());
    let from = from
        .transpose()
        .map_err(|error| ApiError::invalid(error.to_string()))?
        .unwrap_or_default();
    let asker = caller.asker();
    let place = doors.streams.enter(caller.0.user.id)?;
    let watched = if query.follow.unwrap_or(true) {
        doors.control.watch(asker, session, from).await?.boxed()
    } else {
        stored(doors.control.clone(), asker, session, from.number)
            .await?
            .boxed()
    };
    let open = (place, doors.metrics.open_stream());
    // An error ends the stream; whoever watches returns with the id of the last frame.
    let frames = watched.scan(open, |_, seen| {
        let frame = seen.ok().and_then(|(position, seen)| frame(position, &seen));
        future::ready(frame.map(Ok::<Event, Infallible>))
    });
    let frames = frames.take_until(doors.stop.clone().cancelled_owned());
    let frames = frames.take_until(Box::pin(shut_out(doors, caller, shown)));
    // Says at once that the stream is there, before anything happens in the session.
    let hello = stream::once(async { Ok(Event::default().comment("belljar")) });
    let body = Sse::new(hello.chain(frames)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([("x-accel-buffering", "no")], body))
}

/// The events after `after` as they are stored, page by page.
async fn stored(
    control: Control,
    asker: Asker,
    session: SessionId,
    after: EventNumber,
) -> Result<impl Stream<Item = Result<(Position, Watched), ControlError>> + Send, ApiError> {
    let first = control.events(asker, session, after, PAGE).await?;
    let pages = stream::try_unfold(Some(first), move |page| {
        let control = control.clone();
        async move {
            let Some(page) = page else { return Ok(None) };
            let next = match page.last() {
                Some(last) => Some(control.events(asker, session, last.number, PAGE).await?),
                None => None,
            };
            Ok::<_, ControlError>(Some((page, next)))
        }
    });
    Ok(pages
        .map_ok(|page| {
            stream::iter(
                page.into_iter()
                    .map(|event| Ok((event.number.into(), Watched::Event(event.into())))),
            )
        })
        .try_flatten())
}

fn frame(position: Position, seen: &Watched) -> Option<Event> {
    let frame = Event::default().id(position.to_string());
    let frame = match seen {
        Watched::Event(event) => frame.json_data(event.as_ref()),
        Watched::Delta(delta) => frame.json_data(delta.as_ref()),
    };
    match frame {
        Ok(frame) => Some(frame),
        Err(error) => {
            tracing::error!(%error, "an event cannot be written as JSON");
            None
        }
    }
}
