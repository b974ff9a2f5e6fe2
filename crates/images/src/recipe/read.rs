//! Reads a recipe, key by key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::table::{Faults, Table, Text};
use super::{Debian, Folder, USUAL_MODE, User, Variant, Wanted, is_word};

impl Wanted {
    /// Reads all that the recipe says but for `/knowledge`. Where something is wrong, anything may stand in its place.
    pub(super) fn read(recipe: &Table<'_>, faults: &Faults<'_>) -> Self {
        let description = recipe
            .required("description", "\"What it is for.\"")
            .map(Text::into_inner);
        let (date, epoch) = day(recipe, faults).unwrap_or_default();
        let debian = recipe.required_table("debian", "suite = \"trixie\" and packages = [\"bash\"]");
        let user = recipe.required_table("user", "name = \"agent\", id = 1000 and folder = \"/workspace\"");
        let user = user.map(|table| User::read(table, faults));
        let environment = recipe.pairs("environment", "\"C.UTF-8\"").into_iter();
        let environment = environment.map(|(name, value)| {
            variable(&name, &value, faults);
            (name.into_inner(), value.into_inner())
        });
        let environment = environment.collect();
        let mut npm = npm(recipe, faults);
        let mut places = Places {
            taken: BTreeMap::new(),
            faults,
        };
        let folders = folders(recipe, &mut places);
        let files = places.of(recipe, "files", "\"text\"").into_iter();
        let files = files.map(|(path, text)| (path, text.into_inner())).collect();
        let copies = places.of(recipe, "copies", "\"../../skills\"").into_iter();
        let copies = copies.filter_map(|(path, from)| Some((path, some_path("copies", &from, faults)?)));
        let copies = copies.collect();
        let links = places.of(recipe, "links", "\"usr/local/bin/bun\"").into_iter();
        let links = links.filter_map(|(path, to)| Some((path, some_path("links", &to, faults)?)));
        let mut links: BTreeMap<_, _> = links.collect();
        for (machine, table) in recipe.named("machine") {
            // What is wrong for another machine is wrong here too.
            let (packages, more) = of_machine(table, faults);
            if machine.get_ref() == std::env::consts::ARCH {
                npm.extend(packages);
                links.extend(more);
            }
        }
        let remove = recipe.texts("remove", "\"/usr/share/doc\"");
        once("remove", &remove, faults);
        let remove = remove.iter().filter_map(|path| place("remove", path, faults)).collect();
        Self {
            description: description.unwrap_or_default(),
            date,
            epoch,
            debian: debian.map(|table| Debian::read(table, faults)).unwrap_or_default(),
            npm,
            user: user.unwrap_or_default(),
            environment,
            folders,
            files,
            copies,
            links,
            remove,
        }
    }
}

impl Debian {
    fn read(table: Table<'_>, faults: &Faults<'_>) -> Self {
        let suite = table.required("suite", "\"trixie\"");
        if let Some(suite) = &suite
            && !is_word(suite.get_ref(), "-")
        {
            let words = "is no name of a suite: write one, such as \"trixie\"";
            faults.add(
                &suite.span(),
                format_args!("debian.suite = {:?} {words}", suite.get_ref()),
            );
        }
        let variant = match table.word("variant", &["essential", "extract"]) {
            Some("extract") => Variant::Extract,
            _ => Variant::Essential,
        };
        let packages = table.required_texts("packages", "\"bash\"");
        for package in packages.iter().filter(|package| !is_word(package.get_ref(), "+.-")) {
            let words = "is no name of a package: write it in small letters, digits and + . -, such as \"ripgrep\"";
            faults.add(
                &package.span(),
                format_args!("debian.packages: {:?} {words}", package.get_ref()),
            );
        }
        once("debian.packages", &packages, faults);
        let leave_out = table.texts("leave_out", "\"/usr/share/man/*\"");
        for pattern in &leave_out {
            let text = pattern.get_ref();
            if !text.starts_with('/') || text.contains(char::is_whitespace) {
                let words = "should be a pattern of a full path, such as /usr/share/man/*";
                faults.add(&pattern.span(), format_args!("debian.leave_out: {text:?} {words}"));
            }
        }
        once("debian.leave_out", &leave_out, faults);
        table.finish();
        let texts = |texts: Vec<Text>| texts.into_iter().map(Text::into_inner).collect();
        Self {
            suite: suite.map(Text::into_inner).unwrap_or_default(),
            variant,
            packages: texts(packages),
            leave_out: texts(leave_out),
        }
    }
}

impl User {
    fn read(table: Table<'_>, faults: &Faults<'_>) -> Self {
        let name = table.required("name", "\"agent\"");
        if let Some(name) = &name
            && !is_word(name.get_ref(), "_-")
        {
            let words = "is no name of a user: write it in small letters, digits, _ and -, such as \"agent\"";
            faults.add(&name.span(), format_args!("user.name = {:?} {words}", name.get_ref()));
        }
        let id = table.required_number("id", 1, 65_533, "1000");
        let folder = table.required("folder", "\"/workspace\"");
        let folder = folder.and_then(|folder| place("user.folder", &folder, faults));
        table.finish();
        Self {
            name: name.map(Text::into_inner).unwrap_or_default(),
            id: id.unwrap_or_default(),
            folder: folder.unwrap_or_default(),
        }
    }
}

/// The recipe's date, and its midnight.
fn day(recipe: &Table<'_>, faults: &Faults<'_>) -> Option<(String, u64)> {
    let (place, day) = recipe.day("date", "2026-11-01")?;
    let epoch = epoch(&day);
    if epoch.is_none() {
        let words = "should be a day since 1970 without an hour, such as 2026-11-01";
        faults.add(&place, format_args!("date = {day} {words}"));
    }
    Some((day.to_string(), epoch?))
}

fn variable(name: &Text, value: &Text, faults: &Faults<'_>) {
    if name.get_ref().is_empty() || name.get_ref().contains(['=', '\0']) {
        let words = "cannot be the name of a variable: write one without =, such as LANG";
        faults.add(&name.span(), format_args!("environment: {:?} {words}", name.get_ref()));
    }
    if value.get_ref().contains('\0') {
        let words = "has a zero byte in it: leave it out";
        faults.add(&value.span(), format_args!("environment.{} {words}", name.get_ref()));
    }
}

/// Packages of npm, each with its exact version.
fn npm(table: &Table<'_>, faults: &Faults<'_>) -> BTreeMap<String, String> {
    let pairs = table.pairs("npm", "\"3.10.1\"").into_iter();
    let pairs = pairs.map(|(package, version)| {
        let (name, number) = (package.get_ref(), version.get_ref());
        if !is_package(name) {
            let words = "is no name of a package: write it as the registry has it, such as prettier or \"@types/node\"";
            faults.add(&package.span(), format_args!("npm: {name:?} {words}"));
        }
        if !number.starts_with(|first: char| first.is_ascii_digit()) || !is_word(number, ".+-") {
            let words = "should be a package and an exact version, such as \"3.10.1\"";
            faults.add(&version.span(), format_args!("npm: {name:?} = {number:?} {words}"));
        }
        (package.into_inner(), version.into_inner())
    });
    pairs.collect()
}

/// `name`, or `@scope/name`.
fn is_package(name: &str) -> bool {
    let parts: Vec<&str> = match name.strip_prefix('@') {
        Some(scoped) => scoped.split('/').collect(),
        None => vec![name],
    };
    parts.len() == 1 + usize::from(name.starts_with('@')) && parts.iter().all(|part| is_word(part, "-._"))
}

/// What is wanted besides on one kind of processor.
fn of_machine(table: Table<'_>, faults: &Faults<'_>) -> (BTreeMap<String, String>, BTreeMap<PathBuf, PathBuf>) {
    let packages = npm(&table, faults);
    let mut places = Places {
        taken: BTreeMap::new(),
        faults,
    };
    let links = places.of(&table, "links", "\"usr/local/bin/bun\"").into_iter();
    let links = links.filter_map(|(path, to)| Some((path, some_path("links", &to, faults)?)));
    let links = links.collect();
    table.finish();
    (packages, links)
}

fn folders(recipe: &Table<'_>, places: &mut Places<'_>) -> BTreeMap<PathBuf, Folder> {
    let mut folders = BTreeMap::new();
    for (path, table) in recipe.named("folders") {
        let owner = table.number("owner", 0, 65_535).unwrap_or_default();
        let mode = table.text("mode", "\"755\"").and_then(|mode| {
            let bits = u32::from_str_radix(mode.get_ref(), 8);
            let bits = bits.ok().filter(|bits| *bits <= 0o7777);
            if bits.is_none() {
                let words = format_args!(
                    "folders: the mode {:?} of {} should be octal digits, such as \"1777\"",
                    mode.get_ref(),
                    path.get_ref()
                );
                places.faults.add(&mode.span(), words);
            }
            bits
        });
        table.finish();
        if let Some(path) = places.take("folders", &path) {
            let mode = mode.unwrap_or(USUAL_MODE);
            folders.insert(path, Folder { owner, mode });
        }
    }
    folders
}

/// What stands where in the image: each place has one thing.
struct Places<'f> {
    taken: BTreeMap<PathBuf, &'static str>,
    faults: &'f Faults<'f>,
}

impl Places<'_> {
    /// The pairs of a table whose names are places.
    fn of(&mut self, table: &Table<'_>, key: &'static str, example: &str) -> Vec<(PathBuf, Text)> {
        let pairs = table.pairs(key, example).into_iter();
        pairs
            .filter_map(|(path, text)| Some((self.take(key, &path)?, text)))
            .collect()
    }

    fn take(&mut self, key: &'static str, path: &Text) -> Option<PathBuf> {
        let there = place(key, path, self.faults)?;
        if let Some(other) = self.taken.insert(there.clone(), key) {
            let words = format_args!(
                "{key}: {} stands in [{other}] already: keep one of the two",
                there.display()
            );
            self.faults.add(&path.span(), words);
        }
        Some(there)
    }
}

/// A full path in the image.
fn place(key: &str, path: &Text, faults: &Faults<'_>) -> Option<PathBuf> {
    let there = PathBuf::from(path.get_ref());
    let is_place = there.is_absolute()
        && !there.components().any(|part| matches!(part, Component::ParentDir))
        && there != Path::new("/")
        && !path.get_ref().contains('\0');
    if !is_place {
        let words = "should be a full path without .., such as /etc/hosts";
        faults.add(&path.span(), format_args!("{key}: {:?} {words}", path.get_ref()));
        return None;
    }
    Some(there)
}

/// A path that is not empty.
fn some_path(key: &str, path: &Text, faults: &Faults<'_>) -> Option<PathBuf> {
    if path.get_ref().is_empty() || path.get_ref().contains('\0') {
        let words = "is no path: write where it leads, such as \"../../skills\"";
        faults.add(&path.span(), format_args!("{key}: {:?} {words}", path.get_ref()));
        return None;
    }
    Some(path.get_ref().into())
}

/// Says of what stands in a list twice that it does.
fn once(key: &str, texts: &[Text], faults: &Faults<'_>) {
    let mut seen = BTreeSet::new();
    for text in texts.iter().filter(|text| !seen.insert(text.get_ref())) {
        let words = format_args!("{key}: {:?} stands there twice: leave one away", text.get_ref());
        faults.add(&text.span(), words);
    }
}

/// Midnight UTC of a plain day, in seconds since 1970.
fn epoch(date: &toml::value::Datetime) -> Option<u64> {
    let (Some(date), None, None) = (date.date, date.time, date.offset) else {
        return None;
    };
    // Days from the civil calendar: years begin in March, so that the leap day is the last.
    let (year, month, day) = (i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468;
    u64::try_from(days * 86_400).ok()
}
