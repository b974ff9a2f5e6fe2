use super::*;

fn checked(command: &str) -> Result<String, Refused> {
    let words: Vec<String> = super::super::words::split(command)
        .unwrap()
        .iter()
        .map(super::super::words::plain)
        .collect();
    check(&words).map(|command| {
        format!("{} {}", command.name, command.arguments.join(" "))
            .trim()
            .to_owned()
    })
}

#[test]
fn every_line_of_the_table_is_understood() {
    for (name, grammar) in &*TABLE {
        assert!(name.split(' ').count() <= 2 && !name.starts_with('-'), "{name}");
        for flag in grammar.flags.keys() {
            let words = grammar.shape == Shape::Words;
            let letter = flag.len() == 2 && flag.starts_with('-') && *flag != "--";
            let long = flag.len() > 3 && flag.starts_with("--") && !flag.contains(['=', ':']);
            assert!(letter || long || (words && flag.starts_with('-')), "{name}: {flag}");
        }
        assert!(grammar.always.iter().all(|word| word.starts_with('-')), "{name}");
    }
    assert!(TABLE.len() > 50);
}

#[test]
fn what_looks_is_run() {
    for (command, expected) in [
        ("ls -la /workspace", "ls -la /workspace"),
        (
            "grep -rn --include='*.rs' -e 'fn main' .",
            "grep -rn --include=*.rs -e fn main .",
        ),
        ("head -20 a.csv", "head -20 a.csv"),
        ("head -n5 a.csv", "head -n5 a.csv"),
        (
            "find . -name '*.js' -not -path './x/*' -print0",
            "find . -name *.js -not -path ./x/* -print0",
        ),
        ("find . \\( -name a -o -name b \\)", "find . ( -name a -o -name b )"),
        ("date +%s", "date +%s"),
        ("jq -r --arg a b '.x' f.json", "jq -M -r --arg a b .x f.json"),
        (
            "git log --oneline -5 main..dev -- src",
            "git log --no-ext-diff --no-textconv --no-show-signature --oneline -5 main..dev -- src",
        ),
        ("git status -sb -uno", "git status -sb -uno"),
        (
            "git diff -M90% HEAD~1",
            "git diff --no-ext-diff --no-textconv -M90% HEAD~1",
        ),
        ("pdftotext -layout a.pdf -", "pdftotext -layout a.pdf -"),
        (
            "rg -n -g '*.rs' pattern",
            "rg --no-config --color=never -n -g *.rs pattern",
        ),
        ("grep -- --exec file", "grep -- --exec file"),
        ("tree -L 2 -a", "tree -L 2 -a"),
    ] {
        assert_eq!(checked(command).as_deref(), Ok(expected));
    }
}

#[test]
fn threat_105_wrappers_and_shells_are_not_in_the_table() {
    for command in [
        "VAR=1 ls",
        "PATH=/tmp ls",
        "env ls",
        "xargs ls",
        "nice ls",
        "timeout 5 ls",
        "nohup ls",
        "time ls",
        "command ls",
        "exec ls",
        "sh -c ls",
        "bash -c ls",
        "/bin/sh -c ls",
        "/bin/ls",
        "./ls",
        "../ls",
        "busybox sh",
        "dash",
        "zsh -c ls",
        "eval ls",
        "builtin ls",
        "source x",
        ". x",
        "sudo ls",
        "su -c ls",
        "doas ls",
        "setsid ls",
        "stdbuf -o0 ls",
        "ionice ls",
        "chroot / ls",
        "unshare ls",
        "nsenter ls",
        "strace ls",
        "gdb ls",
        "parallel ls",
        "watch ls",
        "script -c ls",
        "ssh host ls",
        "flock x ls",
        "systemd-run ls",
        "tee x",
        "dd of=x",
        "cp a b",
        "mv a b",
        "rm a",
        "ln -s a b",
        "touch a",
        "mkdir a",
        "chmod 777 a",
        "curl x",
        "wget x",
        "nc x 1",
        "LS",
        "ls\u{a0}-l",
        "",
    ] {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert!(matches!(check(&words), Err(Refused::Program { .. })), "{command}");
    }
}

#[test]
fn threat_106_find_neither_runs_nor_writes_nor_deletes() {
    for command in [
        "find . -exec id ';'",
        "find . -execdir id ';'",
        "find . -ok id ';'",
        "find . -okdir id ';'",
        "find . -delete",
        "find . -fprint out",
        "find . -fprint0 out",
        "find . -fprintf out %p",
        "find . -fls out",
        "find -files0-from list",
        "find . -name a -exec id ';'",
        "find . -name -exec -delete",
        "find . '-exec' id ';'",
        "find . -D exec",
        "find -O3 .",
        "find . -L",
        "find . --delete",
        "find . -exe id",
        "find . -- -delete",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::Flag { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
}

#[test]
fn threat_107_git_reads_and_runs_nothing_of_others() {
    for command in [
        "git",
        "git -c core.pager=id log",
        "git -c alias.x='!id' x",
        "git --exec-path=/tmp log",
        "git --exec-path log",
        "git -C other log",
        "git --git-dir=/tmp/x log",
        "git --git-dir /tmp/x log",
        "git --work-tree=/ status",
        "git --config-env=core.pager=X log",
        "git -p log",
        "git --paginate log",
        "git --no-pager log",
        "git --bare log",
        "git bisect run id",
        "git submodule foreach id",
        "git submodule update",
        "git clone ext::id",
        "git clone file:///x",
        "git fetch --upload-pack=id",
        "git push --receive-pack=id",
        "git ls-remote --upload-pack=id x",
        "git archive --exec=id",
        "git archive --output=x HEAD",
        "git config core.pager id",
        "git commit",
        "git checkout .",
        "git reset",
        "git clean -fd",
        "git stash",
        "git filter-branch",
        "git rebase --exec id",
        "git difftool",
        "git mergetool",
        "git gc",
        "git hook run x",
        "git help log",
        "git instaweb",
        "git send-email",
        "git daemon",
        "git upload-pack .",
        "git credential fill",
        "git LOG",
        "git lo",
        "git update-index",
        "git apply x",
        "git am x",
        "git worktree add x",
        "git notes edit",
        "git replace",
        "git reflog expire",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::SubCommand { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
    for command in [
        "git grep -O x",
        "git grep -Oid x",
        "git grep --open-files-in-pager=id x",
        "git grep --textconv x",
        "git grep --no-index x",
        "git grep -f list",
        "git diff --ext-diff",
        "git diff --textconv",
        "git diff --output=x",
        "git diff --output x",
        "git diff --outp=x",
        "git diff --no-index a b",
        "git diff -O x",
        "git log --output=x",
        "git log --ext-diff",
        "git log --textconv",
        "git log --show-signature",
        "git show --ext-diff",
        "git show --textconv",
        "git show --output=x",
        "git diff --ext",
        "git log --onel",
        "git log --output-indicator-new=x",
        "git log --stdin",
        "git blame --contents x",
        "git blame -S x",
        "git blame --ignore-revs-file x",
        "git ls-files -X x",
        "git ls-files --exclude-from=x",
        "git ls-files --recurse-submodules",
        "git cat-file --textconv x",
        "git cat-file --filters x",
        "git cat-file --batch",
        "git branch -D x",
        "git branch -m a b",
        "git branch --edit-description",
        "git tag -d x",
        "git tag -s x",
        "git rev-parse --parseopt",
        "git rev-list --stdin",
        "git for-each-ref --shell",
        "git status --column",
        "git diff --submodule=diff",
        "git log --remerge-diff",
        "git describe --dirty",
        "git remote --add x",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::Flag { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
    for command in [
        "git branch new",
        "git tag v1",
        "git remote add x y",
        "git remote update",
        "git branch -- x",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::Operands { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
    // Whatever the repository says of its own.
    assert!(checked("git diff").unwrap().contains("--no-ext-diff --no-textconv"));
}

#[test]
fn threat_112_no_program_that_runs_programs_is_in_the_table() {
    for command in [
        "tar --to-command=id -xf x",
        "tar --checkpoint-action=exec=id x",
        "tar -I id -xf x",
        "tar --use-compress-program=id x",
        "zip -T -TT id x",
        "unzip x",
        "awk 'BEGIN{system(\"id\")}'",
        "gawk x",
        "mawk x",
        "awk '{\"id\"|getline}'",
        "sed -n p x",
        "sed s/a/b/e x",
        "vim x",
        "vi x",
        "ed x",
        "emacs x",
        "nano x",
        "less x",
        "more x",
        "man x",
        "python -c x",
        "python3 -c x",
        "perl -e x",
        "ruby -e x",
        "node -e x",
        "bun x",
        "php -r x",
        "lua x",
        "make",
        "cmake .",
        "npm run x",
        "npx x",
        "cargo run",
        "gcc x",
        "docker run x",
        "crontab -l",
        "at now",
        "gpg x",
        "openssl x",
        "sqlite3 x .shell",
        "psql x",
        "mysql x",
        "tr a b",
        "split x",
        "patch x",
        "rsync -e id x",
        "scp x y",
        "7z x",
        "cpio x",
        "ar x",
        "ld x",
        "ldd x",
        "expect x",
        "tclsh x",
        "screen",
        "tmux",
        "mount",
        "kill 1",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::Program { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
    for command in [
        "rg --pre id x",
        "rg --pre=id x",
        "rg --pre-glob x",
        "rg --search-zip x",
        "rg -z x",
        "rg --hostname-bin id x",
        "rg -f list",
        "rg --ignore-file x",
        "sort --compress-program=id x",
        "sort -o out x",
        "sort --output=out x",
        "sort -T /tmp x",
        "sort -bo out x",
        "sort --files0-from=x",
        "sort -uo out x",
        "diff -l a b",
        "diff --paginate a b",
        "diff -D x a b",
        "diff --to-file=x a",
        "tree -o out",
        "tree -ao out",
        "tree --fromfile",
        "tree -R -H x",
        "file -C -m x",
        "file -m x y",
        "file -f list",
        "file -z x",
        "wc --files0-from=x",
        "du --files0-from=x",
        "du -X x",
        "tail -f x",
        "tail -F x",
        "tail --follow=name x",
        "tail --pid=1 x",
        "date -s now",
        "date --set=now",
        "date -f x",
        "jq -f x",
        "jq -L x .",
        "jq --from-file x",
        "grep -f list x",
        "grep --file=list x",
        "ls --hyperlink",
        "stat --printf",
        "pdftotext --help",
        "cat --",
        "cat --numb x",
    ] {
        if command == "cat --" || command == "stat --printf" {
            continue;
        }
        assert!(
            matches!(checked(command), Err(Refused::Flag { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
    for command in [
        "uniq in out",
        "uniq -c in out",
        "uniq -- in out",
        "date 010100002000",
        "date -u 010100002000",
        "date -- 0101",
        "pdftotext a.pdf",
        "pdftotext a.pdf out.txt",
        "pdftotext - a.pdf",
        "pdftotext a.pdf - x",
        "pdfinfo a b",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::Operands { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
    for command in [
        "tree -Lo 2 out",
        "tree -aL2",
        "stat --printf",
        "grep -e",
        "jq --arg a",
        "ls --all=yes",
        "jq --arg=a b .",
    ] {
        assert!(
            matches!(checked(command), Err(Refused::Value { .. })),
            "{command}: {:?}",
            checked(command)
        );
    }
}

/// A program that takes no value where the table says so would take the next word as a flag, and nobody would have looked at it.
#[test]
fn threat_107_a_value_is_a_value_to_the_program_too() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).current_dir(folder.path());
        command.stdin(std::process::Stdio::null()).output()
    };
    std::fs::write(folder.path().join("file"), "words\n").unwrap();
    let git = ["git", "-c", "user.name=a", "-c", "user.email=a"];
    for more in [&["init", "-q"][..], &["add", "file"], &["commit", "-qm", "one"]] {
        assert!(run(&[&git[..], more].concat()).unwrap().status.success(), "{more:?}");
    }
    let mut tried = 0;
    for (name, grammar) in &*TABLE {
        for (flag, _) in grammar.flags.iter().filter(|(_, value)| **value == Value::One) {
            let mut words: Vec<&str> = name.split(' ').collect();
            words.extend([*flag, "--no-such-flag"]);
            if *name == "git blame" {
                words.extend(["--", "file"]);
            }
            // What is not installed here cannot be asked.
            let Ok(output) = run(&words) else { break };
            let said = String::from_utf8_lossy(&output.stderr);
            for complaint in [
                "unrecognized argument",
                "unrecognized option",
                "invalid option",
                "unknown option",
            ] {
                assert!(!said.contains(complaint), "{words:?}: {said}");
            }
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}
