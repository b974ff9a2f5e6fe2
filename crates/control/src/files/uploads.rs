//! Uploads keep a sandbox awake; what is written again and again does not do so for ever.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::live::lock;

/// How long after an upload a sandbox still counts as used.
const RECENTLY: Duration = Duration::from_secs(5);
/// For how long uploads alone keep it so.
const AT_MOST: Duration = Duration::from_secs(600);

/// A session's uploads that follow each other closely.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<Span>);

#[derive(Debug, Default)]
struct Span {
    /// When the first of them began.
    first: Option<Instant>,
    /// When one began, ended or was asked for last.
    last: Option<Instant>,
    under_way: usize,
}

impl Span {
    fn goes_on(&self) -> bool {
        self.under_way > 0 || self.last.is_some_and(|last| last.elapsed() < RECENTLY)
    }

    fn touch(&mut self) {
        let now = Instant::now();
        if self.first.is_none() || !self.goes_on() {
            self.first = Some(now);
        }
        self.last = Some(now);
    }
}

impl Uploads {
    /// Whether any is under way, or was a moment ago.
    pub(super) fn are_under_way(&self) -> bool {
        let span = lock(&self.0);
        span.goes_on() && span.first.is_some_and(|first| first.elapsed() < AT_MOST)
    }

    /// One was asked for, and follows in a moment.
    pub(super) fn expected(&self) {
        lock(&self.0).touch();
    }

    /// One is under way as long as what is returned is held.
    pub(super) fn begin(&self) -> Uploading<'_> {
        let mut span = lock(&self.0);
        span.touch();
        span.under_way += 1;
        Uploading(self)
    }
}

/// An upload is under way while this is held.
#[derive(Debug)]
pub(super) struct Uploading<'u>(&'u Uploads);

impl Drop for Uploading<'_> {
    fn drop(&mut self) {
        let mut span = lock(&self.0.0);
        span.under_way -= 1;
        span.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_upload_counts_as_long_as_it_is_under_way_and_not_for_ever() {
        let uploads = Uploads::default();
        assert!(!uploads.are_under_way());
        uploads.expected();
        assert!(uploads.are_under_way());
        advance(RECENTLY).await;
        assert!(!uploads.are_under_way(), "it never came");
        let upload = uploads.begin();
        advance(AT_MOST / 2).await;
        assert!(uploads.are_under_way(), "it is slow");
        let other = uploads.begin();
        drop(upload);
        advance(AT_MOST / 2).await;
        assert!(!uploads.are_under_way(), "they follow each other for too long");
        drop(other);
        advance(RECENTLY).await;
        let _later = uploads.begin();
        assert!(uploads.are_under_way());
    }
}
