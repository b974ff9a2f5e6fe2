//! Event streams, of which nobody has more than is good for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::UserId;

use crate::error::ApiError;

/// Streams of one user at the same time.
const OF_ONE_USER: usize = 128;

/// How many each user has open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Mutex<HashMap<UserId, usize>>>);

/// One stream of a user, while it lasts.
#[derive(Debug)]
pub(crate) struct Place {
    user: UserId,
    streams: Streams,
}

impl Streams {
    /// A place for one more; refused where the user has as many as anybody may.
    pub(crate) fn enter(&self, user: UserId) -> Result<Place, ApiError> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(user).or_default();
        if *count >= OF_ONE_USER {
            return Err(ApiError::too_many(format!(
                "you have {OF_ONE_USER} event streams open, and nobody may have more: close those that you no longer read"
            )));
        }
        *count += 1;
        Ok(Place {
            user,
            streams: self.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}
