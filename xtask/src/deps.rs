//! Holds the crates' real edges, as cargo sees them, against the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::cargo;
use crate::plan::{BANNED, BETWEEN_ADAPTERS, ELSEWHERE, OF_LINUX, PLAN, Planned, Row};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    id: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

/// As much of `deny.toml` as is read here.
#[derive(Deserialize)]
struct Deny {
    bans: Bans,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

/// What the programs are built for.
const THIS_SYSTEM: &str = "x86_64-unknown-linux-gnu";
/// What the client commands are looked at for: that their crates can be had there.
const OTHER_SYSTEM: &str = "aarch64-apple-darwin";

/// What cargo knows of every crate, for all systems or for one.
fn metadata(platform: Option<&str>) -> anyhow::Result<Metadata> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(
            platform
                .into_iter()
                .flat_map(|platform| ["--filter-platform", platform]),
        )
        .output()
        .context("cargo metadata could not be started")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Compares, and says every difference at once.
pub(crate) fn check() -> anyhow::Result<()> {
    let metadata = metadata(None)?;
    let mut faults = Vec::new();
    let members: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| metadata.workspace_members.contains(&package.id))
        .collect();
    for package in &members {
        check_edges(package, &members, &mut faults);
        check_manifest(package, &mut faults)?;
    }
    for planned in PLAN {
        if !members.iter().any(|package| package.name == planned.name) && planned.row != Row::Development {
            faults.push(format!("{} stands in the plan and not in the house", planned.name));
        }
    }
    check_banned(&metadata, &members, &mut faults);
    check_denied(&mut faults)?;
    check_elsewhere(&metadata, &members, &mut faults)?;
    if faults.is_empty() {
        println!("deps: {} crates stand as planned", members.len());
        return Ok(());
    }
    bail!("the house differs from xtask/src/plan.rs:\n  {}", faults.join("\n  "));
}

fn find(name: &str) -> Option<&'static Planned> {
    PLAN.iter().find(|planned| planned.name == name)
}

fn check_edges(package: &Package, members: &[&Package], faults: &mut Vec<String>) {
    let Some(planned) = find(&package.name) else {
        faults.push(format!("{} is not in the plan: which row is it of?", package.name));
        return;
    };
    let used: Vec<&Dependency> = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
        .filter(|dependency| members.iter().any(|member| member.name == dependency.name))
        .collect();
    for below in planned.uses {
        if !used.iter().any(|dependency| dependency.name == *below) {
            faults.push(format!(
                "{} → {below} stands in the plan and not in the house",
                package.name
            ));
        }
    }
    for dependency in used {
        let edge = format!("{} → {}", package.name, dependency.name);
        if !planned.uses.contains(&dependency.name.as_str()) {
            faults.push(format!("{edge} is not in the plan"));
        }
        let Some(below) = find(&dependency.name) else { continue };
        if below.row > planned.row {
            faults.push(format!("{edge} goes up, from {:?} to {:?}", planned.row, below.row));
        }
        let between = planned.row == Row::Adapter && below.row == Row::Adapter;
        if between
            && !BETWEEN_ADAPTERS
                .iter()
                .any(|(from, to, _)| *from == package.name && *to == dependency.name)
        {
            faults.push(format!("{edge} joins two adapters"));
        }
    }
}

fn check_manifest(package: &Package, faults: &mut Vec<String>) -> anyhow::Result<()> {
    if ["common", "utils", "util", "core", "helpers"].contains(&package.name.as_str()) {
        faults.push(format!("{} is no name for a room", package.name));
    }
    let path = &package.manifest_path;
    let manifest = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    if package.name != "sys" && !manifest.contains("[lints]\nworkspace = true") {
        faults.push(format!("{} does not inherit the workspace's lints", package.name));
    }
    if package.name != "sys" {
        let sources = path.parent().context("a manifest stands in a folder")?.join("src");
        let files = if sources.exists() {
            rust_files(&sources)?
        } else {
            Vec::new()
        };
        for file in files {
            let text = std::fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            if text.contains(concat!("allow(", "unsafe_code")) {
                faults.push(format!("{} allows unsafe code: that belongs to sys", file.display()));
            }
        }
    }
    Ok(())
}

fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

fn check_banned(metadata: &Metadata, members: &[&Package], faults: &mut Vec<String>) {
    for (name, banned) in BANNED {
        let Some(package) = members.iter().find(|package| package.name == *name) else {
            continue;
        };
        for found in linked(metadata, package).intersection(&banned.iter().copied().collect()) {
            faults.push(format!("{name} links {found}, which it must not know"));
        }
    }
}

/// What `deny.toml` bans is nowhere among the crates, those of tests and build scripts included. cargo-deny says the same, and
/// more; it takes minutes to build, so only the big tests bring it.
fn check_denied(faults: &mut Vec<String>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string("deny.toml").context("deny.toml cannot be read")?;
    let denied: Deny = toml::from_str(&text).context("deny.toml is not understood")?;
    let metadata = self::metadata(Some(THIS_SYSTEM))?;
    let used: BTreeSet<&str> = metadata
        .resolve
        .nodes
        .iter()
        .filter_map(|node| metadata.packages.iter().find(|package| package.id == node.id))
        .map(|package| package.name.as_str())
        .collect();
    for ban in denied.bans.deny {
        if used.contains(ban.name.as_str()) {
            faults.push(format!("{} is used, which deny.toml bans: {}", ban.name, ban.reason));
        }
    }
    Ok(())
}

/// Holds what the program links on another system against what it may.
fn check_elsewhere(metadata: &Metadata, members: &[&Package], faults: &mut Vec<String>) -> anyhow::Result<()> {
    let program = members.iter().find(|package| package.name == "belljar");
    let program = program.context("there is no crate belljar")?;
    let here = linked(metadata, program);
    let there = self::metadata(Some(OTHER_SYSTEM))?;
    let there = linked(&there, program);
    for member in members {
        let (name, planned) = (member.name.as_str(), ELSEWHERE.contains(&member.name.as_str()));
        if there.contains(name) != planned {
            let is = if planned { "is not" } else { "is" };
            faults.push(format!(
                "{name} {is} linked by belljar on {OTHER_SYSTEM}, other than ELSEWHERE says"
            ));
        }
    }
    for (name, why) in OF_LINUX {
        if there.contains(name) {
            faults.push(format!("belljar links {name} on {OTHER_SYSTEM}: {why}"));
        }
        if !here.contains(name) {
            faults.push(format!("{name} stands in OF_LINUX and belljar does not link it at all"));
        }
    }
    Ok(())
}

/// The names of all crates that a crate links, itself among them.
fn linked<'m>(metadata: &'m Metadata, package: &Package) -> BTreeSet<&'m str> {
    let names: BTreeMap<&str, &str> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package.name.as_str()))
        .collect();
    let edges: BTreeMap<&str, Vec<&str>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| {
            let normal = node
                .deps
                .iter()
                .filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            (node.id.as_str(), normal.map(|edge| edge.pkg.as_str()).collect())
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut open = Vec::from_iter(edges.get_key_value(package.id.as_str()).map(|(id, _)| *id));
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(edges.get(id).into_iter().flatten());
        }
    }
    seen.iter().filter_map(|id| names.get(id).copied()).collect()
}
