//! Attempts that are refused: each is told, audited and shown, but no sandbox can fill the books with them.

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
    /// Whether an attempt is the first at its target within a minute, and not one of too many.
    pub(crate) fn is_news(&self, session: SessionId, target: &Target) -> bool {
        self.window(session, |window| {
            window.targets.len() < DISTINCT && window.targets.insert(target.clone())
        })
    }

    /// Takes note of an attempt that is to be answered; true: at once.
    pub(crate) fn is_prompt(&self, session: SessionId) -> bool {
        self.window(session, |window| {
            window.attempts = window.attempts.saturating_add(1);
            window.attempts <= PROMPT
        })
    }

    fn window<T>(&self, session: SessionId, with: impl FnOnce(&mut Window) -> T) -> T {
        let now = Instant::now();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, window| now.duration_since(window.since) < WINDOW);
        with(sessions.entry(session).or_insert_with(|| Window {
            since: now,
            attempts: 0,
            targets: HashSet::new(),
        }))
    }
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
        let news = (0..2_000).filter(|port| attempts.is_news(chatty, &target(*port)));
        assert_eq!(news.count(), DISTINCT);
        let prompt = (0..2_000).filter(|_| attempts.is_prompt(chatty));
        assert_eq!(prompt.count(), PROMPT as usize);
        assert!(attempts.is_news(quiet, &target(1)) && attempts.is_prompt(quiet));
        assert!(!attempts.is_news(quiet, &target(1)));
        advance(WINDOW).await;
        assert!(attempts.is_news(chatty, &target(1)) && attempts.is_prompt(chatty));
    }

    #[test]
    fn a_target_is_fit_to_be_shown() {
        let target = Target::new(&format!("a\0\r\n{}", "b".repeat(5_000)), 443, "tcp");
        assert_eq!(target.host.chars().count(), LONGEST_NAME);
        assert!(!target.refusal().contains(char::is_control));
    }
}
