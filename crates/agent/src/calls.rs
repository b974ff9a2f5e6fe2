//! The calls of one reply: made at once, handed in as they end.

use std::pin::pin;
use std::time::{Duration, Instant};

use domain::{ToolCall, ToolResult};
use futures::future::{Either, Fuse, FusedFuture, FutureExt, select};
use futures::stream::{FuturesUnordered, StreamExt};
use protocol::{CallTime, EarlyResults, Start};

use crate::{Gateway, Hands, cut_result};

/// A call that has its result.
struct Made {
    result: ToolResult,
    began: Instant,
    took: Duration,
    handing: Handing,
}

/// How far a result is on its way ahead of the turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handing {
    Not,
    UnderWay,
    /// The turn brings it.
    Refused,
    Kept,
}

/// Makes the calls, and gives the results that the turn is to bring, in the order of the calls, and the times of those. What
/// is there while other calls are still made is handed in ahead, one request at a time; where one is under way when the last
/// call ends it is given up, and the turn brings what it had. `to` is such a request without results.
pub(crate) async fn make_calls(
    gateway: &impl Gateway,
    hands: &impl Hands,
    calls: &[ToolCall],
    start: &Start,
    to: &EarlyResults,
) -> (Vec<ToolResult>, Vec<CallTime>) {
    let making = |(place, call)| async move { (place, make(hands, call, start).await) };
    let mut making: FuturesUnordered<_> = calls.iter().enumerate().map(making).collect();
    let mut all: Vec<Option<Made>> = calls.iter().map(|_| None).collect();
    let mut handing = pin!(Fuse::terminated());
    while !making.is_empty() {
        match select(making.next(), handing.as_mut()).await {
            Either::Left((Some((place, made)), _)) => all[place] = Some(made),
            Either::Left((None, _)) => break,
            Either::Right((kept, _)) => {
                let outcome = if kept { Handing::Kept } else { Handing::Refused };
                change(&mut all, Handing::UnderWay, outcome);
            }
        }
        if !making.is_empty() && handing.is_terminated() && change(&mut all, Handing::Not, Handing::UnderWay) {
            let (results, times) = of(&all, start, |handing| handing == Handing::UnderWay);
            let early = EarlyResults {
                results,
                times,
                ..to.clone()
            };
            handing.set(async move { gateway.hand_in(&early).await }.fuse());
        }
    }
    of(&all, start, |handing| handing != Handing::Kept)
}

/// Changes how far results are; false: there is none.
fn change(all: &mut [Option<Made>], from: Handing, to: Handing) -> bool {
    let mut changed = false;
    for made in all.iter_mut().flatten().filter(|made| made.handing == from) {
        made.handing = to;
        changed = true;
    }
    changed
}

fn of(all: &[Option<Made>], start: &Start, which: impl Fn(Handing) -> bool) -> (Vec<ToolResult>, Vec<CallTime>) {
    let wanted = || all.iter().flatten().filter(|made| which(made.handing));
    let time = |made: &Made| CallTime {
        call: made.result.id.clone(),
        ago: micros(made.began.elapsed()),
        took: micros(made.took),
    };
    let times = wanted().filter(|_| start.traced).map(time).collect();
    (wanted().map(|made| made.result.clone()).collect(), times)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

async fn make(hands: &impl Hands, call: &ToolCall, start: &Start) -> Made {
    let began = Instant::now();
    let mut result = match reject(call, &start.tools) {
        Some(reason) => ToolResult::error(call.id.clone(), reason),
        None => hands.use_tool(call, &start.limits).await,
    };
    // Whatever the hands called it: the model knows the call by its own name.
    result.id.clone_from(&call.id);
    cut_result(&mut result, start.limits.output_bytes);
    Made {
        result,
        began,
        took: began.elapsed(),
        handing: Handing::Not,
    }
}

fn reject(call: &ToolCall, tools: &[String]) -> Option<String> {
    if !tools.contains(&call.name) {
        return Some(format!(
            "There is no tool {:?} here. The tools are: {}.",
            call.name,
            tools.join(", ")
        ));
    }
    if !call.input.is_object() {
        return Some(format!(
            "The arguments of {:?} are not a JSON object, so nothing was done. Call it again with valid JSON.",
            call.name
        ));
    }
    None
}
