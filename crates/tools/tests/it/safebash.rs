//! `safebash` with real programs.

use serde_json::json;

use crate::bench::Bench;

async fn ok(bench: &Bench, command: &str) -> String {
    bench.ok("safebash", json!({ "command": command })).await
}

async fn error(bench: &Bench, command: &str) -> String {
    bench.error("safebash", json!({ "command": command })).await
}

#[tokio::test]
async fn programs_that_look_are_run_in_the_workspace() {
    let bench = Bench::new();
    bench.put("a.csv", "name,n\nx,3\ny,1\ny,1\n");
    bench.put("b.json", "{\"k\": [1, 2]}");
    bench.put("sub/c.txt", "needle in c\n");
    for (command, expected) in [
        ("ls", "a.csv\nb.json\nsub\n"),
        ("head -2 a.csv", "name,n\nx,3\n"),
        ("wc -l a.csv", "4 a.csv\n"),
        ("cut -d , -f 2 a.csv", "n\n3\n1\n1\n"),
        ("sort -t, -k2n -u a.csv", "name,n\ny,1\nx,3\n"),
        ("uniq -d a.csv", "y,1\n"),
        ("grep -rn needle .", "./sub/c.txt:1:needle in c\n"),
        ("grep -c y /workspace-is-elsewhere a.csv", ""),
        ("jq -c .k b.json", "[1,2]\n"),
        ("jq -r --arg w x '\"\\($w) \\(.k | length)\"' b.json", "x 2\n"),
        ("find . -name '*.txt' -type f", "./sub/c.txt\n"),
        ("find . \\( -name '*.csv' -o -name '*.json' \\) -printf '%f\\n'", ""),
        ("cat *.json", "{\"k\": [1, 2]}"),
        ("ls s*/c.* [ab].csv", "a.csv\nsub/c.txt\n"),
        ("echo *.none '*'", "*.none *\n"),
        ("printf '%s-%s\\n' a 'b c'", "a-b c\n"),
        ("date -u -d @0 +%Y", "1970\n"),
        ("basename sub/c.txt .txt", "c\n"),
        ("stat -c %s b.json", "13\n"),
        ("sha256sum --tag b.json", ""),
        ("diff a.csv a.csv", "[no output]"),
        ("diff -q a.csv b.json", "Files a.csv and b.json differ\n[exit code 1]"),
        ("grep nothing a.csv", "[exit code 1]"),
        ("file -b --mime-type b.json", "application/json\n"),
        ("du -sb sub/c.txt", "12\tsub/c.txt\n"),
        ("tree -a --noreport sub", "sub\n└── c.txt\n"),
        ("rg -n needle", "sub/c.txt:1:needle in c\n"),
    ] {
        if command.starts_with("grep -c y /workspace-is") {
            assert!(error(&bench, command).await.contains("No such file"), "{command}");
            continue;
        }
        let said = ok(&bench, command).await;
        assert!(said == expected || expected.is_empty(), "{command}: {said}");
    }
}

#[tokio::test]
async fn threat_103_a_refusal_runs_nothing() {
    let bench = Bench::new();
    for command in [
        "ls; touch hit",
        "ls && touch hit",
        "ls | tee hit",
        "ls $(touch hit)",
        "ls `touch hit`",
        "ls\ntouch hit",
        "ls > hit",
    ] {
        let said = error(&bench, command).await;
        assert!(said.starts_with("not run: "), "{command}: {said}");
        let (_, why) = said.split_at("not run: ".len());
        assert_eq!(said.matches(why).count(), 1, "said once: {said}");
    }
    assert!(!bench.at("hit").exists());
}

#[tokio::test]
async fn threat_103_a_files_name_is_never_a_flag() {
    let bench = Bench::new();
    bench.put("-exec", "");
    bench.put("--output=hit", "content\n");
    let said = ok(&bench, "cat *").await;
    assert_eq!(said, "content\n");
    assert_eq!(ok(&bench, "ls *t").await, "./--output=hit\n");
    assert!(!bench.at("hit").exists());
}

#[tokio::test]
async fn threat_112_the_kernel_holds_what_the_table_says() {
    let bench = Bench::new();
    let secret = bench.outside("secret");
    std::os::unix::fs::symlink(&secret, bench.at("link")).unwrap();
    for command in [
        format!("cat {}", secret.display()),
        "cat link".to_owned(),
        "cat ../outside/secret".to_owned(),
        "cat /etc/shadow".to_owned(),
        "cat /proc/self/environ".to_owned(),
        "cat /proc/1/cmdline".to_owned(),
        "head -c 10 /dev/tty".to_owned(),
        format!("grep -r secret {}", bench.outside("").display()),
        "ls /root".to_owned(),
        "find /home -maxdepth 1".to_owned(),
        format!("jq -n --rawfile a {} $a", secret.display()).replace("$a", "'$a'"),
    ] {
        let said = error(&bench, &command).await;
        assert!(
            said.contains("ermission denied") || said.contains("Could not open"),
            "{command}: {said}"
        );
        assert!(!said.contains("the secret"), "{command}: {said}");
    }
    // What the session may see, it sees.
    assert!(ok(&bench, "ls /usr/bin").await.contains("grep"));
}

#[tokio::test]
async fn threat_115_what_a_program_writes_is_clean_and_bounded() {
    let mut bench = Bench::new();
    bench.put(
        "colours",
        b"\x1b[31mred\x1b[0m \x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\ \x1b]0;title\x07\x08end\n",
    );
    assert_eq!(ok(&bench, "cat colours").await, "red click end\n");
    assert_eq!(*bench.progress.lock().unwrap(), "red click end\n");
    bench.put("\x1b[31mname", "");
    let said = ok(&bench, "ls").await;
    assert!(!said.contains('\x1b'), "{said:?}");

    bench.limits.output_bytes = 5_000;
    bench.put("bomb", "boom\n".repeat(1_000_000));
    let said = ok(&bench, "cat bomb").await;
    assert!(
        said.len() <= 5_000 && said.contains("all of it is in /workspace/.belljar/cat-"),
        "{said}"
    );
    bench.limits.tool_seconds = 1;
    let said = error(&bench, "seq 1 999999999999").await;
    assert!(said.contains("killed: it took longer than 1 s"), "{said}");
}

#[tokio::test]
async fn what_is_not_installed_is_said() {
    let bench = Bench::new();
    let said = error(&bench, "frobnicate x").await;
    assert!(
        said.contains("\"frobnicate\" is not one of the programs")
            && said.contains(" grep ")
            && said.contains("use exec"),
        "{said}"
    );
}
