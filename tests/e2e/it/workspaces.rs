//! What workspaces hold, and what is kept of them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::installation::Installation;

/// Everything that there is: kind, mode and owner of each; size, links, time and name of those that are no folders; a hash of
/// the bytes; and what is listed. An archive keeps whole seconds; times of folders are not kept everywhere.
pub(crate) fn files(belljar: &Installation, session: &str) -> String {
    let look = |program: &[&str], paths: &[&str]| {
        let words = [&["sandbox", "exec", session], program, paths].concat();
        let said = belljar.done(&words);
        let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let paths = look(&["find", "/workspace"], &[]);
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    let kinds = look(&["stat", "-c", "%F|%n|%a %u %g"], &paths);
    let of = |is: fn(&str) -> bool| -> Vec<&str> {
        let known = kinds.iter().map(|line| line.split('|'));
        let known = known.filter_map(|mut parts| Some((parts.next()?, parts.next()?)));
        known.filter(|(kind, _)| is(kind)).map(|(_, path)| path).collect()
    };
    let about = look(
        &["stat", "-c", "%F %a %u %g %s %h %Y %N"],
        &of(|kind| kind != "directory"),
    );
    let hashes = look(&["sha256sum"], &of(|kind| kind.starts_with("regular")));
    let listed = belljar.done(&["files", session, "--json"]);
    let listed = listed.lines().map(|line| {
        let file: Value = serde_json::from_str(line).expect("a line of JSON");
        format!("{} {}", file["path"], file["kind"])
    });
    let listed: Vec<_> = listed.collect();
    [kinds, about, hashes, listed].concat().join("\n")
}

/// Whether a file with this content is in a folder or below it.
pub(crate) fn holds(folder: &Path, content: &[u8]) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            holds(&path, content)
        } else {
            fs::read(&path).is_ok_and(|found| found == content)
        }
    })
}
