//! Images for others: one archive that is an OCI image layout and that `docker load` takes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use sandbox::ImageDigest;
use serde_json::{Value, json};
use tar::Header;

use crate::layout::{self, BLOBS};
use crate::library::{ImageFolder, LAYOUT};
use crate::{Generation, LibraryError};

impl ImageFolder {
    /// Writes the newest image of a name, or the one whose digest begins so, into an archive that is not there.
    ///
    /// # Errors
    /// Where there is no such image, or the archive cannot be written, in which case it is not there.
    pub fn export(&self, image: &str, to: &Path) -> Result<Generation, LibraryError> {
        let mut meant = self.meant(image)?;
        let generation = meant.swap_remove(0);
        let failed = |error| LibraryError::new("write", to)(error);
        let file = File::create_new(to).map_err(failed)?;
        let written = pack(&generation, file);
        if written.is_err() {
            // What went wrong first is what the caller learns.
            let _removed = fs::remove_file(to);
        }
        written.map_err(failed)?;
        Ok(generation)
    }
}

fn pack(generation: &Generation, file: File) -> io::Result<()> {
    let layout = generation.folder.join(LAYOUT);
    let blob = |digest: &ImageDigest| format!("{BLOBS}/{digest}");
    let manifest: Value = serde_json::from_slice(&fs::read(layout.join(blob(&generation.digest)))?)?;
    let configuration = layout::digest(&manifest["config"])?;
    let layers = layout::layers(&layout)?;
    let names: Vec<String> = layers.iter().map(blob).collect();
    let for_docker = json!([{
        "Config": blob(&configuration),
        "RepoTags": [format!("{}:latest", generation.name)],
        "Layers": names,
    }]);

    let mut archive = tar::Builder::new(BufWriter::with_capacity(1 << 18, file));
    for name in ["oci-layout", "index.json"] {
        append(&mut archive, name, &fs::read(layout.join(name))?)?;
    }
    append(&mut archive, "manifest.json", for_docker.to_string().as_bytes())?;
    for digest in [&generation.digest, &configuration] {
        append(&mut archive, &blob(digest), &fs::read(layout.join(blob(digest)))?)?;
    }
    let mut written = Vec::new();
    for name in &names {
        // The same layer may be there twice.
        if !written.contains(&name) {
            let mut layer = File::open(layout.join(name))?;
            let mut header = header(layer.metadata()?.len());
            archive.append_data(&mut header, name, &mut layer)?;
            written.push(name);
        }
    }
    let file = archive
        .into_inner()?
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

fn append<W: Write>(archive: &mut tar::Builder<W>, name: &str, bytes: &[u8]) -> io::Result<()> {
    archive.append_data(&mut header(bytes.len() as u64), name, bytes)
}

fn header(bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(bytes);
    header.set_mode(0o644);
    header
}
