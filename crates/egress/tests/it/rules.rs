//! Rules with mistakes.

use crate::rig::rules;

#[test]
fn every_mistake_is_said_with_what_to_write() {
    let mistakes = rules(
        r#"
        [empty]
        hosts = []

        [lower]
        hosts = ["a.test"]
        methods = ["get"]

        [mixed]
        hosts = ["b.test"]
        schemes = ["https", "tcp"]
        methods = ["GET"]

        [unread]
        hosts = ["*.c.test:*"]
        schemes = ["tcp"]

        [read]
        hosts = ["x.c.test"]
        methods = ["GET"]

        [none]
        hosts = ["d.test"]
        schemes = []
    "#,
    )
    .unwrap_err();
    for words in [
        "egress.rules.empty: it names no host",
        "egress.rules.lower: `get` is no method",
        "egress.rules.mixed: `tcp` passes bytes that nobody reads",
        "egress.rules.unread: `*.c.test:*` passes by `tcp`, unread, what egress.rules.read reads (`x.c.test`)",
        "egress.rules.none: it names no scheme",
    ] {
        assert!(mistakes.contains(words), "{words}\n{mistakes}");
    }
}

#[test]
fn threat_030_stars_reach_names_of_one_owner_only() {
    for pattern in ["*.co.uk", "**.github.io:443", "**.com"] {
        let refused = rules(&format!("[a]\nhosts = [\"{pattern}\"]")).unwrap_err();
        assert!(refused.contains("different owners"), "{pattern}: {refused}");
    }
}

#[test]
fn what_no_rule_knows_is_a_mistake() {
    for (text, words) in [
        ("[a]\nhosts = [\"a.test\"]\nhots = []", "unknown field `hots`"),
        ("[a]\nschemes = [\"https\"]", "missing field `hosts`"),
        (
            "[a]\nhosts = [\"a.test\"]\nschemes = [\"ftp\"]",
            "unknown variant `ftp`",
        ),
        ("[a]\nhosts = [\"a.test\"]\nnetworks = [\"0.0.0.0/0\"]", "too wide"),
        ("[a]\nhosts = [\"a test\"]", "is no host"),
        (
            "[a]\nhosts = [\"a.test\"]\nproxy = { url = \"http://me:hunter2@proxy.test:3128\" }",
            "this is no proxy",
        ),
    ] {
        let refused = rules(text).unwrap_err();
        assert!(refused.contains(words), "{text}: {refused}");
        let said = refused.lines().filter(|line| !line.contains('|')).collect::<String>();
        assert!(!said.contains("hunter2"), "{refused}");
    }
}

#[test]
fn threat_015_a_rule_for_ssh_names_user_and_host_key_and_nothing_of_http() {
    let ssh = |more: &str| {
        format!(
            "[forge]\nhosts = [\"forge.test:22\"]\nschemes = [\"ssh\"]\n\
             ssh = {{ user = \"git\", secret = \"env:KEY\", host_keys = [\"SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU\"] }}\n{more}"
        )
    };
    rules(&ssh("")).unwrap();
    let mistake = |text: &str| rules(text).err().unwrap();
    assert!(mistake(&ssh("").replace("SHA256:", "MD5:")).contains("ssh-keyscan"));
    assert!(mistake(&ssh("methods = [\"GET\"]")).contains("HTTP"));
    assert!(mistake(&ssh("").replace("schemes = [\"ssh\"]\n", "")).contains("schemes = [\"ssh\"]"));
    assert!(mistake("[a]\nhosts = [\"a.test:22\"]\nschemes = [\"ssh\"]").contains("wants a table"));
    for (host, instead) in [
        ("forge.test", "`forge.test:22`"),
        ("forge.test:*", "`forge.test:22`"),
        ("[fd00::5]", "`[fd00::5]:22`"),
    ] {
        let refused = mistake(&ssh("").replace("forge.test:22", host));
        assert!(refused.contains(instead), "{refused}");
    }
    let raw = "[raw]\nhosts = [\"*.test:22\"]\nschemes = [\"tcp\"]";
    assert!(mistake(&ssh(raw)).contains("unread"));
}
