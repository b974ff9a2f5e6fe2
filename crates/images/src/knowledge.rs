//! What a recipe says of `/knowledge`: the repositories in it, and what is made of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use ::knowledge::{Knowledge, Repository};
use policy::HostPattern;

use crate::recipe::{Faults, Table, Text};
use crate::{Generation, LibraryError};

/// How often what is in `/knowledge` is fetched, where the recipe does not say.
const REFRESH: Duration = Duration::from_secs(30 * 60);
/// How long that may take.
const TIME: Duration = Duration::from_secs(20 * 60);
/// The file beside an image that says what its recipe wants.
const KEPT: &str = "knowledge.json";
/// The most repositories, commands and hosts of one recipe, and the longest of them in bytes.
const MOST: usize = 64;
const LONGEST: usize = 16 << 10;

/// The parts of an `image.toml` that speak of `/knowledge`, as they are written.
#[derive(Default)]
pub(crate) struct Written {
    refresh: Option<Text>,
    repositories: Vec<WrittenRepository>,
    knowledge: Option<WrittenKnowledge>,
}

struct WrittenRepository {
    place: Range<usize>,
    name: Option<Text>,
    url: Option<Text>,
    branch: Option<Text>,
}

#[derive(Default)]
struct WrittenKnowledge {
    place: Range<usize>,
    build: Vec<Text>,
    ready: Option<Text>,
    time: Option<Text>,
    egress: Vec<Text>,
}

/// A recipe without what it says of `/knowledge`: of this, the image is built.
pub(crate) fn left_out(text: &str) -> String {
    let Ok(mut table) = text.parse::<toml::Table>() else {
        return text.to_owned();
    };
    for key in ["refresh", "repositories", "knowledge"] {
        table.remove(key);
    }
    table.to_string()
}

impl Generation {
    /// What is to be in its `/knowledge`, as its recipe said when it was last built; nothing where it said nothing.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn knowledge(&self) -> Result<Option<Knowledge>, LibraryError> {
        let path = self.folder.join(KEPT);
        let read = LibraryError::new("read", &path);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| read(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(read(error)),
        }
    }
}

/// Keeps in an image's folder what its recipe says now: all of it, or what was kept before.
pub(crate) fn keep(folder: &Path, knowledge: Option<&Knowledge>) -> Result<(), LibraryError> {
    let path = folder.join(KEPT);
    let Some(knowledge) = knowledge else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(LibraryError::new("remove", &path)(error)),
            _ => Ok(()),
        };
    };
    let beside = folder.join("knowledge.new");
    let written = serde_json::to_vec(knowledge).map_err(std::io::Error::from);
    written
        .and_then(|text| fs::write(&beside, text))
        .and_then(|()| fs::rename(&beside, &path))
        .map_err(LibraryError::new("write", &path))
}

impl Written {
    /// Reads them; what cannot be read is noted.
    pub(crate) fn read(recipe: &Table<'_>) -> Self {
        let repositories = recipe.tables("repositories").into_iter().map(|table| {
            let written = WrittenRepository {
                place: table.place.clone(),
                name: table.text("name", "\"app\""),
                url: table.required("url", "\"https://git.example.com/acme/app.git\""),
                branch: table.text("branch", "\"main\""),
            };
            table.finish();
            written
        });
        let knowledge = |table: Table<'_>| {
            let written = WrittenKnowledge {
                place: table.place.clone(),
                build: table.texts("build", "\"cd app && npm ci\""),
                ready: table.text("ready", "\"test -d app/node_modules\""),
                time: table.text("time", "\"20m\""),
                egress: table.texts("egress", "\"packages.example.com\""),
            };
            table.finish();
            written
        };
        Self {
            refresh: recipe.text("refresh", "\"30m\""),
            repositories: repositories.collect(),
            knowledge: recipe.table("knowledge").map(knowledge),
        }
    }

    /// What it means; none where it says nothing of `/knowledge`, or where something is wrong with it, which is noted.
    pub(crate) fn check(self, faults: &Faults<'_>) -> Option<Knowledge> {
        if self.repositories.is_empty() {
            if let Some(refresh) = &self.refresh {
                let words = "refresh says how often repositories are fetched, and there are none: add [[repositories]]";
                faults.add(&refresh.span(), words);
            }
            if let Some(knowledge) = &self.knowledge {
                let words = "[knowledge] says what is made of repositories, and there are none: add [[repositories]]";
                faults.add(&knowledge.place, words);
            }
            return None;
        }
        if let Some(one_more) = self.repositories.get(MOST) {
            let words = format_args!("a recipe has at most {MOST} repositories: leave this one away");
            faults.add(&one_more.place, words);
        }
        let mut names = BTreeSet::new();
        let repositories = self.repositories.into_iter().filter_map(|written| {
            let place = written.place.clone();
            let repository = written.check(faults)?;
            if !names.insert(repository.name.clone()) {
                let words = format_args!(
                    "there are two repositories named {:?}: give one another name",
                    repository.name
                );
                faults.add(&place, words);
            }
            Some(repository)
        });
        let repositories = repositories.collect();
        let refresh = duration("refresh", self.refresh, REFRESH, ["1m", "30d"], faults);
        let written = self.knowledge.unwrap_or_default();
        let time = duration("knowledge.time", written.time, TIME, ["1s", "6h"], faults);
        let build = commands("knowledge.build", written.build, faults);
        let ready = commands("knowledge.ready", written.ready.into_iter().collect(), faults).pop();
        let egress = hosts(written.egress, faults);
        Some(Knowledge {
            refresh,
            time,
            repositories,
            build,
            ready,
            egress,
        })
    }
}

impl WrittenRepository {
    fn check(self, faults: &Faults<'_>) -> Option<Repository> {
        let url = self.url?;
        let (place, url) = (url.span(), url.into_inner());
        let host = match host_of(&url) {
            Ok(host) => Some(host),
            Err(words) => {
                // It may hold a password: it is not repeated.
                faults.add(&place, format_args!("repositories.url {words}"));
                None
            }
        };
        // Where it is only guessed from a URL that is wrong, the URL is what is wrong.
        let is_certain = self.name.is_some() || host.is_some();
        let (named_at, name) = match self.name {
            Some(name) => (name.span(), name.into_inner()),
            None => {
                let last = url.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
                (place, last.strip_suffix(".git").unwrap_or(last).to_owned())
            }
        };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.len() <= 100
            && name.chars().all(plain);
        if !is_name && is_certain {
            let words = "is the name of a folder in /knowledge, and should be letters, digits and . _ -, such as name = \"app\"";
            faults.add(&named_at, format_args!("repositories.name {name:?} {words}"));
        }
        let branch = self.branch.map(|branch| {
            if !is_branch(branch.get_ref()) {
                let words = "is no name of a branch, such as \"main\" or \"release/2\"";
                faults.add(
                    &branch.span(),
                    format_args!("repositories.branch {:?} {words}", branch.get_ref()),
                );
            }
            branch.into_inner()
        });
        Some(Repository {
            name,
            url,
            branch,
            host: host?,
        })
    }
}

/// The host and the port that a repository's URL names, or what is wrong with it.
fn host_of(url: &str) -> Result<(String, u16), &'static str> {
    const FORMS: &str = "should be like https://git.example.com/acme/app.git, ssh://git@git.example.com/acme/app.git or \
                         git@git.example.com:acme/app.git";
    if url.len() > LONGEST || url.chars().any(|letter| letter.is_control() || letter.is_whitespace()) {
        return Err(FORMS);
    }
    let (authority, usual, is_ssh) = match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').ok_or(FORMS)?;
            if path.is_empty() || url.contains(['?', '#']) {
                return Err(FORMS);
            }
            match scheme {
                "https" => (authority, 443, false),
                "http" => (authority, 80, false),
                "ssh" => (authority, 22, true),
                _ => return Err(FORMS),
            }
        }
        // As scp writes it: there is no port in it.
        None => {
            let (authority, path) = url.split_once(':').ok_or(FORMS)?;
            if path.is_empty() || !authority.contains('@') || authority.contains('/') {
                return Err(FORMS);
            }
            (authority, 22, true)
        }
    };
    let (user, address) = match authority.rsplit_once('@') {
        Some((user, address)) => (Some(user), address),
        None => (None, authority),
    };
    if user.is_some_and(|user| !is_ssh || user.contains(':')) {
        return Err(
            "has a user or a password in it: leave it out, and let a rule of belljar.toml, [egress.rules.NAME], inject the key",
        );
    }
    if user.is_some_and(|user| user.is_empty() || user.starts_with('-')) || address.starts_with('-') {
        return Err(FORMS);
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !address.ends_with(']') => (host, port.parse().map_err(|_| FORMS)?),
        _ => (address, usual),
    };
    HostPattern::parse(&format!("{host}:{port}")).map_err(|_| FORMS)?;
    if host.contains('*') {
        return Err(FORMS);
    }
    Ok((host.to_owned(), port))
}

/// As git itself would have it, and never an option.
fn is_branch(name: &str) -> bool {
    let plain =
        |letter: char| !letter.is_control() && !letter.is_whitespace() && !"~^:?*[\\\"'`$;&|<>(){}".contains(letter);
    (1..=200).contains(&name.len())
        && !name.starts_with(['-', '/', '.'])
        && !name.ends_with(['/', '.'])
        && !name.ends_with(".lock")
        && !["..", "//", "@{", "/."].iter().any(|part| name.contains(part))
        && name.chars().all(plain)
}

fn duration(key: &str, written: Option<Text>, usual: Duration, bounds: [&str; 2], faults: &Faults<'_>) -> Duration {
    let Some(written) = written else { return usual };
    let [least, most] = bounds;
    let within = read_duration(least)..=read_duration(most);
    match read_duration(written.get_ref()) {
        Some(seconds) if within.contains(&Some(seconds)) => Duration::from_secs(seconds),
        _ => {
            let words = format_args!(
                "{key} = {:?} should be a time from {least} to {most}, such as \"30m\" (s, m, h or d)",
                written.get_ref()
            );
            faults.add(&written.span(), words);
            usual
        }
    }
}

fn read_duration(text: &str) -> Option<u64> {
    let unit = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let seconds = match &text[unit..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds)
}

fn commands(key: &str, written: Vec<Text>, faults: &Faults<'_>) -> Vec<String> {
    if let Some(one_more) = written.get(MOST) {
        faults.add(
            &one_more.span(),
            format_args!("{key} has at most {MOST} commands: put them into a script"),
        );
    }
    let command = |written: Text| {
        let text = written.get_ref();
        if text.trim().is_empty() || text.len() > LONGEST || text.contains('\0') {
            let words = format_args!(
                "{key} should be a command for the shell, of 1 to {LONGEST} bytes, such as \"cd app && npm ci\""
            );
            faults.add(&written.span(), words);
        }
        written.into_inner()
    };
    written.into_iter().map(command).collect()
}

fn hosts(written: Vec<Text>, faults: &Faults<'_>) -> Vec<String> {
    if let Some(one_more) = written.get(MOST) {
        faults.add(
            &one_more.span(),
            format_args!("knowledge.egress has at most {MOST} hosts: leave some away, or write a pattern"),
        );
    }
    let host = |written: Text| {
        if let Err(error) = HostPattern::parse(written.get_ref()) {
            let words = format_args!("knowledge.egress: {error}; write a host, such as \"packages.example.com\"");
            faults.add(&written.span(), words);
        }
        written.into_inner()
    };
    written.into_iter().map(host).collect()
}

#[cfg(test)]
mod tests;
