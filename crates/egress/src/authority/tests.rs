use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use policy::Destination;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

use super::*;
use crate::Code;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn host(name: &str) -> Destination {
    Destination::parse(name).unwrap()
}

/// A clock that stands.
#[derive(Debug)]
struct At(Timestamp);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        let since = u64::try_from(self.0.as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(since)))
    }
}

/// Whether a client that was told to trust `bundle` accepts the certificate of a host at a time.
fn accepts(bundle: &str, leaves: &Leaves, authorities: &Authorities, name: &str, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_details(provider, Arc::new(At(now)))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = leaves.server(&host(name), authorities, now).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let (mut sent, mut answered) = (Vec::new(), Vec::new());
        client.write_tls(&mut sent).unwrap();
        server.read_tls(&mut sent.as_slice()).unwrap();
        if server.process_new_packets().is_err() {
            return false;
        }
        server.write_tls(&mut answered).unwrap();
        client.read_tls(&mut answered.as_slice()).unwrap();
        if client.process_new_packets().is_err() {
            return false;
        }
    }
    true
}

#[test]
fn an_authority_is_made_once_and_its_key_is_for_this_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("egress");
    let trusted = Authorities::open(&folder, start()).unwrap().trusted(start()).unwrap();
    assert_eq!(trusted.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(!trusted.contains("PRIVATE"), "sandboxes get no key");
    let again = Authorities::open(&folder, start()).unwrap();
    assert_eq!(again.trusted(start()).unwrap(), trusted);
    assert!(accepts(&trusted, &Leaves::default(), &again, "a.test", start()));

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));

    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let open = Authorities::open(&folder, start()).map(drop).unwrap_err();
    assert!(
        matches!(open, AuthorityError::File(PrivateFileError::Open { mode: 0o640, .. })),
        "{open}"
    );
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "nothing").unwrap();
    let malformed = Authorities::open(&folder, start()).map(drop).unwrap_err();
    assert!(malformed.to_string().contains("remove it"), "{malformed}");
}

#[test]
fn threat_057_whoever_was_told_in_the_last_months_trusts_who_signs() {
    let folder = tempfile::tempdir().unwrap();
    let authorities = Authorities::open(folder.path(), start()).unwrap();
    let mut told: Vec<String> = Vec::new();
    let mut most = 0;
    for day in 0..2_000 {
        let now = start() + DAY * day;
        let bundle = authorities.trusted(now).unwrap();
        most = most.max(bundle.matches("BEGIN CERTIFICATE").count());
        told.push(bundle);
        if day % 10 == 0 {
            // Told at once, and told 85 days ago; by a session that is fresh, as a restart makes all of them.
            for since in [0, 85] {
                let bundle = &told[usize::try_from((day - since).max(0)).unwrap()];
                let leaves = Leaves::default();
                assert!(
                    accepts(bundle, &leaves, &authorities, "a.test", now),
                    "day {day}, told {since} days ago"
                );
            }
        }
    }
    assert_eq!(most, 2, "two at the same time, and no more");
    let first = &told[0];
    assert!(!told[1_999].contains(first), "what ended is no longer told");
    let kept = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(kept, told[1_999].matches("BEGIN CERTIFICATE").count(), "nor kept");
    assert!(!accepts(
        first,
        &Leaves::default(),
        &authorities,
        "a.test",
        start() + DAY * 1_999
    ));
}

#[tokio::test(start_paused = true)]
async fn threat_054_certificates_are_few_and_no_two_sessions_share_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let authorities = Authorities::open(folder.path(), start()).unwrap();
    let (greedy, modest) = (Leaves::default(), Leaves::default());
    let get = |leaves: &Leaves, number: u32| leaves.server(&host(&format!("h{number}.test")), &authorities, start());
    let first = get(&greedy, 0).unwrap();
    assert!(Arc::ptr_eq(&first, &get(&greedy, 0).unwrap()), "made once");
    let got = (0..500).take_while(|number| get(&greedy, *number).is_ok()).count();
    assert_eq!(got, 64, "a burst");
    assert_eq!(get(&greedy, 499).unwrap_err().code, Code::TooManyCertificates);
    get(&modest, 0).unwrap();
    for number in 64..400 {
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        get(&greedy, number).unwrap();
    }
    assert_eq!(greedy.kept(), 128);
    assert_ne!(greedy.key(), modest.key());
}

#[test]
fn a_certificate_is_for_one_host_and_renewed_before_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let authorities = Authorities::open(folder.path(), start()).unwrap();
    let (leaves, bundle) = (Leaves::default(), authorities.trusted(start()).unwrap());
    let config = leaves.server(&host("a.test"), &authorities, start()).unwrap();
    assert!(
        accepts(&bundle, &leaves, &authorities, "10.1.2.3", start()),
        "an address that a rule names"
    );
    for (later, same) in [(DAY * 5, true), (DAY * 7, false)] {
        let again = leaves.server(&host("a.test"), &authorities, start() + later).unwrap();
        assert_eq!(Arc::ptr_eq(&config, &again), same);
        assert!(accepts(&bundle, &leaves, &authorities, "a.test", start() + later));
    }
    let long = format!("{}.{}.test", "a".repeat(63), "b".repeat(63));
    assert!(accepts(&bundle, &leaves, &authorities, &long, start()));
}
