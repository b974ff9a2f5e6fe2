//! The image that ships with the project, whole: minutes, so only where BELLJAR_TEST_FULL says so.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use images::{ImageFolder, Rebuild, Recipe};

#[test]
fn the_base_recipe_is_sound() {
    let recipe = Recipe::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/base")).unwrap();
    assert_eq!(recipe.name(), "base");
}

#[test]
fn the_base_image_has_what_it_promises() {
    if std::env::var_os("BELLJAR_TEST_FULL").is_none() {
        println!("left to the full test: it takes minutes");
        return;
    }
    let recipe = Recipe::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/base")).unwrap();
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let images = ImageFolder::open(folder.path().join("images"));
    let image = images
        .build(&recipe, Rebuild::WhenChanged, &mut |progress| println!("{progress:?}"))
        .unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)));
    println!("{} bytes", image.bytes);
    for (command, start) in PROMISES {
        let said = in_container(folder.path(), &image.folder.join("rootfs"), command);
        assert!(said.starts_with(start), "{command}: {said}");
    }
    let again = images.build(&recipe, Rebuild::Always, &mut |_| {}).unwrap();
    assert_eq!(again.digest, image.digest, "the same packages gave another image");
}

/// What is run in the image, and how its answer begins.
const PROMISES: &[(&str, &str)] = &[
    ("id -un", "agent"),
    ("node -p 'parseInt(process.versions.node) >= 22'", "true"),
    ("bun --version", "1."),
    ("python3 -c 'import json, sqlite3, ssl, csv; print(sum(range(4)))'", "6"),
    ("git --version", "git version 2."),
    ("gh --version", "gh version 2."),
    ("rg --version", "ripgrep 1"),
    ("echo '{\"a\":7}' | jq .a", "7"),
    ("pdftotext -v 2>&1", "pdftotext version"),
    ("echo 'let  a=1' | prettier --parser typescript", "let a = 1;"),
    (
        "cd /tmp && echo 'const a: number = \"x\"' > a.ts; tsc --noEmit a.ts; true",
        "a.ts(1,7): error TS2322",
    ),
    (LANGUAGE_SERVER, "Content-Length:"),
    (CHART, "89504e47"),
    ("stat -c %U /workspace", "agent"),
    ("head -n 1 /skills/*/SKILL.md | grep -e ---", "---"),
];

const LANGUAGE_SERVER: &str = r#"
    printf 'Content-Length: 102\r\n\r\n{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"processId":null,"rootUri":null,"capabilities":{}}}' > /tmp/ask
    sed -i "s/102/$(tail -n 1 /tmp/ask | wc -c)/" /tmp/ask
    (cat /tmp/ask; sleep 5) | timeout 10 tsc --lsp --stdio | head -c 200
"#;

const CHART: &str = r#"
    cd /tmp && cat > chart.mjs <<'END'
    import { writeFileSync } from 'node:fs';
    import Chart from 'chart.js/auto';
    import { createCanvas } from '@napi-rs/canvas';
    const canvas = createCanvas(400, 300);
    new Chart(canvas, {
      type: 'line',
      data: { labels: ['a', 'b', 'c'], datasets: [{ label: 'Grüße', data: [1, 3, 2] }] },
      options: { animation: false, responsive: false },
    });
    const png = canvas.toBuffer('image/png');
    writeFileSync('chart.png', png);
    console.log(png.subarray(0, 4).toString('hex'), png.length);
END
    node chart.mjs
"#;

/// Runs a command as the image's user in a container of its own, with nothing of this machine but the kernel.
fn in_container(folder: &Path, root: &Path, script: &str) -> String {
    let bundle = tempfile::tempdir_in(folder).unwrap();
    testkit::run(Command::new("runc").arg("spec").current_dir(bundle.path()));
    let path = bundle.path().join("config.json");
    let mut spec: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(root.with_file_name("config.json")).unwrap()).unwrap();
    // It is a link to the files of the image's layer.
    let files = root.canonicalize().unwrap();
    spec["root"] = serde_json::json!({ "path": files, "readonly": true });
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["bash", "-c", script]);
    spec["process"]["env"] = config["config"]["Env"].clone();
    spec["process"]["user"] = serde_json::json!({ "uid": 1000, "gid": 1000 });
    let temporary =
        serde_json::json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"] });
    spec["mounts"].as_array_mut().unwrap().push(temporary);
    std::fs::write(&path, spec.to_string()).unwrap();
    let name = format!(
        "belljar-test-{}",
        bundle
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_start_matches('.')
    );
    testkit::run_within(
        Duration::from_secs(60),
        Command::new("runc").arg("run").arg(name).current_dir(bundle.path()),
    )
}
