use super::*;

fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).unwrap()
}

fn matches(text: &str, host: &str, port: u16) -> bool {
    Destination::parse(host).is_ok_and(|destination| pattern(text).matches(&destination, port))
}

#[test]
fn threat_027_a_byte_that_no_name_has_is_refused() {
    for host in [
        "evil.com\0.bound.com",
        "bound.com\r\n",
        "bound.com\n.evil.com",
        "bound.com%2f",
        "bound.com%00",
        "bound.com@evil.com",
        "evil.com#@bound.com",
        "bound.com\\evil.com",
        "bound.com\t",
        " bound.com",
        "bound_com",
        "bound.com/",
        "*.bound.com",
        "",
        ".",
        "..",
        "bound..com",
        ".bound.com",
        "bound.com..",
        "-bound.com",
        "bound-.com",
    ] {
        assert!(Host::parse(host).is_err(), "{host:?}");
        assert!(Destination::parse(host).is_err(), "{host:?}");
    }
    assert_eq!(Host::parse(&"a".repeat(64)), Err(HostError::Parts));
    assert_eq!(Host::parse(&["a"; 128].join(".")), Err(HostError::Parts));
}

#[test]
fn threat_028_case_and_root_dot_are_one_form_and_the_port_counts() {
    for host in ["bound.com", "BOUND.COM", "bound.com.", "Bound.Com."] {
        assert_eq!(Host::parse(host).unwrap().as_str(), "bound.com");
        for port in [80, 443] {
            assert!(matches("bound.com", host, port));
        }
        for port in [22, 0, 8443] {
            assert!(!matches("bound.com", host, port));
        }
        assert!(matches("BOUND.com.:8443", host, 8443));
        assert!(!matches("bound.com:8443", host, 443));
        assert!(matches("bound.com:*", host, 1));
    }
}

#[test]
fn threat_029_other_scripts_are_compared_in_ascii() {
    // A Cyrillic letter, a letter of full width, ideographic and full-width dots.
    assert_eq!(Host::parse("b\u{43e}und.com").unwrap().as_str(), "xn--bund-55d.com");
    assert!(!matches("bound.com", "b\u{43e}und.com", 443));
    for host in ["\u{ff42}ound.com", "bound\u{3002}com", "bound\u{ff0e}com\u{ff61}"] {
        assert_eq!(Host::parse(host).unwrap().as_str(), "bound.com");
    }
    assert!(matches("b\u{fc}cher.example", "xn--bcher-kva.example", 443));
    assert!(Host::parse("xn--bcher-kv\u{e4}a.example").is_err());
    assert!(Host::parse("xn--a-.example").is_err());
}

#[test]
fn threat_030_a_star_is_a_part_and_never_the_name_itself() {
    for (text, host, does) in [
        ("*.bound.com", "a.bound.com", true),
        ("*.bound.com", "a.b.bound.com", false),
        ("*.bound.com", "bound.com", false),
        ("*.bound.com", "evilbound.com", false),
        ("*.bound.com", "bound.com.evil.com", false),
        ("*.bound.com", "a.bound.com.evil.com", false),
        ("**.bound.com", "a.b.bound.com", true),
        ("**.bound.com", "a.bound.com", true),
        ("**.bound.com", "bound.com", false),
        ("**.bound.com", "evilbound.com", false),
        ("bound.com", "a.bound.com", false),
        ("**", "anything.example", true),
        ("**", "192.0.2.1", false),
        ("**", "[2001:db8::1]", false),
    ] {
        assert_eq!(matches(text, host, 443), does, "{text} {host}");
    }
}

#[test]
fn threat_030_no_star_reaches_names_of_different_owners() {
    for text in [
        "*.co.uk",
        "**.co.uk",
        "*.github.io",
        "*.com",
        "*.COM.",
        "**.s3.amazonaws.com:443",
        "*.example.ck",
    ] {
        let refused = HostPattern::parse(text);
        assert!(
            matches!(refused, Err(PatternError::PublicSuffix { .. })),
            "{text}: {refused:?}"
        );
    }
    for text in [
        "*.example.co.uk",
        "co.uk",
        "someone.github.io",
        "*.someone.github.io",
        "*.corp",
        "*.service.internal",
    ] {
        pattern(text);
    }
}

#[test]
fn threat_011_an_address_has_one_spelling() {
    for host in [
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "1.2.3",
        "a.0x7f",
        "[fe80::1%eth0]",
        "1.2.3.4.5",
    ] {
        assert!(Destination::parse(host).is_err(), "{host}");
    }
    let address = |text: &str| Destination::parse(text).unwrap();
    assert_eq!(address("::ffff:127.0.0.1"), address("127.0.0.1"));
    assert_eq!(address("[0:0::1]"), address("::1"));
    assert!(matches("127.0.0.1:5432", "::ffff:127.0.0.1", 5432));
    assert!(!matches("127.0.0.1:5432", "127.0.0.1", 443));
    assert!(matches("[::1]:5432", "::1", 5432));
    assert!(matches("::1", "[::1]", 443));
}

#[test]
fn a_pattern_is_written_as_it_is_read() {
    for text in [
        "a.example",
        "*.a.example:22",
        "**.a.example:*",
        "**",
        "**:5432",
        "192.0.2.1:*",
        "[2001:db8::1]:443",
        "[2001:db8::1]",
    ] {
        assert_eq!(pattern(text).to_string(), text);
        let json = serde_json::to_value(pattern(text)).unwrap();
        assert_eq!(serde_json::from_value::<HostPattern>(json).unwrap(), pattern(text));
    }
}

#[test]
fn a_pattern_that_cannot_be_meant_is_refused() {
    for text in [
        "",
        "*",
        "a.*",
        "a*.example",
        "*.*.example",
        "a.example:0",
        "a.example:65536",
        "a.example:",
        "a.example:ssh",
        "[::1",
        "[::1]443",
        "***",
        "http://a.example",
    ] {
        assert!(HostPattern::parse(text).is_err(), "{text}");
    }
}

#[test]
fn what_covers_matches_whatever_the_other_does() {
    let patterns = [
        "**",
        "**:*",
        "**.a.example",
        "*.a.example",
        "**.b.a.example",
        "b.a.example",
        "b.a.example:22",
        "a.example:*",
        "192.0.2.1",
    ];
    let hosts = [
        "a.example",
        "b.a.example",
        "c.a.example",
        "c.b.a.example",
        "other.example",
        "192.0.2.1",
    ];
    for (one, other) in patterns
        .iter()
        .flat_map(|one| patterns.iter().map(move |other| (one, other)))
    {
        let covers = pattern(one).covers(&pattern(other));
        let all = || hosts.iter().flat_map(|host| [22, 443, 9].map(|port| (host, port)));
        let includes = all().all(|(host, port)| !matches(other, host, port) || matches(one, host, port));
        let both = all().any(|(host, port)| matches(other, host, port) && matches(one, host, port));
        assert_eq!(pattern(one).meets(&pattern(other)), both, "{one} {other}");
        assert!(!covers || includes, "{one} {other}");
        assert!(covers || !includes || one != other, "{one} {other}");
    }
    assert!(pattern("**.a.example:*").covers(&pattern("*.b.a.example:22")));
    assert!(!pattern("**.a.example").covers(&pattern("*.ba.example")));
}
