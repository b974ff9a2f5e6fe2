//! Recorded exchanges: what a call sends, what the upstream answers, and what the caller gets.

use serde_json::Value;

/// One call of a method and everything that follows from it.
#[derive(Clone, PartialEq, Debug)]
pub struct Fixture {
    /// What it shows.
    pub name: String,
    /// The call's arguments.
    pub arguments: Value,
    /// The exchanges with the upstream, in order.
    pub exchanges: Vec<Exchange>,
    /// What the caller gets.
    pub outcome: Recorded,
}

/// One request and its answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    /// The verb, the path below the base and the query, as they are sent: `GET /contacts?limit=2`.
    pub request: String,
    /// The body that is sent, where it matters. A form is an object of texts.
    pub body: Option<Value>,
    /// The answer's status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body: JSON, or a text as it stands.
    pub answer: Value,
}

/// What a caller gets.
#[derive(Clone, PartialEq, Debug)]
pub enum Recorded {
    /// This result.
    Result(Value),
    /// A failure of this code, with these words in its message.
    Failure {
        /// The reason code.
        code: String,
        /// A part of the message.
        words: String,
    },
}
