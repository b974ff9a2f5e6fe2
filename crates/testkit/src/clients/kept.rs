//! Clients that this machine lacks, from the package registries or compiled here, kept beside the compiler's output.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Python's, as `import` calls them; but the last, which is a program.
const PYTHON: [&str; 5] = ["pip", "requests", "httpx", "aiohttp", "uv"];

/// The npm registry's: the programs of Bun and Deno.
const NPM: [&str; 2] = ["@oven/bun-linux-x64-baseline@1.4.5", "@deno/linux-x64-glibc"];

/// The folder with whatever could be had. Only the full test asks the registries for the large ones.
#[must_use]
pub fn kept() -> PathBuf {
    let folder = crate::miniature::kept_folder().join("clients");
    let made = folder.join("made-2");
    if made.exists() {
        return folder;
    }
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap_or_else(|error| panic!("make {}: {error}", bin.display()));
    let mut pip = Command::new("/usr/bin/python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
    ])
    .arg(folder.join("python"))
    .args(PYTHON);
    attempt(&mut pip);
    if std::env::var_os("BELLJAR_TEST_FULL").is_some() {
        let mut npm = Command::new("npm");
        npm.args([
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--silent",
            "--prefix",
        ])
        .arg(&folder)
        .args(NPM);
        attempt(&mut npm);
        for (name, program) in [
            ("bun", "@oven/bun-linux-x64-baseline/bin/bun"),
            ("deno", "@deno/linux-x64-glibc/deno"),
        ] {
            let link = bin.join(name);
            let _ = std::fs::remove_file(&link);
            let linked = std::os::unix::fs::symlink(Path::new("../node_modules").join(program), &link);
            linked.unwrap_or_else(|error| panic!("link {}: {error}", link.display()));
        }
        let mut apt = Command::new("sh");
        apt.args([
            "-c",
            "apt-get download -q gh && dpkg -x gh_*.deb gh && ln -sf ../gh/usr/bin/gh bin/gh",
        ])
        .current_dir(&folder);
        attempt(&mut apt);
        std::fs::write(&made, "").unwrap_or_else(|error| panic!("write {}: {error}", made.display()));
    }
    let mut go = Command::new("/usr/local/go/bin/go");
    go.args(["build", "-o"])
        .arg(folder.join("bin/go-client"))
        .arg(super::sources().join("client.go"))
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", folder.join("go-cache"))
        .env("GOFLAGS", "-mod=mod");
    attempt(&mut go);
    folder
}

fn attempt(command: &mut Command) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => println!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => println!("{command:?}: {error}"),
    }
}
