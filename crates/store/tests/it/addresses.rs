//! The names of a session's synthetic addresses.

use crate::parts::{Place, SYSTEM};

#[tokio::test]
async fn a_name_has_one_address_for_ever_and_there_is_an_end_to_names() {
    let place = Place::new().await;
    let (session, _) = place.running().await;
    let (other, _) = place.running().await;
    let store = &place.store;
    let of = async |session, name: &str| store.address_of(SYSTEM, session, name, 2).await.unwrap();
    assert_eq!(of(session, "a.test").await, Some(0));
    let both = tokio::join!(of(session, "b.test"), of(session, "b.test"));
    assert_eq!(both, (Some(1), Some(1)), "who asks at once is told the same");
    assert_eq!(of(session, "c.test").await, None, "that is one too many");
    assert_eq!(of(session, "a.test").await, Some(0));
    assert_eq!(of(other, "b.test").await, Some(0), "each session counts its own");
    let at = async |session, number| store.name_at(SYSTEM, session, number).await.unwrap();
    assert_eq!(at(session, 1).await.as_deref(), Some("b.test"));
    assert_eq!(at(other, 0).await.as_deref(), Some("b.test"));
    assert_eq!(at(other, 1).await, None);
}
