//! Those who read: connections of their own, which never wait for the one who writes.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::StoreError;
use crate::connection::{Access, Connection};
use crate::error::database;
use crate::open::apart;

/// Connections that read, each used by one at a time.
#[derive(Debug)]
pub(crate) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    free: Arc<Semaphore>,
    count: u32,
}

impl Readers {
    /// Opens so many.
    pub(crate) fn open(path: &Path, count: u32) -> Result<Self, StoreError> {
        let opened = (0..count)
            .map(|_| Connection::open(path, Access::Read))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| database("open the store", source))?;
        Ok(Self {
            idle: Arc::new(Mutex::new(opened)),
            free: Arc::new(Semaphore::new(count as usize)),
            count,
        })
    }

    /// Reads with one of them, where it keeps nobody else from going on.
    pub(crate) async fn read<T, F>(&self, attempt: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let place = Arc::clone(&self.free).acquire_owned().await;
        let place = place.map_err(|_| StoreError::Closed { attempt })?;
        let idle = Arc::clone(&self.idle);
        apart(attempt, move || {
            // The last that was given back has the most in its memory.
            let connection = lock(&idle).pop().ok_or(StoreError::Closed { attempt })?;
            let read = work(&connection);
            lock(&idle).push(connection);
            drop(place);
            read
        })
        .await
    }

    /// Lets those who read end, and closes the connections.
    pub(crate) async fn close(&self) {
        let all = self.free.acquire_many(self.count).await;
        self.free.close();
        drop(all);
        lock(&self.idle).clear();
    }
}

fn lock(idle: &Mutex<Vec<Connection>>) -> std::sync::MutexGuard<'_, Vec<Connection>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
