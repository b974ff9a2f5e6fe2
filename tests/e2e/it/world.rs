//! The world outside of an installation: servers behind names, and a name server that knows them and nobody else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use http::Response;
use tempfile::TempDir;
use testkit::NameServer;
use testkit::upstream::{AnswerBody, Arrived, Authority, Upstream};
use tokio::runtime::Runtime;

/// What a server says to a request.
pub(crate) type Answers = Box<dyn Fn(&Arrived) -> Response<AnswerBody> + Send + Sync>;

/// Binds the world's files over the machine's, for one process and those that it starts.
const ENTER: &str = r#"set -e
mount --bind "$0/hosts" /etc/hosts
mount --bind "$0/resolv.conf" /etc/resolv.conf
exec "$@""#;

/// Servers, and what an installation sees of them.
pub(crate) struct World {
    pub(crate) names: NameServer,
    pub(crate) servers: Vec<Upstream>,
    pub(crate) runtime: Runtime,
    folder: TempDir,
}

impl World {
    /// A world of these servers: the names under which each is known, and what it says.
    pub(crate) fn new(servers: Vec<(&[&str], Answers)>) -> Self {
        Self::signed_by(&Authority::new(), servers)
    }

    /// The same, whose servers have certificates of this authority.
    pub(crate) fn signed_by(authority: &Authority, servers: Vec<(&[&str], Answers)>) -> Self {
        let runtime = Runtime::new().expect("start a runtime");
        let servers: Vec<_> = servers
            .into_iter()
            .map(|(names, answers)| (names, runtime.block_on(Upstream::start(authority, names, answers))))
            .collect();
        let known: BTreeMap<String, Ipv4Addr> = servers
            .iter()
            .flat_map(|(names, server)| names.iter().map(|name| ((*name).to_owned(), server.address())))
            .collect();
        let names = runtime.block_on(NameServer::start(known));
        let folder = tempfile::tempdir().expect("make a folder");
        for (name, text) in [
            ("hosts", "127.0.0.1 localhost\n".to_owned()),
            (
                "resolv.conf",
                format!("nameserver {}\noptions timeout:5 attempts:1\n", names.address()),
            ),
            ("authority.pem", authority.pem()),
        ] {
            fs::write(folder.path().join(name), text).expect("write a file");
        }
        Self {
            names,
            servers: servers.into_iter().map(|(_, server)| server).collect(),
            runtime,
            folder,
        }
    }

    /// The words before a command that shall live in this world.
    pub(crate) fn enter(&self) -> Vec<OsString> {
        let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER];
        let words = words.into_iter().map(OsString::from);
        words.chain([self.folder.path().into()]).collect()
    }

    /// The file that says whom to trust here.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// What tells programs whom to trust here.
    pub(crate) fn environment(&self) -> [(String, OsString); 2] {
        // A folder without certificates: the machine's own authorities are none here.
        [
            ("SSL_CERT_FILE".to_owned(), self.authority().into()),
            ("SSL_CERT_DIR".to_owned(), "/nonexistent".into()),
        ]
    }
}
