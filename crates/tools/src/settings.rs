//! What the tools are given.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where the tools work, and with what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The session's files, called `/workspace` by models; read and written, and every program's current folder.
    pub workspace: PathBuf,
    /// The skills, called `/skills`; read only. It may be missing: then there are none.
    pub skills: PathBuf,
    /// What the image brings along, called `/knowledge`; read only. It may be missing.
    pub knowledge: PathBuf,
    /// The socket at which code calls services, where there is one.
    pub services: Option<PathBuf>,
    /// The whole environment of the programs that tools start; holds no secret.
    pub environment: BTreeMap<String, String>,
    /// The command that becomes a program's supervisor ([`supervise`](crate::supervise)): `/proc/self/exe supervise`, say.
    pub supervisor: Vec<OsString>,
    /// Mebibytes of heap that code in `exec` may use.
    pub exec_heap_mib: u32,
}

impl Settings {
    /// The places of a sandbox, with this supervisor.
    #[must_use]
    pub fn sandbox(supervisor: Vec<OsString>, environment: BTreeMap<String, String>) -> Self {
        Self {
            workspace: "/workspace".into(),
            skills: "/skills".into(),
            knowledge: "/knowledge".into(),
            services: None,
            environment,
            supervisor,
            exec_heap_mib: 512,
        }
    }
}
