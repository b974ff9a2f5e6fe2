//! Which control plane is asked, and as whom, where the environment says so.

use secret::Secret;

/// `BELLJAR_URL` and `BELLJAR_TOKEN`.
pub(crate) fn named() -> (Option<String>, Option<Secret>) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    (variable("BELLJAR_URL"), variable("BELLJAR_TOKEN").map(Secret::new))
}
