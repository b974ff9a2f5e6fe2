//! The programs under test, as the build left them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// `belljar`, of the same profile as this test.
pub(crate) fn belljar() -> PathBuf {
    let test = std::env::current_exe().expect("ask which program runs");
    let folder = test
        .parent()
        .and_then(std::path::Path::parent)
        .expect("a test stands in deps/");
    let program = folder.join("belljar");
    assert!(program.exists(), "{} is missing: cargo build --bins", program.display());
    program
}

/// `belljar-runtime`, small and static, built once.
pub(crate) fn runtime() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let target = belljar()
                .parent()
                .and_then(std::path::Path::parent)
                .expect("a target folder")
                .to_owned();
            let program = target.join("runtime/belljar-runtime");
            if !program.exists() {
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                let build = [
                    "build",
                    "--locked",
                    "--profile",
                    "runtime",
                    "--package",
                    "belljar-runtime",
                ];
                testkit::run_within(std::time::Duration::from_secs(600), Command::new(cargo).args(build));
            }
            program
        })
        .clone()
}
