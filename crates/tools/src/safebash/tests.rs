use super::words::{WordsError, plain, split};

fn texts(command: &str) -> Result<Vec<String>, WordsError> {
    Ok(split(command)?.iter().map(plain).collect())
}

#[test]
fn quotes_and_backslashes_work_as_in_a_shell() {
    for (command, expected) in [
        ("ls  -l\t x", vec!["ls", "-l", "x"]),
        ("grep 'a b' \"c d\"", vec!["grep", "a b", "c d"]),
        ("grep 'a;b|c>d$e`f(g)'", vec!["grep", "a;b|c>d$e`f(g)"]),
        ("grep \"^a.*b$\" x", vec!["grep", "^a.*b$", "x"]),
        ("grep \"a\\\"b\\n\\$x\"", vec!["grep", "a\"b\\n$x"]),
        ("grep a\\ b a\\;b", vec!["grep", "a b", "a;b"]),
        ("echo ''", vec!["echo", ""]),
        ("echo a'b'\"c\"d", vec!["echo", "abcd"]),
        ("echo a#b a~b", vec!["echo", "a#b", "a~b"]),
        ("echo \"a$ b\"", vec!["echo", "a$ b"]),
    ] {
        assert_eq!(texts(command).unwrap(), expected, "{command}");
    }
}

#[test]
fn threat_103_shell_syntax_is_refused_when_it_is_parsed() {
    for command in [
        "grep x; id",
        "grep x;id",
        "grep x && id",
        "grep x || id",
        "grep x | id",
        "grep x |& id",
        "grep x & id",
        "grep x &",
        "grep $(id)",
        "grep \"$(id)\"",
        "grep `id`",
        "grep \"`id`\"",
        "grep <(id)",
        "diff <(id) <(id)",
        "cat >(id)",
        "grep${IFS}x",
        "grep ${IFS}",
        "grep \"${IFS}\"",
        "grep $'\\x3b'",
        "grep $\"x\"",
        "grep $HOME",
        "grep \"$HOME\"",
        "echo \"$_\"",
        "echo $((1+1))",
        "echo $[1+1]",
        "echo \"$?\"",
        "echo \"$@\"",
        "echo \"$$\"",
        "cat <<EOF",
        "cat <<< x",
        "cat << 'EOF'",
        "# comment",
        "ls # rest",
        "ls;# x",
        "(id)",
        "{ id; }",
        "ls {a,b}",
        "echo {1..9}",
        "! ls; id",
        "ls ~",
        "ls ~root",
        "f() { id; }",
        "coproc id",
        "ls 2>&1",
        "[[ -e x ]] && id",
        "case x in x) id;; esac",
        "if true; then id; fi",
        "a=(1 2)",
        "ls \u{a0}x",
        "ls\u{2003}x",
    ] {
        match split(command) {
            Err(WordsError::Syntax { .. }) => {}
            // Words that a shell would take for more, and we take for the name of a program that is in no table.
            Ok(words) => {
                let words: Vec<String> = words.iter().map(plain).collect();
                assert!(super::programs::check(&words).is_err(), "{command}");
            }
            Err(other) => panic!("{command}: {other}"),
        }
    }
    for command in [
        "grep x\nid",
        "grep x\r\nid",
        "grep x\rid",
        "grep 'x\nid'",
        "ls\0-l",
        "ls \x1b[31m",
        "ls \x0bx",
        "ls\u{85}x",
        "ls \\\n-l",
    ] {
        assert!(matches!(split(command), Err(WordsError::Control(_))), "{command:?}");
    }
    for command in ["grep 'x", "grep \"x", "grep \"x\\", "grep x\\", "", "   ", "\t"] {
        assert!(split(command).is_err(), "{command:?}");
    }
    assert_eq!(split(&"x ".repeat(20_000)), Err(WordsError::TooLong));
}

#[test]
fn threat_104_redirections_are_refused() {
    for command in [
        "echo x > f",
        "echo x >f",
        "echo x>f",
        "echo x >> f",
        "cat < f",
        "cat <f",
        "ls 2> f",
        "ls 2>f",
        "ls &> f",
        "ls &>> f",
        "ls >& f",
        "ls >| f",
        "ls 1>&2",
        "cat <> f",
        "cat 0<f",
        "exec 3<>/dev/tcp/1.2.3.4/80",
        "echo x > /dev/tcp/1.2.3.4/80",
        "cat < /dev/udp/1.2.3.4/53",
        "echo x | tee f",
        "echo x >(tee f)",
        "> f",
        "< f",
        ">f ls",
    ] {
        assert!(matches!(split(command), Err(WordsError::Syntax { .. })), "{command}");
    }
    // Without a redirection `tee` and `/dev/tcp` are a program that is not there, and a file that is not.
    let words: Vec<String> = ["tee", "f"].map(str::to_owned).into();
    assert!(super::programs::check(&words).is_err());
}
