//! What a call may cost, and what it did. Whole nano-dollars throughout.

mod silence;

use std::time::Duration;

use domain::{Money, Price, Usage};
use llm::{Counted, Reply, StreamEvent, Written};
use protocol::StopReason;
use providers::Model;
use sha2::{Digest, Sha256};
use store::{Charge, OverCap};

pub(crate) use silence::Silence;

/// Fewer tokens than this are no useful answer: a call that cannot have them is not made.
const USEFUL_TOKENS: u64 = 256;

/// Tokens that a model is taken to have thought in a second of silence, where nobody tells how many it were: several times as many
/// as the models that think write. What was reserved bounds it all the same.
const THOUGHT_IN_A_SECOND: u64 = 1_000;

/// The most that a call can cost with this much input and output.
pub(crate) fn worst(price: &Price, input: u64, output: u64) -> Money {
    let part = |tokens: u64, price: i64| Money(i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(price));
    part(input, price.dearest_input()).plus(part(output, price.output))
}

/// Names a price, so that the ledger says by which one a call was charged.
pub(crate) fn version(price: Option<&Price>) -> String {
    let Some(price) = price else {
        return "none".to_owned();
    };
    let text = format!(
        "{},{},{},{},{}",
        price.input, price.output, price.cache_read, price.cache_write, price.cache_write_hour
    );
    hex::encode(&Sha256::digest(text.as_bytes())[..6])
}

/// What can be done about a cap that said no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remedy {
    /// There is enough for an answer of at most so many tokens.
    Clamp(u64),
    /// There would be enough if calls under way cost less than they may.
    Wait,
    /// There is not enough.
    None,
}

/// What to do about a cap that has no room for a call with `input` tokens and `output` wanted at this price.
pub(crate) fn remedy(over: &OverCap, price: &Price, input: u64, output: u64) -> Remedy {
    let unspent = over.limit.minus(over.spent);
    let tokens = |room| fits(price, input, output, room);
    match (tokens(unspent.minus(over.reserved)), tokens(unspent)) {
        (Some(tokens), _) => Remedy::Clamp(tokens),
        (None, Some(_)) => Remedy::Wait,
        (None, None) => Remedy::None,
    }
}

/// The usage of a call, and whether it is our own count: what nobody told about the input is taken as `likely` tokens.
pub(crate) fn usage(reply: &Reply, likely: u64) -> (Usage, bool) {
    match reply.counted {
        Counted::ByProvider => (reply.usage, false),
        Counted::InputByProvider => (reply.usage, true),
        Counted::ByUs => (
            Usage {
                input: likely,
                ..reply.usage
            },
            true,
        ),
    }
}

/// What is charged for an attempt of which nothing came back: its input and what the model may have thought in its silence, as
/// far as what was reserved goes beyond the other `charges`. Nobody knows whether the provider wants anything, and a guess shall
/// not break a cap.
pub(crate) fn lost(
    model: &Model,
    likely: u64,
    silence: Duration,
    reserved: Option<Money>,
    charges: &[Charge],
) -> Charge {
    let mut charge = charge(model, &unheard(0), likely);
    if let Some(reserved) = reserved {
        let thought = thought(model, &charge.usage, silence);
        charge.cost = charge.cost.max(thought).min(left(reserved, charges).max(Money::ZERO));
    }
    charge
}

/// What is charged for a reply that was cut: what was said and, as far as what was reserved goes beyond the other `charges`, what
/// the model may have thought in its silence. Who cuts it, again and again, shall not have thoughts for nothing.
pub(crate) fn cut(
    model: &Model,
    reply: &Reply,
    likely: u64,
    silence: Duration,
    reserved: Option<Money>,
    charges: &[Charge],
) -> Charge {
    let mut charge = charge(model, reply, likely);
    if let Some(reserved) = reserved
        && charge.estimated
    {
        let thought = thought(model, &charge.usage, silence).min(left(reserved, charges));
        charge.cost = charge.cost.max(thought);
    }
    charge
}

/// What this usage costs with what the model may have thought beside it.
fn thought(model: &Model, usage: &Usage, silence: Duration) -> Money {
    let tokens = silence.as_secs().saturating_mul(THOUGHT_IN_A_SECOND);
    let usage = Usage {
        output: usage.output.saturating_add(tokens),
        ..*usage
    };
    model.price.as_ref().map(|price| price.of(&usage)).unwrap_or_default()
}

/// A reply of which nobody knows more than how long it can be.
pub(crate) fn unheard(output: u64) -> Reply {
    Reply {
        blocks: Vec::new(),
        stop: StopReason::Pause,
        usage: Usage {
            output,
            ..Usage::default()
        },
        counted: Counted::ByUs,
    }
}

/// What is left of what was reserved.
pub(crate) fn left(reserved: Money, charges: &[Charge]) -> Money {
    reserved.minus(charges.iter().map(|charge| charge.cost).sum())
}

/// What a call of a model is charged; what nobody counted of the input is taken as it likely was.
pub(crate) fn charge(model: &Model, reply: &Reply, likely: u64) -> Charge {
    let (usage, estimated) = usage(reply, likely);
    Charge {
        model: model.name.clone(),
        price_version: version(model.price.as_ref()),
        usage,
        cost: model.price.as_ref().map(|price| price.of(&usage)).unwrap_or_default(),
        estimated,
    }
}

/// The most tokens, up to `output`, that a call with this input may say for this money; none where that is nothing of use.
pub(crate) fn fits(price: &Price, input: u64, output: u64, money: Money) -> Option<u64> {
    let left = money.minus(worst(price, input, 0)).0;
    let tokens = match price.output {
        _ if left < 0 => return None,
        0 => output,
        each => u64::try_from(left / each).unwrap_or(0).min(output),
    };
    (tokens >= USEFUL_TOKENS.min(output)).then_some(tokens)
}

/// Watches what a stream has cost so far.
#[derive(Debug)]
pub(crate) struct Meter {
    price: Price,
    most: Money,
    input: u64,
    written: Written,
}

impl Meter {
    /// A meter that says when a call with so many tokens of input, likely, has cost `most`.
    pub(crate) fn new(price: Price, input: u64, most: Money) -> Self {
        Self {
            price,
            most,
            input,
            written: Written::default(),
        }
    }

    /// Counts all that a model writes: words, thoughts, and the arguments of its calls. False: the reservation is used up.
    pub(crate) fn hear(&mut self, event: &StreamEvent) -> bool {
        match event {
            StreamEvent::Text(words) | StreamEvent::Thinking(words) => self.written.add(words),
            StreamEvent::ToolCallStarted { name, .. } => self.written += Written::call(name),
            StreamEvent::Unshown(written) => self.written += *written,
            // It has finished: there is nothing left to save.
            StreamEvent::Done(_) => return true,
        }
        let usage = Usage {
            input: self.input,
            output: self.written.tokens(),
            ..Usage::default()
        };
        self.price.of(&usage) < self.most
    }
}

#[cfg(test)]
mod tests {
    use store::Cap;

    use super::*;

    const PRICE: Price = Price {
        input: 3_000,
        output: 15_000,
        cache_read: 300,
        cache_write: 3_750,
        cache_write_hour: 6_000,
    };

    fn over(limit: i64, spent: i64, reserved: i64) -> OverCap {
        OverCap {
            cap: Cap::Run,
            limit: Money(limit),
            spent: Money(spent),
            reserved: Money(reserved),
            wanted: Money(i64::MAX),
        }
    }

    #[test]
    fn an_answer_is_clamped_to_what_is_left_and_never_to_nothing() {
        let input = worst(&PRICE, 1_000, 0).0;
        assert_eq!(input, 6_000_000);
        let room = |tokens: i64| input + tokens * 15_000;
        assert_eq!(
            remedy(&over(room(1_000), 0, 0), &PRICE, 1_000, 8_000),
            Remedy::Clamp(1_000)
        );
        assert_eq!(remedy(&over(room(256), 0, 0), &PRICE, 1_000, 8_000), Remedy::Clamp(256));
        assert_eq!(remedy(&over(room(255), 0, 0), &PRICE, 1_000, 8_000), Remedy::None);
        assert_eq!(
            remedy(&over(room(1_000), 0, 2 * input), &PRICE, 1_000, 8_000),
            Remedy::Wait
        );
        assert_eq!(
            remedy(&over(room(1_000), 2 * input, 0), &PRICE, 1_000, 8_000),
            Remedy::None
        );
    }

    #[test]
    fn a_clamped_call_fits() {
        for left in (0..60_000_000_i64).step_by(77_777) {
            if let Remedy::Clamp(tokens) = remedy(&over(left, 0, 0), &PRICE, 1_000, 8_000) {
                assert!(worst(&PRICE, 1_000, tokens).0 <= left, "{left}");
            }
        }
    }

    #[test]
    fn threat_137_a_price_has_a_name_of_its_own() {
        let dearer = Price {
            output: 15_001,
            ..PRICE
        };
        assert_ne!(version(Some(&PRICE)), version(Some(&dearer)));
        assert_eq!(version(Some(&PRICE)), version(Some(&PRICE.clone())));
        assert_eq!(version(None), "none");
    }

    #[test]
    fn threat_128_a_meter_says_when_the_reservation_is_used_up() {
        let written = || StreamEvent::Unshown(Written::of("abc"));
        let started = || StreamEvent::ToolCallStarted {
            id: domain::ToolCallId("a".to_owned()),
            name: "exec".to_owned(),
        };
        let events: [&dyn Fn() -> StreamEvent; 4] = [
            &|| StreamEvent::Text("abc".to_owned()),
            &|| StreamEvent::Thinking("abc".to_owned()),
            &written,
            &started,
        ];
        for (event, most) in events.into_iter().zip([300, 300, 300, 36]) {
            let mut meter = Meter::new(PRICE, 1_000, worst(&PRICE, 1_000, 100));
            let counted = (1..10_000).find(|_| !meter.hear(&event())).unwrap();
            assert!((most / 3..=most).contains(&counted), "{:?}: {counted}", event());
        }
    }

    #[test]
    fn what_nobody_counted_is_counted_by_us() {
        let reply = |counted| Reply {
            blocks: vec![],
            stop: protocol::StopReason::Pause,
            usage: Usage {
                output: 7,
                ..Usage::default()
            },
            counted,
        };
        assert_eq!(usage(&reply(Counted::ByUs), 100).0.input, 100);
        assert!(usage(&reply(Counted::InputByProvider), 100).1);
        assert_eq!(
            usage(&reply(Counted::ByProvider), 100),
            (reply(Counted::ByProvider).usage, false)
        );
    }
}
