//! Git over HTTPS: named repositories, reading, and writing where the rule says so.
//!
//! Only the smart protocol passes, which is three requests for each direction. The dumb one would show single files of the
//! server (`objects/info/alternates`), and LFS hands out tokens of its own.

use http::Method;
use secret::Reference;
use serde::Deserialize;

use super::Head;
use crate::intercept::path::Segments;

/// What git may do on a rule's hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Git {
    /// `owner/name`, without `.git`; `*` is any one part.
    pub repositories: Vec<String>,
    /// Whether it may push.
    #[serde(default)]
    pub write: bool,
    /// The user's name that goes with the token.
    #[serde(default = "access_token")]
    pub user: String,
    /// The token.
    pub secret: Reference,
}

fn access_token() -> String {
    "x-access-token".to_owned()
}

/// The two services of the smart protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Service {
    /// What a fetch talks to.
    UploadPack,
    /// What a push talks to.
    ReceivePack,
}

impl Git {
    /// Whether a request is git's, to a repository and in a way that the rule allows; if not, why.
    pub(crate) fn admit(&self, head: &Head, path: &Segments) -> Result<(), String> {
        let segments = path.as_slice();
        let (repository, service) = match segments {
            [repository @ .., info, refs] if info == "info" && refs == "refs" => {
                let service = match (&head.method, head.query.as_deref()) {
                    (&Method::GET, Some("service=git-upload-pack")) => Service::UploadPack,
                    (&Method::GET, Some("service=git-receive-pack")) => Service::ReceivePack,
                    _ => return Err("only git's smart protocol passes".to_owned()),
                };
                (repository, service)
            }
            [repository @ .., last] if head.method == Method::POST && last == "git-upload-pack" => {
                (repository, Service::UploadPack)
            }
            [repository @ .., last] if head.method == Method::POST && last == "git-receive-pack" => {
                (repository, Service::ReceivePack)
            }
            _ => return Err("it is no request of git's smart protocol, which alone passes".to_owned()),
        };
        if !self.repositories.iter().any(|pattern| matches(pattern, repository)) {
            return Err(format!("the repository {} is not in the rule", repository.join("/")));
        }
        if service == Service::ReceivePack && !self.write {
            return Err(format!(
                "pushing to {} is not allowed, only fetching",
                repository.join("/")
            ));
        }
        Ok(())
    }
}

fn matches(pattern: &str, repository: &[String]) -> bool {
    let Some((last, owners)) = repository.split_last() else {
        return false;
    };
    let last = last.strip_suffix(".git").unwrap_or(last);
    let mut parts = owners.iter().map(String::as_str).chain([last]);
    let same = pattern.split('/').all(|part| {
        parts
            .next()
            .is_some_and(|name| !name.is_empty() && (part == "*" || part == name))
    });
    same && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(write: bool, method: Method, target: &str) -> bool {
        let git = Git {
            repositories: vec!["acme/app".to_owned(), "tools/*".to_owned()],
            write,
            user: access_token(),
            secret: "env:TOKEN".parse().unwrap(),
        };
        let (path, query) = target
            .split_once('?')
            .map_or((target, None), |(path, query)| (path, Some(query)));
        let head = Head {
            method,
            path: path.to_owned(),
            query: query.map(str::to_owned),
            headers: http::HeaderMap::new(),
        };
        Segments::parse(path).is_some_and(|segments| git.admit(&head, &segments).is_ok())
    }

    #[test]
    fn threat_052_only_named_repositories_and_directions_pass() {
        let (get, post) = (Method::GET, Method::POST);
        assert!(admit(
            false,
            get.clone(),
            "/acme/app.git/info/refs?service=git-upload-pack"
        ));
        assert!(admit(false, post.clone(), "/acme/app/git-upload-pack"));
        assert!(admit(false, post.clone(), "/tools/any/git-upload-pack"));
        assert!(admit(true, post.clone(), "/acme/app.git/git-receive-pack"));
        for (method, target) in [
            (&get, "/acme/app.git/info/refs?service=git-receive-pack"),
            (&post, "/acme/app.git/git-receive-pack"),
            (&get, "/acme/app.git/info/refs"),
            (
                &get,
                "/acme/app.git/info/refs?service=git-upload-pack&service=git-receive-pack",
            ),
            (&get, "/acme/app.git/objects/info/alternates"),
            (&get, "/acme/app.git/HEAD"),
            (&post, "/acme/app.git/info/lfs/objects/batch"),
            (&get, "/acme/app.git/git-upload-pack"),
            (&post, "/acme/other.git/git-upload-pack"),
            (&post, "/acme/app.git/../other/git-upload-pack"),
            (&post, "/acme/app.git/%2e%2e/other/git-upload-pack"),
            (&post, "/acme%2fapp/git-upload-pack"),
            (&post, "/tools/git-upload-pack"),
            (&post, "/tools//git-upload-pack"),
            (&post, "/tools/a/b/git-upload-pack"),
            (&post, "/git-upload-pack"),
        ] {
            assert!(!admit(false, method.clone(), target), "{method} {target}");
        }
    }
}
