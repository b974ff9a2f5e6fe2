//! What sandboxes have at `/knowledge`: repositories, and what is made of them.
//!
//! An image's recipe says it, and is read by `images`; `control` has it fetched and built. Both know it from here.

use std::time::Duration;

use policy::HostPattern;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What is in `/knowledge`, and how it comes there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Knowledge {
    /// How often it is fetched and built anew.
    pub refresh: Duration,
    /// How long that may take, from the first clone to the last command.
    pub time: Duration,
    /// What is cloned.
    pub repositories: Vec<Repository>,
    /// Shell commands, in `/knowledge`, as the sandbox's user, in their order.
    pub build: Vec<String>,
    /// A shell command that must end with 0, or what was built does not count.
    pub ready: Option<String>,
    /// What connections of the commands may be for, as a scope's `egress` says it.
    pub egress: Vec<String>,
}

/// A repository of git.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Repository {
    /// Its folder in `/knowledge`.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// The branch that is wanted; the one that the repository itself begins with where left out.
    pub branch: Option<String>,
    /// The host, and the port, of the URL.
    pub host: (String, u16),
}

impl Knowledge {
    /// A text that changes whenever something else is to be built; not with how often or how long.
    #[must_use]
    pub fn key(&self) -> String {
        let parts = (&self.repositories, &self.build, &self.ready, &self.egress);
        hex::encode(Sha256::digest(serde_json::to_vec(&parts).unwrap_or_default()))
    }

    /// What connections may be for while repositories are fetched: a scope's `egress`.
    #[must_use]
    pub fn repository_hosts(&self) -> Vec<HostPattern> {
        patterns(self.repositories.iter().map(Repository::pattern))
    }

    /// What connections may be for while commands run.
    #[must_use]
    pub fn build_hosts(&self) -> Vec<HostPattern> {
        patterns(self.egress.iter().cloned())
    }
}

/// All of them were read when the recipe was checked.
fn patterns(written: impl Iterator<Item = String>) -> Vec<HostPattern> {
    written
        .filter_map(|pattern| HostPattern::parse(&pattern).ok())
        .collect()
}

impl Repository {
    fn pattern(&self) -> String {
        let (host, port) = &self.host;
        format!("{host}:{port}")
    }
}
