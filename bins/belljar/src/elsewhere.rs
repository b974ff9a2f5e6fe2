//! The commands on a system that is not Linux: what is asked of a control plane is asked, and all else says where it is done.

use anyhow::{Context, bail};
use cli::{Client, ClientCommand, ClientError};
use tokio::runtime::Builder;

use crate::arguments::{Arguments, Command};
use crate::client;
use crate::end::End;

/// Does what was typed, if a control plane alone can do it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<End> {
    let Some(command) = asked(&arguments.command) else {
        bail!(
            "this command works on Linux only, on the machine where Belljar runs; from here `belljar run`, `chat`, `sessions` and \
             whatever else asks a control plane do their work: BELLJAR_URL says where it is"
        )
    };
    let (Some(url), Some(token)) = client::named() else {
        return Err(ClientError::Usage(
            "which control plane is meant, and who asks? Set BELLJAR_URL to its address (https://…) and BELLJAR_TOKEN to your token; \
             `belljar token add LABEL` on its machine makes one"
                .into(),
        )
        .into());
    };
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    let asking = async { cli::execute(&Client::new(&url, token)?, command, arguments.json).await };
    Ok(End::Client(runtime.block_on(asking)?))
}

/// What is asked of a control plane. A copy of the store is read by whoever has the store's code.
fn asked(command: &Command) -> Option<ClientCommand> {
    command
        .client()
        .filter(|command| !matches!(command, ClientCommand::Audit(audit) if audit.file.is_some()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn typed(words: &str) -> Arguments {
        let words = ["belljar"].into_iter().chain(words.split(' '));
        Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn what_a_control_plane_does_is_asked_of_it() {
        for words in [
            "run hello",
            "chat",
            "sessions",
            "get session file",
            "snapshot export session file",
            "image generations",
            "sandbox list",
            "audit --verify",
            "token list",
        ] {
            assert!(asked(&typed(words).command).is_some(), "{words}");
        }
    }

    #[test]
    fn what_is_done_on_the_machine_says_so() {
        for words in [
            "up",
            "serve",
            "host",
            "worker",
            "dev hello",
            "check --example",
            "doctor",
            "backup file",
            "restore file",
            "image list",
            "image build",
            "secret list",
            "service list",
            "skill check",
            "audit --verify --file copy",
        ] {
            let refused = run(&typed(words)).map(|_| words).expect_err("it is done on Linux");
            assert!(
                refused.to_string().contains("works on Linux only"),
                "{words}: {refused}"
            );
        }
    }
}
