//! Sandboxes of Docker's engine: their files are kept outside as everybody's are.

use testkit::{DockerEngine, eventually_asked};

use crate::installation::Installation;
use crate::transcript::Transcript;

/// Files that are told apart, one of them written without end, ten times a second.
const JOB: &str = r##"
steps:
  - when: { turn: 1, text: make }
    tools:
      - name: exec
        input:
          code: |
            const { appendFile, chmod, mkdir, symlink, truncate, writeFile } = await import("node:fs/promises");
            await mkdir("deep/er", { recursive: true });
            for (let at = 0; at < 200; at += 1) await writeFile(`deep/er/${at}`, `file ${at}\n`);
            await writeFile("run.sh", "#!/bin/sh\n");
            await chmod("run.sh", 0o750);
            await symlink("deep/er/7", "link");
            await writeFile("sparse", "beginning");
            await truncate("sparse", 1 << 30);
            for (let at = 0; at < 20; at += 1) {
              await writeFile("busy", `${at}`);
              await new Promise((done) => setTimeout(done, 100));
            }
            return "made";
  - when: { text: make }
    text: "Made."
  - when: { turn: 1, text: look }
    tools:
      - name: exec
        input:
          code: |
            const { execFileSync } = await import("node:child_process");
            return execFileSync("sh", ["-c", "find . -type d -printf '%P %m\\n' | sort; find . ! -type d -printf '%P %y %m %s %l %T@\\n' | sort; cat deep/er/* busy run.sh | sha256sum; stat -c %b sparse | wc -c"]).toString();
  - when: { text: look }
    text: "=== {{ result.0.text }}"
"##;

fn look(belljar: &Installation) -> String {
    let said = Transcript::read(&belljar.done(&["run", "--json", "--session", "s", "look"])).said();
    said.rsplit_once("=== ").expect("what it saw").1.to_owned()
}

#[test]
fn files_of_docker_s_sandboxes_are_kept_outside() {
    let engine = DockerEngine::of_this_process();
    let keys = format!("---\nprovider = \"docker\"\ndocker_socket = {:?}\n", engine.socket());
    let belljar = Installation::start_with(JOB, &keys);
    belljar.done(&["run", "--session", "s", "make"]);
    let before = look(&belljar);
    assert!(
        before.contains("deep/er/199") && before.contains("busy f 644 2"),
        "{before}"
    );
    for _ in 0..2 {
        eventually_asked("the session to be put away", || {
            belljar.run(&["archive", "s"]).status.success().then_some(())
        });
        // Its disk is gone, so all of it comes from outside.
        assert_eq!(look(&belljar), before);
    }
    belljar.replace_everything();
    assert_eq!(look(&belljar), before);
}
