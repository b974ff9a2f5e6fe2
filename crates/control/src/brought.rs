//! The skills that images bring: what a session is told of is what its own image has, whatever newer ones have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sandbox::ImageDigest;
use skills::Skill;

use crate::live::lock;

/// Images whose skills are kept in memory.
const KEPT: usize = 16;

/// Reads the skills that an image brings. It blocks.
pub type ReadSkills = dyn Fn(&ImageDigest) -> Vec<Skill> + Send + Sync;

/// Skills, by the image that brings them.
pub(crate) struct Brought {
    read: Option<Arc<ReadSkills>>,
    /// Those that were read: an image never changes.
    known: Mutex<HashMap<ImageDigest, Arc<[Skill]>>>,
}

impl Brought {
    pub(crate) fn new(read: Option<Box<ReadSkills>>) -> Self {
        Self {
            read: read.map(Arc::from),
            known: Mutex::default(),
        }
    }

    /// What an image brings.
    pub(crate) async fn skills(&self, image: &ImageDigest) -> Arc<[Skill]> {
        let known = lock(&self.known).get(image).cloned();
        if let Some(known) = known {
            return known;
        }
        let Some(read) = self.read.clone() else {
            return Arc::default();
        };
        let digest = image.clone();
        let reading = tokio::task::spawn_blocking(move || read(&digest));
        let skills: Arc<[Skill]> = reading.await.unwrap_or_default().into();
        // An image that could not be read is read again.
        if !skills.is_empty() {
            let mut known = lock(&self.known);
            if known.len() >= KEPT {
                known.clear();
            }
            known.insert(image.clone(), Arc::clone(&skills));
        }
        skills
    }
}
