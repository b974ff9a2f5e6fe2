//! What is run where an image is built, and where it is used: shell commands, each a call of the tool `exec`.
//!
//! So they are run as the agent's own are: by the sandbox's user, below a supervisor that ends everything which they leave
//! behind, and no longer than they may.

use domain::{RunLimits, ToolCall, ToolCallId, ToolResult};
use sandbox::inside;
use serde::Deserialize;
use serde_json::{Value, json};

/// The last words of a command that are kept, in characters.
const KEPT: usize = 4_000;
/// What a call may say: its words as JSON.
const OUTPUT: usize = 64 << 10;

/// Of what is in a repository's `.git`, leaves what was fetched and checked out. The rest says what git is to run: hooks,
/// settings with commands in them. A build may have written it, for any repository, and it must not be obeyed where a fetch has
/// the rights to reach all of them, nor in sessions.
macro_rules! forget_settings {
    () => {
        r#"set -eu
export GIT_TERMINAL_PROMPT=0 GIT_CEILING_DIRECTORIES="$PWD"
git() {
    command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c diff.ignoreSubmodules=all \
        -c submodule.recurse=false -c fetch.recurseSubmodules=false "$@"
}
forget_settings() {
    [ -d "$NAME" ] && [ ! -L "$NAME" ] && [ -d "$NAME/.git" ] && [ ! -L "$NAME/.git" ] || return 1
    format=$(git config --file "$NAME/.git/config" extensions.objectformat) || format=sha1
    for entry in "$NAME"/.git/* "$NAME"/.git/.[!.]* "$NAME"/.git/..?*; do
        case "${entry##*/}" in
            HEAD | index | lfs | logs | modules | objects | packed-refs | refs | shallow) ;;
            *) rm -rf "$entry" ;;
        esac
    done
    rm -rf "$NAME/.git/objects/info"
    git init --quiet --template= --object-format="$format" "$NAME"
    git -C "$NAME" remote add origin "$URL"
    git -C "$NAME" rev-parse -q --verify HEAD >/dev/null 2>&1
}
"#
    };
}

/// Makes a repository's folder what its branch is at its origin, and keeps what builds made and git ignores.
pub(super) const FETCH: &str = concat!(
    forget_settings!(),
    r#"
if forget_settings; then
    git -C "$NAME" fetch --quiet --prune --force --tags --no-write-fetch-head origin '+refs/heads/*:refs/remotes/origin/*'
    [ -n "$BRANCH" ] || git -C "$NAME" remote set-head origin --auto >/dev/null
else
    rm -rf "./$NAME"
    git clone --quiet --template= --no-checkout -- "$URL" "$NAME"
fi
cd "$NAME"
if [ -z "$BRANCH" ]; then
    BRANCH=$(git symbolic-ref --quiet --short refs/remotes/origin/HEAD) || { echo "it is empty: there is no commit in it"; exit 1; }
    BRANCH=${BRANCH#origin/}
fi
git checkout --quiet --force -B "$BRANCH" --track "origin/$BRANCH" --
git reset --quiet --hard "origin/$BRANCH"
git clean -ffdq"#
);

/// Leaves sessions nothing that their git would run because a build wrote it into a `.git`.
pub(super) const SEAL: &str = concat!(
    forget_settings!(),
    r#"
forget_settings || { echo "the builds left no repository of git in /knowledge/$NAME"; exit 1; }
if BRANCH=$(git -C "$NAME" symbolic-ref --quiet --short HEAD); then
    git -C "$NAME" config "branch.$BRANCH.remote" origin
    git -C "$NAME" config "branch.$BRANCH.merge" "refs/heads/$BRANCH"
fi"#
);

/// Brings what came since to where somebody works, unless they have work of their own there.
pub(super) const PULL: &str = r#"export GIT_TERMINAL_PROMPT=0 GIT_CEILING_DIRECTORIES="$PWD"
git -c core.hooksPath=/dev/null -c core.fsmonitor=false -C "$NAME" pull --quiet --ff-only --no-recurse-submodules"#;

/// Runs a command, and says how it ended and its last words. A program that outlives it, and holds its output, is not waited
/// for.
const RUN: &str = r"
let said = '';
const child = spawn('/bin/sh', ['-c', order.command], {
  cwd: order.folder,
  env: { ...process.env, ...order.environment },
  stdio: ['ignore', 'pipe', 'pipe'],
});
for (const stream of [child.stdout, child.stderr]) {
  stream.setEncoding('utf8').on('data', (piece) => { said = (said + piece).slice(-order.kept); });
}
const closed = new Promise((end) => child.on('close', end));
const status = await new Promise((end, fail) => {
  child.on('error', fail);
  child.on('exit', (code, signal) => end(code === null ? String(signal) : String(code)));
});
await Promise.race([closed, new Promise((end) => setTimeout(end, 300))]);
return { status, said };
";

/// How a command ended.
#[derive(Debug, Deserialize)]
pub(super) struct Done {
    /// `0` where all is well; another number, or the name of a signal.
    pub(super) status: String,
    /// Its last words.
    pub(super) said: String,
}

/// The call that runs a command in `/knowledge`, with these variables.
pub(super) fn call(command: &str, environment: &[(&str, &str)]) -> ToolCall {
    let environment: serde_json::Map<_, _> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect();
    let order = json!({
        "command": command,
        "folder": inside::KNOWLEDGE,
        "environment": environment,
        "kept": KEPT,
    });
    ToolCall {
        id: ToolCallId(format!("belljar-{}", domain::SandboxId::new())),
        name: "exec".to_owned(),
        input: json!({ "code": format!("import {{ spawn }} from 'node:child_process';\nconst order = {order};\n{RUN}") }),
    }
}

/// What a call may take that has so many seconds.
pub(super) fn limits(seconds: u64) -> RunLimits {
    RunLimits {
        tool_seconds: seconds.max(1),
        output_bytes: OUTPUT,
        ..RunLimits::default()
    }
}

/// How a command ended, as its call tells; or what the tool said instead.
pub(super) fn read(result: &ToolResult) -> Result<Done, String> {
    let words = result.content.iter().filter_map(|part| match part {
        domain::ResultPart::Text { text } => Some(text.as_str()),
        domain::ResultPart::Image(_) => None,
    });
    let words: Vec<_> = words.collect();
    let words = words.join("\n");
    if result.is_error {
        return Err(words);
    }
    // It comes from a sandbox: it is shown, and nothing is believed but whether it is well.
    serde_json::from_str(words.trim()).map_err(|_| words)
}

#[cfg(test)]
mod tests;
