//! What is dialled, and what is not.

use std::net::IpAddr;
use std::time::Duration;

use dial::{Allow, Class, DialError};
use lifecycle::Tasks;

use crate::rig::{Table, allow, dialer, dialer_within, greeter, heard};

#[tokio::test]
async fn a_name_leads_to_its_server() {
    let tasks = Tasks::new();
    let server = greeter(&tasks, "127.0.0.1", "hello").await;
    let table = Table::new([("a.test", ["127.0.0.1"].as_slice())]);
    let stream = dialer(&table)
        .dial("a.test", server.port(), &allow(&["127.0.0.0/8"]), None)
        .await
        .unwrap();
    assert_eq!(heard(stream).await, "hello");
}

#[tokio::test]
async fn threat_008_a_name_that_leads_inside_is_refused() {
    let tasks = Tasks::new();
    let server = greeter(&tasks, "127.0.0.1", "the database").await;
    for (address, class) in [
        ("169.254.169.254", Class::Metadata),
        ("127.0.0.1", Class::Loopback),
        ("10.1.2.3", Class::Private),
        ("192.168.0.1", Class::Private),
        ("::1", Class::Loopback),
        ("fd00:ec2::254", Class::Metadata),
        ("fe80::1", Class::LinkLocal),
        ("0.0.0.0", Class::Unspecified),
        ("198.18.0.17", Class::Benchmark),
    ] {
        let table = Table::new([("allowed.test", [address].as_slice())]);
        let refused = dialer(&table)
            .dial("allowed.test", server.port(), &Allow::default(), None)
            .await;
        match refused {
            Err(DialError::Refused {
                host,
                address: at,
                class: is,
            }) => {
                assert_eq!(
                    (host.as_str(), at.to_string().as_str(), is),
                    ("allowed.test", address, class)
                );
            }
            other => panic!("{address}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn threat_009_what_was_checked_is_what_is_dialled() {
    let tasks = Tasks::new();
    // Two servers at one port; the second answer would lead to the wrong one.
    let right = greeter(&tasks, "127.0.0.1", "right").await;
    let listener = tokio::net::TcpListener::bind(("127.0.0.2", right.port()))
        .await
        .unwrap();
    let table = Table::new([
        ("rebinding.test", ["127.0.0.1"].as_slice()),
        ("rebinding.test", ["127.0.0.2"].as_slice()),
    ]);
    let only_the_first = allow(&["127.0.0.1"]);
    let dialer = dialer(&table);
    let stream = dialer
        .dial("rebinding.test", right.port(), &only_the_first, None)
        .await
        .unwrap();
    assert_eq!(stream.peer_addr().unwrap(), right);
    assert_eq!(heard(stream).await, "right");
    assert_eq!(table.asked(), ["rebinding.test"], "one dialling asks once");
    // The next connection asks anew, and what it learns is checked anew.
    let refused = dialer.dial("rebinding.test", right.port(), &only_the_first, None).await;
    assert!(matches!(refused, Err(DialError::Refused { .. })), "{refused:?}");
    drop(listener);
}

#[tokio::test]
async fn threat_010_one_private_address_refuses_the_whole_answer() {
    let table = Table::new([("mixed.test", ["8.8.8.8", "2606:4700::1111", "10.0.0.5"].as_slice())]);
    let refused = dialer(&table).dial("mixed.test", 443, &Allow::default(), None).await;
    let Err(DialError::Refused { address, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(address, "10.0.0.5".parse::<IpAddr>().unwrap());
}

#[tokio::test]
async fn threat_011_an_address_in_disguise_is_judged_by_its_bits() {
    let table = Table::new([]);
    let dialer = dialer(&table);
    for (address, class) in [
        ("::ffff:169.254.169.254", Class::Metadata),
        ("64:ff9b::a9fe:a9fe", Class::Metadata),
        ("2002:a9fe:a9fe::", Class::Metadata),
        ("2001:0:a9fe:a9fe::", Class::Metadata),
        ("0.0.0.0", Class::Unspecified),
        ("::", Class::Unspecified),
    ] {
        let refused = dialer.dial(address, 80, &Allow::default(), None).await;
        let Err(DialError::Refused { class: is, .. }) = refused else {
            panic!("{address}: {refused:?}");
        };
        assert_eq!(is, class, "{address}");
    }
    // Spellings that only some programs take for an address are names here, and nobody has such a name.
    for odd in [
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.1",
        "fe80::1%eth0",
        "[::1]",
    ] {
        let refused = dialer.dial(odd, 80, &Allow::default(), None).await;
        assert!(
            matches!(refused, Err(DialError::Unresolved { .. })),
            "{odd}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn the_other_family_is_tried_where_one_leads_nowhere() {
    let tasks = Tasks::new();
    let server = greeter(&tasks, "127.0.0.1", "reached").await;
    // Nobody listens on ::1 at this port.
    let table = Table::new([("both.test", ["::1", "127.0.0.1"].as_slice())]);
    let stream = dialer(&table)
        .dial("both.test", server.port(), &allow(&["127.0.0.0/8", "::1"]), None)
        .await
        .unwrap();
    assert_eq!(heard(stream).await, "reached");
}

#[tokio::test]
async fn a_dialling_that_fails_says_how() {
    let table = Table::new([("nobody.test", ["127.0.0.1"].as_slice()), ("empty.test", [].as_slice())]);
    let loopback = allow(&["127.0.0.0/8"]);
    let dialer = dialer(&table);
    let closed = testkit::free_port();
    let refused = dialer.dial("nobody.test", closed, &loopback, None).await.unwrap_err();
    assert_eq!(refused.to_string(), format!("connect to nobody.test:{closed}"));
    for name in ["empty.test", "unknown.test"] {
        let unresolved = dialer.dial(name, 80, &loopback, None).await.unwrap_err();
        assert_eq!(unresolved.to_string(), format!("resolve {name}"));
    }
}

#[tokio::test]
async fn a_dialling_ends_at_its_deadline() {
    // A listener whose queue is full answers nobody.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let _queued = tokio::net::TcpStream::connect(address).await.unwrap();
    let table = Table::new([("slow.test", ["127.0.0.1"].as_slice())]);
    let late = dialer_within(&table, Duration::from_millis(100))
        .dial("slow.test", address.port(), &allow(&["127.0.0.0/8"]), None)
        .await;
    assert!(matches!(late, Err(DialError::Late { .. })), "{late:?}");
}
