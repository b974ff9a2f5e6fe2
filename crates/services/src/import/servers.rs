//! Where the API is.

use std::collections::BTreeMap;

use serde_json::Value;
use url::Url;

use super::document::{Document, server_url};
use super::operation::Chosen;
use super::{ImportError, LeftOut};

/// Where most of the chosen operations are. One that is elsewhere is left out of `chosen`, and that is said: a service is at one place.
pub(super) fn read(
    document: &Document,
    said: Option<&str>,
    chosen: &mut Vec<Chosen<'_>>,
    left_out: &mut Vec<LeftOut>,
) -> Result<String, ImportError> {
    let whole = document.base_url(said);
    if said.is_some() || chosen.iter().all(|one| own(one).is_none()) {
        return whole;
    }
    let place = |one: &Chosen<'_>| match own(one) {
        None => whole.as_ref().ok().cloned(),
        Some(server) => server_url(server).ok().or_else(|| beside(whole.as_ref().ok()?, server)),
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for place in chosen.iter().filter_map(place) {
        *counts.entry(place).or_default() += 1;
    }
    let is_whole = |place: &String| whole.as_ref().is_ok_and(|whole| whole == place);
    let most = counts.iter().max_by_key(|(place, count)| (**count, is_whole(place)));
    let Some(base_url) = most.map(|(place, _)| place.clone()) else {
        return whole;
    };
    chosen.retain(|one| {
        let place = place(one);
        if place.as_ref() == Some(&base_url) {
            return true;
        }
        let place = place.unwrap_or_else(|| "a place that the description leaves open".to_owned());
        left_out.push(LeftOut {
            what: one.what(),
            why: format!(
                "it is at {place}, and the service at {base_url}: import it by itself, with --only and --name"
            ),
        });
        false
    });
    Ok(base_url)
}

/// The server that an operation, or its path, says instead of the description's.
fn own<'d>(one: &Chosen<'d>) -> Option<&'d Value> {
    [one.operation, one.item]
        .into_iter()
        .find_map(|place| place["servers"].as_array()?.first())
}

/// A server that is said by where it is from another.
fn beside(whole: &str, server: &Value) -> Option<String> {
    let base = Url::parse(&format!("{whole}/")).ok()?;
    let joined = base.join(server["url"].as_str()?).ok()?;
    server_url(&serde_json::json!({ "url": joined.as_str() })).ok()
}
