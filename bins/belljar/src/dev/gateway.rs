//! The way to the model without a control plane.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::{Gateway, GatewayError};
use bytes::Bytes;
use causes::with_causes;
use cli::Screen;
use domain::{Author, Block, Delta, Event, Message, MessageId, Price, Role, Timestamp, ToolCall, UserId};
use llm::{Counted, Head, Reply, StreamEvent, request_body};
use protocol::{Refusal, RefusalCode, TurnReply, TurnRequest};
use providers::{Model, ModelError, Providers};

/// Tries of one turn; the client of the models tries each of them several times by itself.
const ATTEMPTS: u32 = 2;

/// Calls the model itself and keeps the history in memory.
pub(crate) struct DirectGateway<'s> {
    providers: Providers,
    model: Arc<Model>,
    system: String,
    history: Mutex<History>,
    screen: &'s Mutex<Screen>,
    user: UserId,
}

#[derive(Default)]
struct History {
    /// Each message as the model's provider is sent it.
    messages: Vec<Bytes>,
    /// The turn whose results stand in the history: a repeat adds nothing.
    turn: u32,
}

impl<'s> DirectGateway<'s> {
    pub(crate) fn new(providers: Providers, model: Arc<Model>, system: String, screen: &'s Mutex<Screen>) -> Self {
        Self {
            providers,
            model,
            system,
            history: Mutex::default(),
            screen,
            user: UserId::new(),
        }
    }

    /// Adds a prompt; the next turn is the first of its run.
    pub(crate) fn prompt(&self, text: &str) {
        let blocks = vec![Block::Text { text: text.to_owned() }];
        self.add(Role::User, Author::User { id: self.user }, blocks, MessageId::new());
        held(&self.history).turn = 1;
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
        held(&self.history)
            .messages
            .push(self.providers.encode(&self.model, &message));
        message
    }

    async fn call(&self, request: &TurnRequest, id: MessageId) -> Result<Reply, ModelError> {
        let body = {
            let history = held(&self.history);
            let head = Head {
                model: &self.model.provider_name,
                system: &self.system,
                tools: agent::definitions(),
                tool_choice: &request.tool_choice,
                max_tokens: self.model.max_output,
                chat_limit: self.model.chat_limit,
                thinking: self.model.thinking,
                cache: self.model.cache,
            };
            request_body(
                self.model.format,
                &head,
                history.messages.iter().map(|message| &message[..]),
            )
        };
        let retry = |retry: providers::Retry| {
            self.show(Event::ModelRetry {
                model: self.model.name.clone(),
                reason: retry.reason,
            });
        };
        let mut stream = self.providers.stream(&self.model, body, retry).await?;
        let mut offset = 0;
        while let Some(event) = stream.next().await? {
            let delta = match event {
                StreamEvent::Text(text) => {
                    let delta = Delta::Text {
                        message: id,
                        offset,
                        text,
                    };
                    if let Delta::Text { text, .. } = &delta {
                        offset += text.len() as u64;
                    }
                    delta
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

    fn show(&self, event: Event) {
        // As above.
        let _ = held(self.screen).event(event);
    }
}

impl Gateway for DirectGateway<'_> {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        let known = held(&self.history).turn;
        if request.turn > known {
            let blocks = request.results.iter().cloned().map(Block::ToolResult).collect();
            self.add(Role::User, Author::Sandbox, blocks, MessageId::new());
            held(&self.history).turn = request.turn;
        }
        let id = MessageId::new();
        let reply = self.call(request, id).await;
        let reply = reply.map_err(|error| Refusal::new(RefusalCode::ModelFailed, with_causes(&error)))?;
        let cost = self
            .model
            .price
            .as_ref()
            .map(|price: &Price| price.of(&reply.usage))
            .unwrap_or_default();
        let message = self.add(
            Role::Assistant,
            Author::Model {
                name: self.model.name.clone(),
            },
            reply.blocks,
            id,
        );
        let calls: Vec<ToolCall> = message
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::ToolUse(call) => Some(call.clone()),
                _ => None,
            })
            .collect();
        self.show(Event::Message { message });
        self.show(Event::Usage {
            run: request.run,
            model: self.model.name.clone(),
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

/// What is behind a lock; whoever panicked while holding it left it as good as it was.
pub(crate) fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
