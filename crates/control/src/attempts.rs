//! What wants out of a sandbox. At present nothing may; each attempt is told, audited and shown, but no sandbox can fill
//! the books with them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::{Event, SessionId};
use tokio::time::Instant;

/// Distinct targets of one session that are written down in a [`WINDOW`]; more are refused just the same, unwritten.
const DISTINCT: usize = 50;
const WINDOW: Duration = Duration::from_secs(60);
/// Attempts of one session in a [`WINDOW`] that are answered at once. Whoever makes more waits for each answer, so that a
/// program which tries without an end does not take the control plane's time from others.
const PROMPT: u32 = 1_000;
/// How long they wait.
pub(crate) const WAITS: Duration = Duration::from_secs(1);
/// The longest name that DNS knows, as text.
const LONGEST_NAME: usize = 253;

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) protocol: &'static str,
}

impl Target {
    /// A target as an untrusted party wrote it, made fit to be shown.
    pub(crate) fn new(host: &str, port: u16, protocol: &'static str) -> Self {
        let host = host
            .chars()
            .take(LONGEST_NAME)
            .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
            .collect();
        Self { host, port, protocol }
    }

    /// Why it may not be reached, for whoever tried and for whoever watches.
    pub(crate) fn refusal(&self) -> String {
        let Self { host, port, protocol } = self;
        if *protocol == "dns" {
            return format!("{host} is not resolved: sandboxes of this installation have no way out to the network");
        }
        format!("no connection to {host}:{port}: sandboxes of this installation have no way out to the network")
    }

    pub(crate) fn event(&self) -> Event {
        Event::EgressDenied {
            host: self.host.clone(),
            port: self.port,
            protocol: self.protocol.to_owned(),
            reason: self.refusal(),
        }
    }
}

/// Which attempts are worth writing down.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    sessions: Mutex<HashMap<SessionId, Window>>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    attempts: u32,
    targets: HashSet<Target>,
}

impl Attempts {
    /// Takes note of an attempt.
    pub(crate) fn note(&self, session: SessionId, target: &Target) -> Noted {
        let now = Instant::now();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, window| now.duration_since(window.since) < WINDOW);
        let window = sessions.entry(session).or_insert_with(|| Window {
            since: now,
            attempts: 0,
            targets: HashSet::new(),
        });
        window.attempts = window.attempts.saturating_add(1);
        Noted {
            is_news: window.targets.len() < DISTINCT && window.targets.insert(target.clone()),
            is_prompt: window.attempts <= PROMPT,
        }
    }
}

/// What an attempt is among the others of its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Noted {
    /// It is the first at its target within a minute, and not one of too many.
    pub(crate) is_news: bool,
    /// It is answered at once.
    pub(crate) is_prompt: bool,
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_sandbox_fills_the_books() {
        let attempts = Attempts::default();
        let (chatty, quiet) = (SessionId::new(), SessionId::new());
        let target = |number: u16| Target::new("a.example", number, "tcp");
        let noted: Vec<Noted> = (0..2_000).map(|port| attempts.note(chatty, &target(port))).collect();
        assert_eq!(noted.iter().filter(|noted| noted.is_news).count(), DISTINCT);
        assert_eq!(noted.iter().filter(|noted| noted.is_prompt).count(), PROMPT as usize);
        let first = Noted {
            is_news: true,
            is_prompt: true,
        };
        assert_eq!(attempts.note(quiet, &target(1)), first);
        assert!(!attempts.note(quiet, &target(1)).is_news);
        advance(WINDOW).await;
        assert_eq!(attempts.note(chatty, &target(1)), first);
    }

    #[test]
    fn a_target_is_fit_to_be_shown() {
        let target = Target::new(&format!("a\0\r\n{}", "b".repeat(5_000)), 443, "tcp");
        assert_eq!(target.host.chars().count(), LONGEST_NAME);
        assert!(!target.refusal().contains(char::is_control));
    }
}
