//! What a program that only looks is told of the world.

use std::collections::BTreeMap;
use std::path::Path;

/// An environment that no session can change.
pub(crate) fn plain_environment() -> BTreeMap<String, String> {
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("TERM", "dumb"),
        ("HOME", "/nonexistent"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Tells Git to take nobody's word: no configuration but the repository's own, and of that nothing that starts a program or a
/// connection. What the repository's own can still name, the kernel does not let it execute.
pub(super) fn for_git<'a>(environment: &mut BTreeMap<String, String>, roots: impl Iterator<Item = &'a Path>) {
    let settings = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("core.untrackedCache", "false"),
        ("core.pager", "cat"),
        ("core.editor", "false"),
        ("core.askPass", ""),
        ("core.sshCommand", "false"),
        ("core.gitProxy", ""),
        ("core.attributesFile", "/dev/null"),
        ("core.excludesFile", "/dev/null"),
        ("credential.helper", ""),
        ("protocol.allow", "never"),
        ("diff.external", ""),
        ("diff.ignoreSubmodules", "all"),
        ("submodule.recurse", "false"),
        ("status.submoduleSummary", "false"),
        ("log.showSignature", "false"),
        ("gpg.program", "false"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("color.ui", "false"),
        ("column.ui", "never"),
        ("help.autoCorrect", "never"),
        ("safe.directory", "*"),
    ];
    let mut set = |name: String, value: &str| environment.insert(name, value.to_owned());
    set("GIT_CONFIG_NOSYSTEM".to_owned(), "1");
    set("GIT_CONFIG_GLOBAL".to_owned(), "/dev/null");
    set("GIT_CONFIG_COUNT".to_owned(), &settings.len().to_string());
    for (index, (key, value)) in settings.iter().enumerate() {
        set(format!("GIT_CONFIG_KEY_{index}"), key);
        set(format!("GIT_CONFIG_VALUE_{index}"), value);
    }
    set("GIT_ALLOW_PROTOCOL".to_owned(), "none");
    set("GIT_ATTR_NOSYSTEM".to_owned(), "1");
    set("GIT_OPTIONAL_LOCKS".to_owned(), "0");
    set("GIT_NO_LAZY_FETCH".to_owned(), "1");
    set("GIT_NO_REPLACE_OBJECTS".to_owned(), "1");
    set("GIT_TERMINAL_PROMPT".to_owned(), "0");
    set("GIT_PAGER".to_owned(), "cat");
    set("GIT_EDITOR".to_owned(), "false");
    // A repository above the session's folders is none of ours.
    let above: Vec<String> = roots
        .filter_map(Path::parent)
        .map(|parent| parent.display().to_string())
        .collect();
    set("GIT_CEILING_DIRECTORIES".to_owned(), &above.join(":"));
}
