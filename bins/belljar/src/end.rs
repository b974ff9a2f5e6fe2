//! How a command ends: an exit code, and what went wrong in words.

use std::process::ExitCode;

use cli::{ClientError, Outcome, harmless};

/// How a command ended, where nothing stopped it half-way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It did what was asked.
    Done,
    /// As a client's command ended.
    Client(Outcome),
    /// It found what is wrong, and has said so.
    Found,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        Self::from(match end {
            End::Done => Outcome::Done.code(),
            End::Client(outcome) => outcome.code(),
            End::Found => Outcome::Failed.code(),
        })
    }
}

/// Says what went wrong and what caused it, on stderr; as JSON where that was asked for. That nobody reads on is nothing wrong.
pub(crate) fn tell(error: &anyhow::Error, json: bool) -> ExitCode {
    if let Some(ClientError::Closed) = error.downcast_ref() {
        return ExitCode::from(Outcome::Done.code());
    }
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let text = causes.join(": ");
    let client = error.downcast_ref::<ClientError>();
    let code = match client {
        Some(ClientError::Refused { code, .. }) => code.as_str(),
        _ => "failed",
    };
    if json {
        cli::note(serde_json::json!({ "error": { "code": code, "message": text } }));
    } else {
        cli::note(format_args!("belljar: {}", harmless(&text)));
    }
    ExitCode::from(client.map_or(Outcome::Failed, ClientError::outcome).code())
}
