//! Our images in the engine, each given to it once.
//!
//! The engine is given the layers of an image's base as the archive that `docker save` would have written; what was committed
//! since is shown beside it. What it has of ours is named `belljar-image-<hash of the data folder's path>:<digest of the base>`:
//! an engine may serve several.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;

use bollard::query_parameters::{ListImagesOptionsBuilder, RemoveImageOptions};
use bytes::Bytes;
use containers::attempt::Attempt;
use containers::library::{Image, Layer, Library};
use sandbox::{ImageDigest, ProviderError};
use serde_json::json;
use tokio::sync::mpsc;

use crate::engine::{Engine, is};

const REPOSITORY: &str = "belljar-image";
/// Pieces of an archive that are under way to the engine, and how long one is.
const UNDER_WAY: usize = 16;
const PIECE: usize = 256 << 10;

/// What an engine is given of our images.
#[derive(Debug)]
pub(crate) struct GivenImages {
    /// What the engine calls those of this installation.
    repository: String,
    /// Held while one is given: two at once would only be slower.
    giving: Mutex<()>,
}

impl GivenImages {
    /// Those of the installation with this data directory.
    pub(crate) fn of(data: &Path) -> Self {
        // FNV-1a: a name that stays the same, of letters that the engine takes.
        let number = data
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        Self {
            repository: format!("{REPOSITORY}-{number:016x}"),
            giving: Mutex::default(),
        }
    }

    /// What the engine calls an image.
    pub(crate) fn name(&self, digest: &ImageDigest) -> String {
        format!("{}:{digest}", self.repository)
    }

    /// Sees to it that the engine has this image's base.
    pub(crate) fn offer(&self, engine: &Engine, image: &Image) -> Result<(), ProviderError> {
        let digest = &image.base;
        if self.has(engine, digest)? {
            return Ok(());
        }
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has(engine, digest)? {
            return Ok(());
        }
        tracing::info!(image = %digest, "giving an image to Docker's engine");
        let (pieces, mut receiver) = mpsc::channel(UNDER_WAY);
        let (tag, base) = (self.name(digest), base(image));
        let packing = thread::Builder::new()
            .name("image".into())
            .spawn(move || pack(&base, &tag, pieces))
            .attempt(|| "start a thread for an image's archive".into())?;
        let archive = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        let given = engine.load(|| format!("give image {digest} to Docker's engine"), archive);
        // Where it failed the engine has refused a piece: what it said itself tells more.
        let _packed = packing.join();
        given?;
        if self.has(engine, digest)? {
            return Ok(());
        }
        Err(ProviderError::failed(
            format!("give image {digest} to Docker's engine"),
            "it took the archive and has no such image",
        ))
    }

    fn has(&self, engine: &Engine, digest: &ImageDigest) -> Result<bool, ProviderError> {
        engine.ask(
            || format!("ask Docker's engine for image {digest}"),
            async |docker| match docker.inspect_image(&self.name(digest)).await {
                Ok(_) => Ok(true),
                Err(error) if is(&error, 404) => Ok(false),
                Err(error) => Err(error),
            },
        )
    }

    /// Takes from the engine the images that no image is based on any more.
    pub(crate) fn collect(&self, engine: &Engine, library: &dyn Library) -> Result<(), ProviderError> {
        let based: BTreeSet<_> = library
            .list()?
            .into_iter()
            .map(|image| image.base.unwrap_or(image.digest))
            .collect();
        let filters = std::collections::HashMap::from([("reference", vec![self.repository.as_str()])]);
        let found = engine.ask(
            || "have Docker's engine list its images".into(),
            async |docker| {
                docker
                    .list_images(Some(ListImagesOptionsBuilder::new().filters(&filters).build()))
                    .await
            },
        )?;
        for tag in found.into_iter().flat_map(|image| image.repo_tags) {
            let kept = tag
                .strip_prefix(&self.repository)
                .and_then(|rest| rest.strip_prefix(':'))
                .is_none_or(|digits| digits.parse().is_ok_and(|digest| based.contains(&digest)));
            if kept {
                continue;
            }
            let removed = engine.ask(
                || format!("have Docker's engine remove the image {tag}"),
                async |docker| match docker.remove_image(&tag, None::<RemoveImageOptions>, None).await {
                    // In use, or gone.
                    Err(error) if is(&error, 409) || is(&error, 404) => Ok(()),
                    removed => removed.map(|_| ()),
                },
            );
            removed?;
            tracing::info!(tag, "Docker's engine had an image that is there no longer");
        }
        Ok(())
    }
}

/// The image that a base was, of whatever was made on it since.
fn base(image: &Image) -> Image {
    let mut base = image.clone();
    base.layers.truncate(image.base_layers);
    let ids: Vec<String> = base.layers.iter().map(|layer| format!("sha256:{}", layer.id)).collect();
    base.configuration["rootfs"] = json!({ "type": "layers", "diff_ids": ids });
    base
}

/// Writes the archive that `docker save` would have written, piece by piece.
fn pack(image: &Image, tag: &str, pieces: mpsc::Sender<io::Result<Bytes>>) {
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(PIECE, Pieces(pieces.clone())));
    let packed = pack_into(&mut archive, image, tag).and_then(|()| archive.into_inner()?.flush());
    if let Err(error) = packed {
        // Whoever reads may have gone.
        let _gone = pieces.blocking_send(Err(error));
    }
}

fn pack_into<W: Write>(archive: &mut tar::Builder<W>, image: &Image, tag: &str) -> io::Result<()> {
    const CONFIGURATION: &str = "config.json";
    let name = |layer: &Layer| format!("{}.tar", layer.id);
    let layers: Vec<String> = image.layers.iter().map(name).collect();
    let manifest = json!([{ "Config": CONFIGURATION, "RepoTags": [tag], "Layers": layers }]);
    for (name, text) in [
        ("manifest.json", manifest),
        (CONFIGURATION, image.configuration.clone()),
    ] {
        let text = text.to_string();
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    for layer in &image.layers {
        archive.append_file(name(layer), &mut File::open(&layer.archive)?)?;
    }
    archive.finish()
}

/// What is written to it goes to whoever receives.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
