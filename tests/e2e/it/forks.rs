//! What sandboxes draw by lot: forks have the same files, and no luck in common.

use std::collections::BTreeSet;

use crate::installation::Installation;

/// Draws from all that programs draw from, a line for each; and looks for what a machine draws once for all times, such as an
/// id, a host's keys or a generator's seed. What the user keeps of it is theirs.
const JOB: &str = r##"
steps:
  - when: { turn: 1, text: keep }
    tools:
      - name: write
        input: { path: "seed", content: "the user's own" }
  - when: { text: keep }
    text: "Kept."
  - when: { turn: 1, text: draw }
    tools:
      - name: exec
        input:
          code: |
            const { execFileSync } = await import("node:child_process");
            const { writeFile } = await import("node:fs/promises");
            const says = (...words) => execFileSync(words[0], words.slice(1)).toString();
            const drawn = [
              Math.random(),
              crypto.randomUUID(),
              says("sh", "-c", "head -c 32 /dev/urandom | sha256sum"),
              says("python3", "-c", String.raw`
            import os, random, tempfile, uuid
            print(random.random(), os.getrandom(16).hex(), uuid.uuid4(), next(tempfile._get_candidate_names()), hash("x"), sep="\n")
            `),
            ];
            await writeFile("drawn", drawn.map((line) => String(line).trim()).join("\n"));
            const names = ["ssh_host_*", "random-seed", ".rnd", "*.seed"].flatMap((name) => ["-o", "-name", name]).slice(1);
            const places = ["/", "/home", "/tmp", "/run", "/knowledge", "/workspace"];
            const look = "cat /etc/machine-id /var/lib/dbus/machine-id 2>/dev/null; find \"$@\" 2>/dev/null; true";
            await writeFile("once", says("sh", "-c", look, "sh", ...places, "-xdev", "(", ...names, ")"));
            return "drawn";
  - when: { text: draw }
    text: "Drawn."
"##;

/// How many lines that draws.
const DRAWS: usize = 8;

#[test]
fn forks_draw_numbers_of_their_own() {
    let belljar = Installation::start(JOB);
    belljar.done(&["run", "--session", "s", "keep"]);
    let forks = belljar.done(&["fork", "s", "--count", "2"]);
    let sessions: Vec<&str> = ["s"].into_iter().chain(forks.lines().map(str::trim)).collect();
    assert_eq!(sessions.len(), 3, "{forks}");
    let mut drawn = BTreeSet::new();
    for session in &sessions {
        belljar.done(&["run", "--session", session, "draw"]);
        assert_eq!(belljar.file(session, "seed"), "the user's own");
        let numbers = belljar.file(session, "drawn");
        assert_eq!(numbers.lines().count(), DRAWS, "{numbers}");
        for number in numbers.lines() {
            assert!(drawn.insert(number.to_owned()), "{number} was drawn before");
        }
        let once = belljar.file(session, "once");
        assert_eq!(once, "", "every sandbox of the image has it, and every fork");
    }
}
