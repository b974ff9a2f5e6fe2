//! Squid, from Debian's package with TLS, as a proxy on loopback.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use super::{listens, run};

/// A squid. Ends with its value.
pub(crate) struct Squid {
    pub(crate) address: SocketAddr,
    /// What a client must trust where connections are read.
    pub(crate) authority: PathBuf,
    process: Child,
    _folder: TempDir,
}

/// Tunnels, and reads nothing.
pub(crate) fn passing() -> anyhow::Result<Squid> {
    start(|_, port| Ok(format!("http_port 127.0.0.1:{port}\n")))
}

/// Reads every connection, and sets a bearer token in every request.
pub(crate) fn reading(upstream: &Path, token: &str) -> anyhow::Result<Squid> {
    start(|folder, port| {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "bench");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let own = params.self_signed(&key)?.pem();
        fs::write(folder.join("own.pem"), format!("{own}{}", key.serialize_pem()))?;
        fs::write(folder.join("authority.pem"), own)?;
        let shown = folder.display();
        run(Command::new("/usr/lib/squid/security_file_certgen").args([
            "-c",
            "-s",
            &format!("{shown}/certificates"),
            "-M",
            "4MB",
        ]))?;
        run(Command::new("chown").args(["-R", "proxy:proxy", &shown.to_string()]))?;
        Ok(format!(
            "http_port 127.0.0.1:{port} ssl-bump generate-host-certificates=on dynamic_cert_mem_cache_size=4MB tls-cert={shown}/own.pem\n\
             sslcrtd_program /usr/lib/squid/security_file_certgen -s {shown}/certificates -M 4MB\nsslcrtd_children 1\n\
             ssl_bump bump all\ntls_outgoing_options cafile={}\n\
             request_header_access Authorization deny all\nrequest_header_add Authorization \"Bearer {token}\" all\n",
            upstream.display()
        ))
    })
}

fn start(listen: impl FnOnce(&Path, u16) -> anyhow::Result<String>) -> anyhow::Result<Squid> {
    let program = Path::new("/usr/sbin/squid");
    if !program.is_file() {
        bail!("squid is not installed: `make bench` installs it");
    }
    let folder = tempfile::Builder::new().prefix("bench-squid").tempdir_in("/var/tmp")?;
    run(Command::new("chown").arg("proxy:proxy").arg(folder.path()))?;
    let port = testkit::free_port();
    let shown = folder.path().display();
    let listen = listen(folder.path(), port)?;
    let config = format!(
        "{listen}http_access allow localhost\nhttp_access deny all\ncache deny all\nvisible_hostname bench\npinger_enable off\n\
         pid_filename {shown}/pid\ncache_log {shown}/cache.log\naccess_log stdio:{shown}/access.log\ncoredump_dir {shown}\n\
         shutdown_lifetime 0 seconds\ndns_nameservers 127.0.0.1\n"
    );
    let file = folder.path().join("squid.conf");
    fs::write(&file, config)?;
    let process = Command::new(program)
        .args(["-N", "-f"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join("said"))?)
        .spawn()
        .context("squid could not be started")?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let squid = Squid {
        address,
        authority: folder.path().join("authority.pem"),
        process,
        _folder: folder,
    };
    listens(address).context("squid does not listen")?;
    Ok(squid)
}

impl Drop for Squid {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
