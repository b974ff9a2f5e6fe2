//! What a builder knows becomes an image.

use std::os::fd::{AsFd, OwnedFd};

use domain::SandboxId;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use sandbox::{ImageDigest, ProviderError, inside};

use super::Shared;
use super::places::Place;
use crate::disk::UPPER;

impl Shared {
    pub(super) fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        let held = self.find(id)?;
        let spec = &held.record.spec;
        if !spec.builder {
            return Err(ProviderError::NotABuilder(id));
        }
        let _alone = self.places.take([Place::Disk(spec.session)]);
        held.in_turn(|held| {
            held.stand_still(|shown| {
                let disk = self.workshop.pool.look_at(spec.session, shown)?;
                let knowledge = knowledge(&disk, id)?;
                let knowledge = knowledge.as_ref().map(AsFd::as_fd);
                self.workshop
                    .library
                    .commit(&spec.image, knowledge, spec.limits.disk_bytes)
            })
        })
    }

    pub(super) fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        let _alone = self.places.take([Place::Image(image.clone())]);
        let user = self
            .sandboxes()
            .values()
            .find(|held| held.record.spec.image == *image)
            .map(|held| held.record.spec.id);
        match user {
            Some(sandbox) => Err(ProviderError::ImageInUse {
                image: image.clone(),
                sandbox,
            }),
            // Whoever wants a sandbox of it meanwhile waits, and is told that it is not there.
            None => self.workshop.library.remove(image),
        }
    }
}

/// The folder with what was written below `/knowledge`; none where nothing was.
fn knowledge(disk: &OwnedFd, id: SandboxId) -> Result<Option<OwnedFd>, ProviderError> {
    let place = format!("{UPPER}{}", inside::KNOWLEDGE);
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(disk, place, flags, Mode::empty(), beneath) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(ProviderError::Limit(format!(
            "{} of sandbox {id} is no folder any more, so no image can be made of it",
            inside::KNOWLEDGE
        ))),
        Err(error) => Err(ProviderError::failed(
            format!("open {} of sandbox {id}", inside::KNOWLEDGE),
            error,
        )),
    }
}
