//! A call is made: what is said is handed on as it comes, metered, and paid.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use link::server::ServiceAnswer;
use llm::{Reply, StreamEvent};
use protocol::{ModelRoute, ServiceFailure};
use providers::{ModelError, Relay, RelayCall, RelayEvent};
use serde_json::{Value, json};
use store::Charge;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::failure::{self, refused};
use super::masked::Masked;
use super::reserve::Reserved;
use super::told::Told;
use super::{Answer, Wanted, whole};
use crate::Control;
use crate::live::{Active, Live, lock};
use crate::money::{self, Meter, Silence};

/// Events that wait for a program to read them; the provider waits then.
const WAITING: usize = 16;

/// How a stream ended for the program.
enum End {
    /// As the model ended it.
    Whole(Reply),
    /// Nobody reads it any more.
    Gone,
    /// With an error, which the program is told of.
    Failed(ServiceFailure),
}

impl Control {
    /// Reserves, asks, hands on, charges.
    pub(super) async fn talk(&self, live: &Arc<Live>, wanted: Wanted<'_>, mut answer: Answer, told: &mut Told) {
        let reserved = match self.reserve_for(&wanted, &mut answer).await {
            Ok(Some(reserved)) => reserved,
            Ok(None) => {
                told.is_news = false;
                return;
            }
            Err(failure) => {
                self.refuse_program(live, told, &failure).await;
                let _ = answer.send(Err(failure));
                return;
            }
        };
        let Wanted { model, request, .. } = &wanted;
        let call = RelayCall {
            format: wanted.format,
            body: request.body(&model.provider_name, reserved.output, model.chat_limit),
            streams: request.streams,
            betas: wanted.betas.clone(),
        };
        if wanted.request.streams {
            self.stream(live, &wanted, &reserved, call, answer, told).await;
        } else {
            self.at_once(live, &wanted, &reserved, call, answer, told).await;
        }
        self.0.freed.notify_waiters();
    }

    /// An answer that comes in one piece. Once it is asked for it is waited for even where nobody wants it any more: the provider
    /// does not take it back, and nobody else can say what it cost.
    async fn at_once(
        &self,
        live: &Arc<Live>,
        wanted: &Wanted<'_>,
        reserved: &Reserved,
        call: RelayCall,
        answer: Answer,
        told: &mut Told,
    ) {
        let likely = wanted.request.likely();
        // Of what comes in one piece all is unseen.
        let silence = Silence::after(Duration::ZERO, true);
        let asked = tokio::select! {
            biased;
            () = self.no_longer(&wanted.active) => None,
            asked = self.0.providers.relay_whole(&wanted.model, call) => Some(asked),
        };
        let (charges, outcome) = match asked {
            Some(Ok((bytes, reply))) => {
                let json = String::from_utf8_lossy(&bytes).into_owned();
                let bytes = Bytes::from(self.0.secrecy.masks().json(json));
                self.learn(live, wanted, &reply);
                told.bytes = bytes.len() as u64;
                (vec![money::charge(&wanted.model, &reply, likely)], Ok(whole(bytes)))
            }
            Some(Err(error)) => {
                let charges = lost(wanted, reserved, silence, &error);
                (charges, Err(failure::of(&error, wanted.route)))
            }
            None => {
                let all = money::unheard(reserved.output);
                let failure = refused(403, "no_run", "the run has ended");
                (vec![money::charge(&wanted.model, &all, likely)], Err(failure))
            }
        };
        if let Err(failure) = &outcome {
            told.fail(failure);
        }
        self.settle_call(live, reserved, charges, told).await;
        // Nobody waits any more where this fails.
        let _ = answer.send(outcome);
    }

    /// An answer as it is written.
    async fn stream(
        &self,
        live: &Arc<Live>,
        wanted: &Wanted<'_>,
        reserved: &Reserved,
        call: RelayCall,
        mut answer: Answer,
        told: &mut Told,
    ) {
        let likely = wanted.request.likely();
        let capped = wanted.active.offer.is_capped().then_some(reserved.amount);
        let silence = Silence::after(Duration::ZERO, wanted.request.thinks_unseen());
        let asked = tokio::select! {
            biased;
            () = answer.closed() => None,
            () = self.no_longer(&wanted.active) => None,
            asked = self.0.providers.relay(&wanted.model, call) => Some(asked),
        };
        let mut relay = match asked {
            Some(Ok(relay)) => relay,
            Some(Err(error)) => {
                let failure = failure::of(&error, wanted.route);
                told.fail(&failure);
                let charges = lost(wanted, reserved, silence, &error);
                self.settle_call(live, reserved, charges, told).await;
                let _ = answer.send(Err(failure));
                return;
            }
            // The provider has the request, and hanging up does not take it back.
            None => {
                told.fail(&refused(499, "given_up", ""));
                let mut charge = money::lost(&wanted.model, likely, silence.total(), capped, &[]);
                pay_for_thoughts(&mut charge, wanted, reserved);
                return self.settle_call(live, reserved, vec![charge], told).await;
            }
        };
        let (send, receive) = mpsc::channel::<Bytes>(WAITING);
        let pieces = stream::unfold(receive, |mut receive| async move {
            Some((Ok(receive.recv().await?), receive))
        });
        let _ = answer.send(Ok(ServiceAnswer {
            media_type: "text/event-stream".to_owned(),
            length: None,
            body: pieces.boxed(),
        }));
        let meter = wanted.model.price.zip(capped);
        let meter = meter.map(|(price, most)| Meter::new(price, likely, most));
        let mut spoken = Spoken {
            route: wanted.route,
            masked: Masked::new(wanted.route, self.0.secrecy.masks()),
            hides_usage: wanted.route == ModelRoute::ChatCompletions && !wanted.request.wants_usage,
            meter,
            silence,
            send,
            events: 0,
            bytes: 0,
        };
        let end = tokio::select! {
            biased;
            () = self.no_longer(&wanted.active) => None,
            end = spoken.hand_on(&mut relay) => Some(end),
        };
        let end = end.unwrap_or_else(|| {
            let failure = refused(403, "no_run", "the run has ended");
            // A program that does not read is not waited for.
            let _ = spoken.send.try_send(spoken.error(&failure));
            End::Failed(failure)
        });
        let is_whole = matches!(end, End::Whole(_));
        let reply = match end {
            End::Whole(reply) => reply,
            End::Gone => {
                told.fail(&refused(499, "given_up", ""));
                relay.partial()
            }
            End::Failed(failure) => {
                told.fail(&failure);
                relay.partial()
            }
        };
        let silence = spoken.silence.total();
        // Hung up before it is paid: nothing more is said.
        drop(relay);
        told.bytes = spoken.bytes;
        self.learn(live, wanted, &reply);
        let charge = if is_whole {
            money::charge(&wanted.model, &reply, likely)
        } else {
            let mut charge = money::cut(&wanted.model, &reply, likely, silence, capped, &[]);
            pay_for_thoughts(&mut charge, wanted, reserved);
            charge
        };
        self.settle_call(live, reserved, vec![charge], told).await;
    }

    /// Takes note of a provider that counts more than the bytes of a request can be: the next ones are bounded by as much more.
    fn learn(&self, live: &Live, wanted: &Wanted<'_>, reply: &Reply) {
        let beyond = reply.usage.total_input().saturating_sub(wanted.request.bound());
        if beyond > 0 {
            let mut known = lock(&live.beyond);
            let known = known.entry(wanted.model.name.clone()).or_default();
            *known = beyond.max(*known);
        }
    }

    async fn settle_call(&self, live: &Arc<Live>, reserved: &Reserved, charges: Vec<Charge>, told: &mut Told) {
        told.charged(&charges);
        self.settle(live, reserved.id, charges).await;
    }

    /// Waits until nothing of a run counts any more, or the process has to stop.
    async fn no_longer(&self, active: &Active) {
        let stops = async {
            self.0.tasks.stop().cancelled().await;
            sleep(self.0.config.drain).await;
        };
        tokio::select! {
            () = active.over.cancelled() => {}
            () = stops => {}
        }
    }
}

/// What a model thinks unseen is billed, and nobody told how much it was: whatever ended the call, all that was set aside is paid.
fn pay_for_thoughts(charge: &mut Charge, wanted: &Wanted<'_>, reserved: &Reserved) {
    if charge.estimated && wanted.request.thinks_unseen() {
        charge.cost = charge.cost.max(reserved.amount);
    }
}

/// What an attempt is charged of which nothing came back.
fn lost(wanted: &Wanted<'_>, reserved: &Reserved, silence: Silence, error: &ModelError) -> Vec<Charge> {
    let capped = wanted.active.offer.is_capped().then_some(reserved.amount);
    let lost = || money::lost(&wanted.model, wanted.request.likely(), silence.total(), capped, &[]);
    error.may_have_cost().then(lost).into_iter().collect()
}

/// What a program is told.
struct Spoken {
    route: ModelRoute,
    masked: Masked,
    /// It did not ask how many tokens there were.
    hides_usage: bool,
    meter: Option<Meter>,
    silence: Silence,
    send: mpsc::Sender<Bytes>,
    events: u64,
    bytes: u64,
}

impl Spoken {
    /// Hands on what is said until it ends, and says how it ended where it failed.
    async fn hand_on(&mut self, relay: &mut Relay) -> End {
        let end = self.listen(relay).await;
        if !matches!(end, End::Gone) {
            self.masked.finish();
            self.send_ready().await;
        }
        if let End::Failed(failure) = &end {
            // Fails where nobody reads any more.
            let _ = self.send.send(self.error(failure)).await;
        }
        end
    }

    async fn listen(&mut self, relay: &mut Relay) -> End {
        loop {
            self.silence.begin();
            let event = tokio::select! {
                biased;
                () = self.send.closed() => return End::Gone,
                event = relay.next() => event,
            };
            let mut event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return End::Whole(relay.partial()),
                Err(error) => return End::Failed(failure::of(&error, self.route)),
            };
            if !event.said.is_empty() {
                self.silence.end();
            }
            let mut within = true;
            let mut done = None;
            for said in std::mem::take(&mut event.said) {
                within &= self.meter.as_mut().is_none_or(|meter| meter.hear(&said));
                if let StreamEvent::Done(reply) = said {
                    done = Some(reply);
                }
            }
            if done.is_none() && !within {
                let words = "the model was cut off: what it said had cost what a cap allows";
                return End::Failed(refused(402, "budget_exhausted", words));
            }
            let hidden = event.data.is_empty() || self.hides_usage && is_usage(&event.data);
            let may_wait = hidden || self.masked.push(event);
            if let Some(reply) = done {
                return End::Whole(reply);
            }
            if !self.send_ready().await {
                return End::Gone;
            }
            if !may_wait {
                let words = "the provider says so much beside a text that no more of it can be looked through";
                return End::Failed(refused(502, "api_error", words));
            }
        }
    }

    /// Hands on what need not wait: whether anybody reads it.
    async fn send_ready(&mut self) -> bool {
        while let Some(event) = self.masked.pop() {
            self.events += 1;
            let frame = frame(&event);
            self.bytes += frame.len() as u64;
            if self.send.send(frame).await.is_err() {
                return false;
            }
        }
        true
    }

    /// A failure in mid-stream, as the program's language says it.
    fn error(&self, failure: &ServiceFailure) -> Bytes {
        let mut error = self.route.error(failure);
        if self.route == ModelRoute::Responses {
            error["type"] = "error".into();
            error["sequence_number"] = self.events.into();
            error["code"] = error["error"]["code"].clone();
            error["message"] = error["error"]["message"].clone();
            error["param"] = Value::Null;
        }
        let name = match self.route {
            ModelRoute::ChatCompletions => "",
            ModelRoute::Messages | ModelRoute::CountTokens | ModelRoute::Responses => "error",
        };
        frame(&RelayEvent {
            name: name.to_owned(),
            data: error.to_string(),
            said: Vec::new(),
        })
    }
}

/// The last chunk of the Chat format, which tells of tokens and nothing else.
fn is_usage(data: &str) -> bool {
    data.contains("\"usage\"")
        && serde_json::from_str::<Value>(data)
            .is_ok_and(|chunk| chunk["choices"] == json!([]) && chunk["usage"].is_object())
}

/// An event as it goes over the wire.
fn frame(event: &RelayEvent) -> Bytes {
    let mut frame = String::with_capacity(event.data.len() + event.name.len() + 32);
    if !event.name.is_empty() {
        frame.push_str("event: ");
        frame.push_str(&event.name);
        frame.push('\n');
    }
    for line in event.data.split('\n') {
        frame.push_str("data: ");
        frame.push_str(line);
        frame.push('\n');
    }
    frame.push('\n');
    frame.into()
}
