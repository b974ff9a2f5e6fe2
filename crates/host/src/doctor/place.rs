//! Whether there is room, a user, a port, and the programs that belong to it.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;

use super::Machine;
use super::attempt::{Lack, NotDone, OrLacking};

const GIB: u64 = 1 << 30;

pub(super) fn root(_machine: &Machine) -> Result<String, Lack> {
    if rustix::process::geteuid().is_root() {
        return Ok("this is root, which makes sandboxes".to_owned());
    }
    Err(Lack::lacking(
        "this is not root, and only root can try what sandboxes need",
        "sudo belljar doctor",
    ))
}

/// The user of the process that holds secrets is known.
pub(super) fn user(machine: &Machine) -> Result<String, Lack> {
    let Some(user) = &machine.user else {
        return Err(Lack::warning(
            "belljar serve runs as root, so a fault of it is a fault of root",
            "useradd --system --no-create-home --shell /usr/sbin/nologin belljar, and name it in the configuration",
        ));
    };
    let add = format!("useradd --system --no-create-home --shell /usr/sbin/nologin {user}");
    let getent = Path::new("getent");
    match machine.run(getent, &["passwd", user], "") {
        Ok(line) if line.split(':').nth(2) == Some("0") => Err(Lack::warning(
            format!("the user {user} is root, so a fault of belljar serve is a fault of root"),
            add,
        )),
        Ok(_) => Ok(format!("belljar serve runs as {user}")),
        Err(NotDone::Failed(_)) => Err(Lack::lacking(format!("there is no user {user}"), add)),
        Err(failed) => Err(failed.lack(getent, "libc-bin", &add)),
    }
}

pub(super) fn space(machine: &Machine) -> Result<String, Lack> {
    let there = machine.place();
    let mend = "free some space, or choose another data directory";
    let about = rustix::fs::statvfs(there).or_lacking("the data directory cannot be looked at", mend)?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    let says = format!("{} has {} free", there.display(), words(free));
    match free {
        0..GIB => Err(Lack::lacking(says, mend)),
        // An image takes two, and sessions want some.
        _ if free < 5 * GIB => Err(Lack::warning(says, mend)),
        _ => Ok(says),
    }
}

pub(super) fn memory(_machine: &Machine) -> Result<String, Lack> {
    let mend = "give the machine more memory, or give sandboxes less";
    let table = fs::read_to_string("/proc/meminfo").or_lacking("the machine's memory cannot be looked at", mend)?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let free = kilobytes.unwrap_or_default().saturating_mul(1024);
    let says = format!("{} of memory are free", words(free));
    if free < GIB {
        return Err(Lack::warning(says, mend));
    }
    Ok(says)
}

/// The programs that build images are there, and the keys that packages are checked with.
pub(super) fn building(machine: &Machine) -> Result<String, Lack> {
    for (program, package) in [("mmdebstrap", "mmdebstrap"), ("npm", "npm")] {
        let install = format!("apt-get install {package}");
        let run = machine.run(Path::new(program), &["--version"], "");
        run.map_err(|failed| {
            let lack = failed.lack(Path::new(program), package, &install);
            Lack::warning(format!("images cannot be built: {}", lack.says()), install)
        })?;
    }
    let keys = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    match fs::read(keys) {
        Ok(bytes) if !bytes.is_empty() => Ok("mmdebstrap and npm run".to_owned()),
        _ => Err(Lack::warning(
            format!("images cannot be built: Debian's keys are not in {}", keys.display()),
            "apt-get install debian-archive-keyring",
        )),
    }
}

/// The program that is PID 1 in a sandbox runs on this machine.
pub(super) fn runtime(machine: &Machine) -> Result<String, Lack> {
    let Some(program) = machine.runtime.iter().find(|place| place.is_file()) else {
        let places: Vec<String> = machine
            .runtime
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        return Err(Lack::lacking(
            format!("there is no {}", places.join(" and no ")),
            "it comes with belljar and belongs beside it: build or install it, or name it in sandbox.program",
        ));
    };
    let path = program.display();
    match machine.run(program, &["--version"], "") {
        Ok(said) if said.starts_with("belljar-runtime ") => Ok(format!("{path} runs")),
        _ => Err(Lack::lacking(
            format!("{path} is not a belljar-runtime that runs on this machine"),
            "it comes with belljar and belongs beside it: install it again, or make demo",
        )),
    }
}

pub(super) fn ports(machine: &Machine) -> Result<String, Lack> {
    for address in &machine.ports {
        match TcpListener::bind(address) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                return Err(Lack::warning(
                    format!("{address} is taken: by a belljar that runs already, or by another program"),
                    format!(
                        "ss -ltnp 'sport = :{}' says by which; `listen` in the configuration names another",
                        address.port()
                    ),
                ));
            }
            Err(error) => {
                return Err(Lack::lacking(
                    format!("nobody can listen on {address}: {error}"),
                    "`listen` in the configuration names another address",
                ));
            }
        }
    }
    Ok("belljar serve can listen".to_owned())
}

fn words(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) / GIB;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}
