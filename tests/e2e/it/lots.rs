//! What is left to chance in these tests, and how much of it there is.

use rand::Rng;

/// What repeats the lots: BELLJAR_TEST_SEED, or one that is drawn. It is said, so that who sees a failure can have it again.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("BELLJAR_TEST_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    // A script reads it as a number, too.
    let seed = seed.unwrap_or_else(|| u64::from(rand::rng().next_u32()));
    println!("BELLJAR_TEST_SEED={seed} repeats these lots");
    seed
}

/// Whether all of it is tried, which takes long: BELLJAR_TEST_FULL=1.
pub(crate) fn is_full() -> bool {
    std::env::var_os("BELLJAR_TEST_FULL").is_some()
}
