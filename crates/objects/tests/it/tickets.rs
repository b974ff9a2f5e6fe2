//! Signed URLs of the link.

use domain::{SessionId, Timestamp};
use objects::{GOOD_FOR, Method, Ticket, TicketError, Tickets};

use crate::local::key;

#[test]
fn threat_117_and_118_a_url_is_good_for_one_object_one_method_one_length_and_a_few_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let tickets = Tickets::open(&folder.path().join("key")).unwrap();
    let session = SessionId::new();
    let ticket = Ticket {
        key: key(session, b"mine"),
        bytes: 4,
    };
    let now = Timestamp(1_000_000);
    let url = tickets.sign(Method::Put, ticket, now);
    assert_eq!(tickets.check(Method::Put, &url, now), Ok(ticket));
    assert_eq!(tickets.check(Method::Put, &url, now.after(GOOD_FOR)), Ok(ticket));
    let later = Timestamp(now.after(GOOD_FOR).0 + 1);
    assert_eq!(tickets.check(Method::Put, &url, later), Err(TicketError::Expired));

    let unsigned = |method, url: &str| assert_eq!(tickets.check(method, url, now), Err(TicketError::Unsigned), "{url}");
    unsigned(Method::Get, &url);
    let other = SessionId::new();
    unsigned(Method::Put, &url.replace(&session.to_string(), &other.to_string()));
    unsigned(Method::Put, &url.replace("bytes=4", "bytes=5"));
    unsigned(Method::Put, &url.replace("until=", "until=9"));
    let (mine, theirs) = (
        ticket.key.sha256.to_string(),
        key(session, b"theirs").sha256.to_string(),
    );
    unsigned(Method::Put, &url.replace(&mine, &theirs));
    unsigned(Method::Put, &url.replace(&mine, &mine.to_uppercase()));
    let (own, upper) = (session.to_string(), session.to_string().to_uppercase());
    unsigned(Method::Put, &url.replace(&own, &upper));
    unsigned(Method::Put, &format!("{url}&more=1"));
    unsigned(Method::Put, &url.replace("/v1/objects/", "/v1/objects/../objects/"));
    unsigned(Method::Put, "");

    // The key outlives the process, and is of this installation.
    let again = Tickets::open(&folder.path().join("key")).unwrap();
    assert_eq!(again.check(Method::Put, &url, now), Ok(ticket));
    let foreign = Tickets::open(&folder.path().join("other")).unwrap();
    assert_eq!(foreign.check(Method::Put, &url, now), Err(TicketError::Unsigned));
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    Tickets::open(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = Tickets::open(&path).unwrap_err();
    assert!(error.to_string().contains("others can read it"), "{error}");
}
