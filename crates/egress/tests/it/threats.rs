//! Attempts of threats.md, groups A and B, at the broker's door.

use std::time::Duration;

use domain::SessionId;
use egress::{Limits, Outcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{Setting, World, echo, exchange, rules};

const SOME: &str = r#"
    [bound]
    hosts = ["api.bound.test", "api.bound.test:8443"]

    [wide]
    hosts = ["*.allowed.test:*"]
    networks = ["127.0.0.0/8"]

    [here]
    hosts = ["here.test:*"]
    networks = ["127.0.0.0/8"]
"#;

/// The code with which a connection is refused before anything happens outside.
fn refused(world: &World, host: &str, port: u16) -> &'static str {
    match world.tunnel(SessionId::new(), host, port) {
        Ok(_) => "admitted",
        Err(denied) => {
            assert!(!denied.remedy.is_empty() && !denied.reason.is_empty(), "{denied:?}");
            denied.code.as_str()
        }
    }
}

#[tokio::test]
async fn threat_001_002_an_address_that_no_name_was_given_for_is_refused() {
    let world = World::new(SOME);
    world.names.lead("api.bound.test", "93.184.216.34");
    // The real address of an allowed host, another public one, and one of the synthetic addresses that nobody was given.
    for (address, port) in [
        ("93.184.216.34", 443),
        ("8.8.8.8", 443),
        ("198.18.0.77", 443),
        ("2606:4700::1111", 443),
    ] {
        assert_eq!(refused(&world, address, port), "no_rule", "{address}");
        assert_eq!(world.told_denied().await, ("tcp", "no_rule"));
    }
    assert!(world.names.asked().is_empty(), "nothing was resolved");
}

#[tokio::test]
async fn threat_003_tls_that_hides_a_name_or_pretends_to_ends_at_the_broker() {
    let world = World::new(SOME);
    let server = world.server(echo).await;
    world.names.lead("here.test", "127.0.0.1");
    let mut tunnel = world.tunnel(SessionId::new(), "here.test", server.port()).unwrap();
    let hello = crate::rig::encrypted_hello("here.test");
    tunnel.write_all(&hello).await.unwrap();
    let mut heard = [0; 6];
    tunnel.read_exact(&mut heard).await.unwrap();
    // The server would have said the hello back.
    assert_eq!((heard[0], heard[5]), (22, 2), "a handshake record: the ServerHello");
    drop(tunnel);
    assert_eq!(world.told_denied().await, ("tls", "handshake"));
    assert!(world.names.asked().is_empty(), "nothing was resolved or dialled");
}

#[tokio::test]
async fn threat_003_the_name_in_the_clear_must_be_the_one_that_was_asked_for() {
    let world = World::new(SOME);
    let server = world.server(echo).await;
    world.names.lead("here.test", "127.0.0.1");
    let mut tunnel = world.tunnel(SessionId::new(), "here.test", server.port()).unwrap();
    let hello = crate::rig::encrypted_hello("other.test");
    tunnel.write_all(&hello).await.unwrap();
    let mut heard = Vec::new();
    tunnel.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, [21, 3, 3, 0, 2, 2, 49], "a fatal alert of TLS: access denied");
    assert_eq!(world.told_denied().await, ("tls", "other_server_name"));
    assert!(world.names.asked().is_empty(), "nothing was resolved or dialled");
}

#[tokio::test]
async fn threat_003_tls_that_names_nobody_but_in_secret_is_refused() {
    let world = World::new(SOME);
    let server = world.server(echo).await;
    world.names.lead("here.test", "127.0.0.1");
    let mut tunnel = world.tunnel(SessionId::new(), "here.test", server.port()).unwrap();
    // An address is no server name: in the clear there is none.
    let hello = crate::rig::encrypted_hello("127.0.0.1");
    tunnel.write_all(&hello).await.unwrap();
    let mut heard = Vec::new();
    tunnel.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, [21, 3, 3, 0, 2, 2, 49], "a fatal alert of TLS: access denied");
    assert_eq!(world.told_denied().await, ("tls", "encrypted_server_name"));
    assert!(world.names.asked().is_empty(), "nothing was resolved or dialled");
}

#[tokio::test]
async fn threat_005_a_denied_name_causes_no_question() {
    let world = World::new(SOME);
    let session = SessionId::new();
    for name in [
        "mfrggzdfmztwq2lk.attacker.test",
        "attacker.test",
        "bound.test",
        "api.bound.test.attacker.test",
    ] {
        let denied = world.broker.resolve(session, name).unwrap_err();
        assert_eq!(denied.code.as_str(), "no_rule", "{name}");
        assert_eq!(world.told_denied().await, ("dns", "no_rule"));
    }
    world.scope.deny("api.bound.test");
    let denied = world.broker.resolve(session, "api.bound.test").unwrap_err();
    assert_eq!(denied.code.as_str(), "out_of_scope");
    assert_eq!(denied.rule.as_deref(), Some("egress.test"));
    assert!(world.names.asked().is_empty(), "no packet leaves");
}

#[tokio::test]
async fn threat_006_other_resolvers_are_not_reached() {
    let world = World::new(SOME);
    for (host, port) in [
        ("8.8.8.8", 53),
        ("1.1.1.1", 853),
        ("dns.google", 853),
        ("dns.google", 443),
        ("9.9.9.9", 443),
    ] {
        assert_eq!(refused(&world, host, port), "no_rule", "{host}:{port}");
    }
}

#[tokio::test]
async fn threat_007_names_below_a_star_carry_little() {
    let limits = Limits {
        names: 0,
        ..Limits::default()
    };
    let setting = Setting {
        limits: Some(limits),
        ..Setting::default()
    };
    let world = World::with(SOME, setting);
    let session = SessionId::new();
    for label in ["mfrggzdfmztwq2lknnwg23tpobyxe43u".to_owned(), "a".repeat(60)] {
        let name = format!("{label}.allowed.test");
        let denied = world.broker.resolve(session, &name).unwrap_err();
        assert_eq!(denied.code.as_str(), "suspicious_name", "{name}");
        // Nor without asking for the name first, which is when it would really be resolved.
        assert_eq!(refused(&world, &name, 443), "suspicious_name");
    }
    let allowed = |number: u32| world.broker.resolve(session, &format!("host-{number}.allowed.test"));
    let first: Vec<_> = (0..1_000).take_while(|number| allowed(*number).is_ok()).collect();
    assert_eq!(first.len(), 100, "a burst, then the rate, which is none here");
    assert_eq!(allowed(500).unwrap_err().code.as_str(), "too_many_names");
    allowed(7).unwrap();
    world.broker.resolve(session, "here.test").unwrap();
    world.broker.resolve(SessionId::new(), "host-500.allowed.test").unwrap();
    assert!(world.names.asked().is_empty());
}

#[tokio::test]
async fn threat_008_010_an_allowed_name_that_leads_inside_is_refused_and_told() {
    for address in [
        "169.254.169.254",
        "127.0.0.1",
        "10.0.0.5",
        "::1",
        "fd00:ec2::254",
        "64:ff9b::a9fe:a9fe",
    ] {
        let world = World::new(SOME);
        world.names.lead("api.bound.test", address);
        let tunnel = world.tunnel(SessionId::new(), "api.bound.test", 443).unwrap();
        world
            .tls(tunnel, "api.bound.test", world.upstream_roots())
            .await
            .unwrap_err();
        let told = world.told().await;
        let Outcome::Denied(denied) = told.outcome else {
            panic!("{address}")
        };
        assert_eq!(denied.code.as_str(), "private_address", "{address}");
        assert_eq!(denied.rule.as_deref(), Some("bound"));
        assert!(
            !denied.reason.contains(address),
            "which address it is, is nothing for a sandbox: {denied}"
        );
    }
}

#[tokio::test]
async fn threat_011_026_027_a_host_is_spelled_in_one_way_or_refused() {
    let world = World::new(SOME);
    for host in [
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.1",
        "1.2.3.4.5",
        "fe80::1%eth0",
        "[fe80::1%eth0]",
        "",
        ".",
        "api..bound.test",
        "evil.test\0.api.bound.test",
        "api.bound.test\r\nHost: evil.test",
        "api.bound.test ",
        "api.bound.test@evil.test",
        "evil.test#@api.bound.test",
        "api.bound.test/",
        "api.bound.test\\",
        "api%2ebound.test",
        "api.bound.test:443",
        "-a.bound.test",
        "api_x.bound.test",
    ] {
        assert_eq!(refused(&world, host, 443), "invalid_host", "{host:?}");
        let told = world.told().await;
        assert!(!told.host.contains(char::is_control), "{told:?}");
    }
    for address in [
        "::ffff:169.254.169.254",
        "169.254.169.254",
        "2002:a9fe:a9fe::",
        "0.0.0.0",
        "::",
        "127.0.0.1",
    ] {
        assert_eq!(refused(&world, address, 80), "no_rule", "{address}");
    }
}

#[tokio::test]
async fn threat_012_a_changed_scope_counts_for_what_is_open() {
    let world = World::new(SOME);
    let (here, server) = (SessionId::new(), world.tls_echo("here.test").await);
    let tunnel = world.tunnel(here, "here.test", server.port()).unwrap();
    let mut stream = world.tls(tunnel, "here.test", world.upstream_roots()).await.unwrap();
    stream.write_all(b"before").await.unwrap();
    let mut heard = [0; 6];
    stream.read_exact(&mut heard).await.unwrap();
    // What was not denied stays open.
    world.broker.recheck(here);
    stream.write_all(b"during").await.unwrap();
    stream.read_exact(&mut heard).await.unwrap();
    world.scope.deny("here.test");
    world.broker.recheck(here);
    assert!(stream.read_exact(&mut heard).await.is_err(), "the connection is closed");
    assert_eq!(world.told_denied().await, ("tls", "out_of_scope"));
    assert_eq!(
        world
            .tunnel(here, "here.test", server.port())
            .map(drop)
            .unwrap_err()
            .code
            .as_str(),
        "out_of_scope"
    );
}

#[tokio::test]
async fn a_session_that_is_forgotten_is_cut() {
    let world = World::new(SOME);
    let (session, server) = (SessionId::new(), world.tls_echo("here.test").await);
    let tunnel = world.tunnel(session, "here.test", server.port()).unwrap();
    let mut stream = world.tls(tunnel, "here.test", world.upstream_roots()).await.unwrap();
    world.broker.forget(session);
    assert!(stream.read_u8().await.is_err());
}

#[tokio::test]
async fn threat_013_nothing_of_this_machine_or_its_neighbours_is_reached() {
    let world = World::new(SOME);
    let admin = world.server(echo).await;
    for host in [
        "127.0.0.1",
        "::1",
        "10.0.0.1",
        "172.17.0.1",
        "192.168.1.1",
        "0.0.0.0",
        "169.254.1.1",
    ] {
        assert_eq!(refused(&world, host, admin.port()), "no_rule", "{host}");
    }
    // A rule for one port of one address opens no other.
    let world = World::new("[db]\nhosts = [\"127.0.0.1:5432\"]\nschemes = [\"tcp\"]");
    assert_eq!(refused(&world, "127.0.0.1", admin.port()), "no_rule");
    assert_eq!(refused(&world, "127.0.0.2", 5432), "no_rule");
    assert_eq!(refused(&world, "127.0.0.1", 5432), "admitted");
}

#[tokio::test]
async fn an_address_that_a_rule_names_is_reached() {
    let world = World::new("[here]\nhosts = [\"127.0.0.1:*\"]\nschemes = [\"tcp\"]");
    let server = world.server(echo).await;
    let tunnel = world.tunnel(SessionId::new(), "127.0.0.1", server.port()).unwrap();
    assert_eq!(exchange(tunnel, b"hello").await.unwrap(), b"hello");
}

#[tokio::test]
async fn threat_015_what_is_neither_tls_nor_http_needs_a_rule_that_says_tcp() {
    let world = World::new(SOME);
    assert_eq!(refused(&world, "api.bound.test", 22), "no_rule");
    assert_eq!(world.told_denied().await, ("tcp", "no_rule"));
    let server = world.server(echo).await;
    world.names.lead("here.test", "127.0.0.1");
    let tunnel = world.tunnel(SessionId::new(), "here.test", server.port()).unwrap();
    let heard = exchange(tunnel, b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
    assert!(heard.is_empty(), "{heard:?}");
    assert_eq!(world.told_denied().await, ("tcp", "protocol"));
    assert!(world.names.asked().is_empty(), "the server was not even looked for");
}

#[tokio::test]
async fn threat_016_no_rules_let_nothing_out() {
    let world = World::new("");
    assert_eq!(refused(&world, "api.bound.test", 443), "no_rule");
    assert_eq!(
        world
            .broker
            .resolve(SessionId::new(), "api.bound.test")
            .unwrap_err()
            .code
            .as_str(),
        "no_rule"
    );
    assert!(rules("[a]\nhosts = []").unwrap_err().contains("names no host"));
    // A scope that says nothing says no: asked after the rules, and both must agree.
    let world = World::new(SOME);
    world.scope.deny("api.bound.test");
    assert_eq!(refused(&world, "api.bound.test", 443), "out_of_scope");
}

#[tokio::test]
async fn threat_017_a_session_at_its_caps_is_alone_with_it() {
    let limits = Limits {
        connections: 3,
        new_connections: 10,
        upload: 200_000,
        ..Limits::default()
    };
    let setting = Setting {
        limits: Some(limits),
        ..Setting::default()
    };
    let world = World::with("[here]\nhosts = [\"127.0.0.1:*\"]\nschemes = [\"tcp\"]", setting);
    let server = world.server(echo).await;
    let (greedy, modest) = (SessionId::new(), SessionId::new());
    let open = |session| world.tunnel(session, "127.0.0.1", server.port());
    let mut held: Vec<_> = (0..3).map(|_| open(greedy).unwrap()).collect();
    assert_eq!(open(greedy).unwrap_err().code.as_str(), "too_many_connections");
    assert_eq!(world.told_denied().await, ("tcp", "too_many_connections"));
    assert_eq!(exchange(open(modest).unwrap(), b"hello").await.unwrap(), b"hello");
    assert_eq!(world.told().await.outcome, Outcome::Allowed);
    // A place is free again when a connection is over.
    assert_eq!(exchange(held.pop().unwrap(), b"bye").await.unwrap(), b"bye");
    assert_eq!(world.told().await.outcome, Outcome::Allowed);
    let again = open(greedy).unwrap();
    // Bytes are counted over all connections, and end all of them.
    let heard = exchange(again, &[7; 300_000]).await.unwrap_or_default();
    assert!(heard.len() <= 200_000, "{}", heard.len());
    assert_eq!(world.told_denied().await, ("tcp", "bytes_spent"));
    assert_eq!(open(greedy).unwrap_err().code.as_str(), "bytes_spent");
    assert_eq!(exchange(open(modest).unwrap(), b"still").await.unwrap(), b"still");
}

#[tokio::test]
async fn a_session_that_is_forgotten_has_no_fresh_caps() {
    let limits = Limits {
        names: 0,
        upload: 1_000,
        ..Limits::default()
    };
    let setting = Setting {
        limits: Some(limits),
        ..Setting::default()
    };
    let rules = "[here]\nhosts = [\"127.0.0.1:*\"]\nschemes = [\"tcp\"]\n[stars]\nhosts = [\"*.stars.test\"]";
    let world = World::with(rules, setting);
    let (session, server) = (SessionId::new(), world.server(echo).await);
    let name = |number: u32| world.broker.resolve(session, &format!("host-{number}.stars.test"));
    let known = (0..1_000).take_while(|number| name(*number).is_ok()).count();
    assert_eq!(known, 100);
    let open = || world.tunnel(session, "127.0.0.1", server.port());
    let spending = open().unwrap();
    // It may be cut in the middle, once it has sent what it may.
    let _ = exchange(spending, &[7; 2_000]).await;
    assert_eq!(open().unwrap_err().code.as_str(), "bytes_spent");
    world.broker.forget(session);
    assert_eq!(open().unwrap_err().code.as_str(), "bytes_spent");
    assert_eq!(name(1_000).unwrap_err().code.as_str(), "too_many_names");
}

#[tokio::test]
async fn threat_017_ten_thousand_connections_are_refused_after_the_first() {
    let world = World::new(SOME);
    let session = SessionId::new();
    let admitted: Vec<_> = (0..10_000)
        .filter_map(|_| world.broker.admit(session, "here.test", 443).ok())
        .collect();
    assert!(admitted.len() <= 256, "{}", admitted.len());
    drop(admitted);
    let fast = (0..10_000)
        .filter(|_| world.broker.admit(session, "here.test", 443).is_ok())
        .count();
    assert!(fast < 1_000, "{fast} in no time");
    assert!(world.broker.admit(SessionId::new(), "here.test", 443).is_ok());
}

#[tokio::test(start_paused = true)]
async fn threat_017_who_says_nothing_or_nothing_more_is_not_waited_for() {
    let world = World::new("[web]\nhosts = [\"web.test\"]");
    // Slow: a client that begins and does not go on.
    let mut slow = world.tunnel(SessionId::new(), "web.test", 443).unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    assert_eq!(slow.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(world.told_denied().await, ("tcp", "nothing_said"));
}

#[tokio::test]
async fn threat_017_an_idle_connection_is_closed() {
    let limits = Limits {
        idle: Duration::from_secs(3),
        ..Limits::default()
    };
    let setting = Setting {
        limits: Some(limits),
        ..Setting::default()
    };
    let world = World::with("[here]\nhosts = [\"127.0.0.1:*\"]\nschemes = [\"tcp\"]", setting);
    let server = world.server(echo).await;
    let mut tunnel = world.tunnel(SessionId::new(), "127.0.0.1", server.port()).unwrap();
    tunnel.write_all(b"a word").await.unwrap();
    let mut heard = Vec::new();
    tunnel.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"a word");
    assert_eq!(world.told().await.outcome, Outcome::Allowed);
}

#[tokio::test]
async fn threat_021_tls_must_mean_the_host_that_was_asked_for() {
    let world = World::new(SOME);
    let server = world.tls_echo("here.test").await;
    for (server_name, code) in [
        ("api.bound.test", "other_server_name"),
        ("there.test", "other_server_name"),
        // An address is no server name: none is sent.
        ("127.0.0.1", "no_server_name"),
    ] {
        let tunnel = world.tunnel(SessionId::new(), "here.test", server.port()).unwrap();
        let refused = world
            .tls(tunnel, server_name, world.upstream_roots())
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("AccessDenied"), "{refused}");
        assert_eq!(world.told_denied().await, ("tls", code), "{server_name}");
    }
    assert!(world.names.asked().is_empty(), "nothing was dialled");
}

#[tokio::test]
async fn threat_028_029_a_name_is_the_same_however_it_is_written() {
    let world = World::new(SOME);
    let session = SessionId::new();
    for same in [
        "API.BOUND.test",
        "api.bound.test.",
        "api。bound。test",
        "ａｐｉ.bound.test",
    ] {
        world.broker.resolve(session, same).unwrap();
    }
    // A Cyrillic `о`, its ASCII form, and other owners.
    for other in [
        "api.bоund.test",
        "api.xn--bund-5cd.test",
        "bound.test",
        "evilapi.bound.test",
        "api.bound.test.evil.test",
    ] {
        assert_ne!(refused(&world, other, 443), "admitted", "{other}");
    }
    assert_eq!(refused(&world, "api.bound.test", 8443), "admitted");
    assert_eq!(refused(&world, "api.bound.test", 8444), "no_rule");
}

#[tokio::test]
async fn threat_030_a_star_is_one_part_and_never_the_name_itself() {
    let world = World::new(SOME);
    let session = SessionId::new();
    world.broker.resolve(session, "a.allowed.test").unwrap();
    for other in [
        "allowed.test",
        "evilallowed.test",
        "a.allowed.test.evil.test",
        "a.b.allowed.test",
    ] {
        assert_eq!(
            world.broker.resolve(session, other).unwrap_err().code.as_str(),
            "no_rule",
            "{other}"
        );
    }
}
