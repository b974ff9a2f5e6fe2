//! The way to the model without a control plane.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::{Gateway, GatewayError};
use bytes::Bytes;
use causes::with_causes;
use cli::Screen;
use domain::{Author, Block, Delta, Event, Message, MessageId, Money, Role, Timestamp, ToolCall, ToolResult, UserId};
use llm::{Counted, Head, Opening, Reply, StreamEvent, request_body};
use protocol::{Refusal, RefusalCode, TurnReply, TurnRequest};
use providers::{Model, ModelError, Providers};

/// Tries of one turn; the client of the models tries each of them several times by itself.
const ATTEMPTS: u32 = 2;

/// What a model is told of a call that was under way when its run was ended.
const CUT_OFF: &str = "The run was ended before this call had a result. It may have taken effect, in whole or in part: look before you repeat it.";

/// Calls the model itself, and those that stand in for it, and keeps the history in memory.
pub(crate) struct DirectGateway<'s> {
    providers: Providers,
    models: Vec<Arc<Model>>,
    system: String,
    /// The most that one run may cost.
    cap: Option<Money>,
    history: Mutex<History>,
    screen: &'s Mutex<Screen>,
    user: UserId,
}

#[derive(Default)]
struct History {
    messages: Vec<Message>,
    /// The turn whose results stand in the history: a repeat adds nothing.
    turn: u32,
    /// What the run has cost so far.
    spent: Money,
}

impl History {
    /// The calls of the last reply, where nothing was said to it yet.
    fn open_calls(&self) -> Vec<ToolCall> {
        let last = self.messages.last().filter(|message| message.role == Role::Assistant);
        last.map(calls_of).unwrap_or_default()
    }
}

/// A model has not said all that it wanted.
struct Failed {
    error: ModelError,
    /// Some of it is on the screen already.
    begun: bool,
}

impl From<ModelError> for Failed {
    fn from(error: ModelError) -> Self {
        Self { error, begun: false }
    }
}

impl<'s> DirectGateway<'s> {
    /// `models` are asked in their order, the next where the one before fails.
    pub(crate) fn new(
        providers: Providers,
        models: Vec<Arc<Model>>,
        system: String,
        cap: Option<Money>,
        screen: &'s Mutex<Screen>,
    ) -> Self {
        Self {
            providers,
            models,
            system,
            cap,
            history: Mutex::default(),
            screen,
            user: UserId::new(),
        }
    }

    /// Adds a prompt; the next turn is the first of its run. Calls that the run before left without a result get one that says so.
    pub(crate) fn prompt(&self, text: &str) {
        let cut_off: Vec<Block> = held(&self.history)
            .open_calls()
            .into_iter()
            .map(|call| Block::ToolResult(ToolResult::error(call.id, CUT_OFF)))
            .collect();
        if !cut_off.is_empty() {
            self.add(Role::User, Author::Sandbox, cut_off, MessageId::new());
        }
        let blocks = vec![Block::Text { text: text.to_owned() }];
        self.add(Role::User, Author::User { id: self.user }, blocks, MessageId::new());
        let mut history = held(&self.history);
        history.turn = 1;
        history.spent = Money::default();
    }

    fn add(&self, role: Role, author: Author, blocks: Vec<Block>, id: MessageId) -> Message {
        let message = Message {
            id,
            role,
            author,
            blocks,
            interrupted: false,
            at: Timestamp::now(),
        };
        held(&self.history).messages.push(message.clone());
        message
    }

    /// Asks the first model that answers.
    async fn ask(&self, request: &TurnRequest, id: MessageId) -> Result<(Arc<Model>, Reply), Refusal> {
        let mut failure = String::from("there is no model to ask");
        for model in &self.models {
            let Failed { error, begun } = match self.call(model, request, id).await {
                Ok(reply) => return Ok((Arc::clone(model), reply)),
                Err(failed) => failed,
            };
            failure = with_causes(&error);
            if matches!(error, ModelError::WindowFull { .. }) {
                failure.push_str(": nothing is summed up here, so begin a new conversation");
            }
            if begun || !error.next_model_may_help() {
                break;
            }
            self.tell_retry(model, failure.clone());
        }
        Err(Refusal::new(RefusalCode::ModelFailed, failure))
    }

    async fn call(&self, model: &Arc<Model>, request: &TurnRequest, id: MessageId) -> Result<Reply, Failed> {
        let messages: Vec<Bytes> = {
            let history = held(&self.history);
            let messages = history.messages.iter();
            messages.map(|message| self.providers.encode(model, message)).collect()
        };
        let (name, tools) = (&model.provider_name, agent::definitions());
        let head = Head {
            opening: &Opening::new(model.format, name, &self.system, tools, model.cache),
            tool_choice: &request.tool_choice,
            max_tokens: model.max_output,
            chat_limit: model.chat_limit,
            thinking: model.thinking,
        };
        let body = request_body(&head, messages.iter().map(Bytes::as_ref));
        let retry = |retry: providers::Retry| self.tell_retry(model, retry.reason);
        let mut stream = self.providers.stream(model, body, retry).await?;
        let mut offset = 0;
        let failed = |error, offset| Failed {
            error,
            begun: offset > 0,
        };
        while let Some(event) = stream.next().await.map_err(|error| failed(error, offset))? {
            let delta = match event {
                StreamEvent::Text(text) => {
                    let at = offset;
                    offset += text.len() as u64;
                    Delta::Text {
                        message: id,
                        offset: at,
                        text,
                    }
                }
                StreamEvent::Thinking(text) => Delta::Thinking {
                    message: id,
                    offset: 0,
                    text,
                },
                StreamEvent::ToolCallStarted { .. } | StreamEvent::Unshown(_) => continue,
                StreamEvent::Done(reply) => return Ok(reply),
            };
            // Nobody reads the screen any more: the work goes on all the same.
            let _ = held(self.screen).delta(delta);
        }
        Ok(stream.partial())
    }

    fn tell_retry(&self, model: &Model, reason: String) {
        self.show(Event::ModelRetry {
            model: model.name.clone(),
            reason,
        });
    }

    fn show(&self, event: Event) {
        // As above.
        let _ = held(self.screen).event(event);
    }
}

impl Gateway for DirectGateway<'_> {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        let (known, spent) = {
            let history = held(&self.history);
            (history.turn, history.spent)
        };
        if request.turn > known {
            let blocks = request.results.iter().cloned().map(Block::ToolResult).collect();
            self.add(Role::User, Author::Sandbox, blocks, MessageId::new());
            held(&self.history).turn = request.turn;
        }
        if let Some(cap) = self.cap.filter(|cap| spent >= *cap) {
            let words = format!("the run has cost {spent}, and budget.run lets it cost {cap}");
            return Err(Refusal::new(RefusalCode::BudgetExhausted, words).into());
        }
        let id = MessageId::new();
        let (model, reply) = self.ask(request, id).await?;
        let price = model.price.as_ref();
        let cost = price.map(|price| price.of(&reply.usage)).unwrap_or_default();
        held(&self.history).spent = spent.plus(cost);
        let author = Author::Model {
            name: model.name.clone(),
        };
        let message = self.add(Role::Assistant, author, reply.blocks, id);
        let calls = calls_of(&message);
        self.show(Event::Message { message });
        self.show(Event::Usage {
            run: request.run,
            model: model.name.clone(),
            usage: reply.usage,
            cost,
            estimated: reply.counted != Counted::ByProvider,
        });
        Ok(TurnReply {
            message: id,
            calls,
            stop: reply.stop,
        })
    }

    async fn pause(&self, attempt: u32) -> bool {
        tokio::time::sleep(Duration::from_secs(1)).await;
        attempt < ATTEMPTS
    }
}

fn calls_of(message: &Message) -> Vec<ToolCall> {
    let calls = message.blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(call.clone()),
        _ => None,
    });
    calls.collect()
}

/// What is behind a lock; whoever panicked while holding it left it as good as it was.
pub(crate) fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
