//! Whom the user's programs trust: the authorities of the image, and those of this installation, who sign for hosts whose
//! traffic the control plane reads.
//!
//! Most programs look into one file of the system, some bring a list of their own and look where the environment says, Java
//! has a format of its own. All of them are told at once, when a session claims the sandbox, and again when it does so with
//! other authorities. Certificates are public; a key of an authority never comes here.
//!
//! The bundles stand in /run, which begins empty: so they are always of this claim and of this image. The system's own file
//! is changed in place, between marks, where the root file system can be written.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use causes::with_causes;
use tracing::warn;

mod java;
mod pem;

const FOLDER: &str = "/run/belljar-trust";

/// Where systems keep all authorities in one file: Debian, Alpine and Arch; Fedora; openSUSE; LibreSSL's.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where OpenSSH looks for the keys of hosts, whoever the user is.
const KNOWN_HOSTS: &str = "/etc/ssh/ssh_known_hosts";

/// Where Java's authorities are.
const JAVA: [&str; 2] = ["/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts"];

/// No file of authorities is as long.
const LONGEST: u64 = 16 << 20;

const BEGIN: &str = "# The next certificates are of the control plane of this sandbox.\n";
const END: &str = "# Until here.\n";

/// Variables that name a file with everybody who is trusted, or with those who are trusted beside a list of the program's own, and who
/// reads them.
const BUNDLE: [&str; 12] = [
    "SSL_CERT_FILE",                      // OpenSSL, Go, rustls-native-certs, uv, Ruby, Bun
    "CURL_CA_BUNDLE",                     // curl
    "GIT_SSL_CAINFO",                     // git
    "REQUESTS_CA_BUNDLE",                 // requests
    "PIP_CERT",                           // pip
    "CARGO_HTTP_CAINFO",                  // cargo
    "AWS_CA_BUNDLE",                      // boto
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", // gcloud
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",   // gRPC
    "PERL_LWP_SSL_CA_FILE",               // LWP
    "NODE_EXTRA_CA_CERTS",                // Node, npm, Bun: beside their own
    "DENO_CERT",                          // Deno: beside its own
];

/// The user's programs cannot be told whom to trust.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error("the authorities that came with the claim are no certificates")]
    NotCertificates,
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Has the user's programs trust these authorities (PEM) from now on; answers with what their environment says of it. Blocks.
pub(crate) fn establish(authorities: &str) -> Result<BTreeMap<String, String>, TrustError> {
    if authorities.trim().is_empty() {
        return Ok(BTreeMap::new());
    }
    let ours = pem::certificates(authorities).ok_or(TrustError::NotCertificates)?;
    let folder = Path::new(FOLDER);
    let made = fs::create_dir_all(folder).and_then(|()| fs::set_permissions(folder, PermissionsExt::from_mode(0o755)));
    made.map_err(|source| TrustError::Write {
        path: folder.to_owned(),
        source,
    })?;
    let bundle = folder.join("bundle.pem");
    let image = SYSTEM
        .iter()
        .find_map(|path| text_of(Path::new(path)).ok())
        .unwrap_or_default();
    let everybody = with_ours(&image, &ours);
    replace(&bundle, everybody.as_bytes())?;
    for path in SYSTEM.map(Path::new) {
        // Where one is missing, or leads elsewhere, nobody looks there.
        if let Ok(text) = text_of(path) {
            said(replace_if_other(
                path,
                text.as_bytes(),
                with_ours(&text, &ours).as_bytes(),
            ));
        }
    }
    for path in JAVA.map(Path::new) {
        if let Ok(before) = content_of(path) {
            said(replace_if_other(
                path,
                &before,
                &java::key_store(&pem::blocks(&everybody)),
            ));
        }
    }
    let bundle = bundle.display().to_string();
    Ok(BUNDLE.map(|name| (name.to_owned(), bundle.clone())).into())
}

/// Has the user's programs trust these keys of SSH hosts from now on. Blocks.
pub(crate) fn establish_hosts(known_hosts: &str) {
    let path = Path::new(KNOWN_HOSTS);
    let before = match text_of(path) {
        Ok(before) => before,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !known_hosts.is_empty() => {
            // A client may be installed later. Where the folder cannot be made, writing says so.
            let _ = fs::create_dir_all("/etc/ssh");
            String::new()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(%error, path = KNOWN_HOSTS, "the keys of SSH hosts are not trusted: the file cannot be read");
            return;
        }
    };
    if known_hosts.is_empty() && !before.contains(BEGIN) {
        return;
    }
    said(replace_if_other(
        path,
        before.as_bytes(),
        with_ours(&before, known_hosts).as_bytes(),
    ));
}

/// The programs that know of the environment alone do trust: the rest goes without.
fn said(written: Result<(), TrustError>) {
    if let Err(error) = written {
        warn!(
            error = with_causes(&error),
            "programs that read this file themselves will not trust the control plane"
        );
    }
}

/// The image's authorities and ours, between marks, in the place of ours before.
fn with_ours(image: &str, ours: &str) -> String {
    let before = match (image.find(BEGIN), image.find(END)) {
        (Some(begin), Some(end)) if begin < end => format!("{}{}", &image[..begin], &image[end + END.len()..]),
        _ => image.to_owned(),
    };
    let gap = if before.is_empty() || before.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    format!("{before}{gap}{BEGIN}{ours}{END}")
}

fn text_of(path: &Path) -> io::Result<String> {
    String::from_utf8(content_of(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// What stands in a file of root, and nowhere that a link leads to.
fn content_of(path: &Path) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or(0))
        .open(path)?;
    let status = file.metadata()?;
    if !status.is_file() || status.uid() != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content)?;
    Ok(content)
}

fn replace_if_other(path: &Path, before: &[u8], content: &[u8]) -> Result<(), TrustError> {
    if before == content {
        return Ok(());
    }
    replace(path, content)
}

/// Puts a file in the place of another, whole.
fn replace(path: &Path, content: &[u8]) -> Result<(), TrustError> {
    let beside = path.with_extension("belljar-new");
    let write = || {
        // One that a process of ours left behind when it died.
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&beside)?;
        file.write_all(content)?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| TrustError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_stand_beside_those_of_the_image_once_and_are_replaced_by_newer_ones() {
        let image = "A\nB";
        let first = with_ours(image, "one\n");
        assert_eq!(first, format!("A\nB\n{BEGIN}one\n{END}"));
        assert_eq!(with_ours(&first, "one\n"), first);
        assert_eq!(with_ours(&first, "two\n"), format!("A\nB\n{BEGIN}two\n{END}"));
        assert_eq!(with_ours("", "one\n"), format!("{BEGIN}one\n{END}"));
    }
}
