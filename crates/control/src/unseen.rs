//! Pictures that a provider refused. It would refuse them each time anew, and the conversation with them: what is sent from then on
//! has a line of words in their place. The messages stay as they are.
//!
//! Which of several it was nobody says in words that can be relied on, so those that are new go first, and then all. After a
//! restart it is learnt anew, by a call that costs nothing.

use std::sync::Arc;

use domain::{Block, Message, ResultPart};
use providers::Model;
use store::Asker;

use crate::history::Cached;
use crate::live::Live;
use crate::{Control, ControlError};

const LEFT_OUT: &str = "[A picture was left out: the model's provider refused it.]";

impl Control {
    /// Leaves out pictures of what this model is sent. False: there is none any more.
    pub(crate) async fn leave_out_pictures(&self, live: &Live, model: &Arc<Model>) -> Result<bool, ControlError> {
        let mut writing = live.writing.lock().await;
        let history = self.history(live, &mut writing, model).await?;
        let mut places = history.pictures_since(history.accepted());
        if places.is_empty() {
            places = history.pictures_since(0);
        }
        for place in &places {
            self.leave_out(live, history, *place).await?;
        }
        writing.unseen.extend(&places);
        Ok(!places.is_empty())
    }

    /// Leaves out the pictures of the message at this place, if the history shows them.
    pub(crate) async fn leave_out(&self, live: &Live, history: &mut Cached, place: i64) -> Result<(), ControlError> {
        if !history.shows_pictures(place) {
            return Ok(());
        }
        let stored = self.0.store.messages(Asker::System, live.session, place - 1, 1).await?;
        if let Some(stored) = stored.into_iter().find(|stored| stored.position == place) {
            history.replace(place, &without_pictures(stored.message));
        }
        Ok(())
    }
}

fn without_pictures(mut message: Message) -> Message {
    for block in &mut message.blocks {
        match block {
            Block::Image(_) => {
                let text = LEFT_OUT.to_owned();
                *block = Block::Text { text };
            }
            Block::ToolResult(result) => {
                for part in &mut result.content {
                    if matches!(part, ResultPart::Image(_)) {
                        let text = LEFT_OUT.to_owned();
                        *part = ResultPart::Text { text };
                    }
                }
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse(_) => {}
        }
    }
    message
}
