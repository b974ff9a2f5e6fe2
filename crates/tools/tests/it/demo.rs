//! The job of `make demo`, done for real, and its figures counted again by other means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use domain::ResultPart;
use serde_json::{Value, json};

use crate::bench::{Bench, words};

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
        .canonicalize()
        .unwrap()
}

fn bench() -> Bench {
    let bench = Bench::with(|settings| settings.skills = project("skills"));
    std::fs::copy(project("demo/seattle-weather.csv"), bench.at("seattle-weather.csv")).unwrap();
    bench
}

/// The steps of the script, without what only a sandbox has: skills stand elsewhere here.
fn script() -> Value {
    let text = std::fs::read_to_string(project("demo/scripted.yaml")).unwrap();
    let text = text.replace("'/skills/", &format!("'{}/", project("skills").display()));
    serde_yaml_ng::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_first_job_is_done_with_figures_that_are_right() {
    let (bench, script) = (bench(), script());
    for tool in script["steps"][0]["tools"].as_array().unwrap() {
        let said = bench.ok(tool["name"].as_str().unwrap(), tool["input"].clone()).await;
        println!("{said}");
    }
    let exec = &script["steps"][1]["tools"][0];
    let result = bench.call("exec", exec["input"].clone()).await;
    assert!(!result.is_error, "{}", words(&result));
    let Some(ResultPart::Text { text }) = result.content.last() else {
        panic!("{result:?}")
    };
    let found: Value = serde_json::from_str(text).unwrap();

    // The same, counted here.
    let csv = bench.text("seattle-weather.csv");
    let days: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let tenths = |cell: &str| (cell.parse::<f64>().unwrap() * 10.0).round() as i64;
    let mut rain_by_year: BTreeMap<&str, i64> = BTreeMap::new();
    days.iter()
        .for_each(|day| *rain_by_year.entry(&day[0][..4]).or_default() += tenths(day[1]));
    let rain = |tenths: i64| json!(tenths as f64 / 10.0);
    let equal = |found: &Value, expected: Value| {
        assert!(
            (found.as_f64().unwrap() - expected.as_f64().unwrap()).abs() < 0.06,
            "{found} is not {expected}"
        );
    };
    assert_eq!(found["rows"], 1_461);
    assert_eq!(found["left_out"], 0);
    assert_eq!(found["years"].as_array().unwrap().len(), 4);
    for (year, (name, total)) in found["years"].as_array().unwrap().iter().zip(&rain_by_year) {
        assert_eq!(year["year"], **name);
        equal(&year["rain_mm"], rain(*total));
    }
    equal(&found["all"]["rain_mm"], rain(rain_by_year.values().sum()));
    assert_eq!(
        found["all"]["wet_days"],
        days.iter().filter(|day| tenths(day[1]) > 0).count()
    );
    assert_eq!(found["snow_days"], days.iter().filter(|day| day[5] == "snow").count());
    equal(
        &found["hottest"]["high"],
        rain(days.iter().map(|day| tenths(day[2])).max().unwrap()),
    );
    equal(
        &found["coldest"]["low"],
        rain(days.iter().map(|day| tenths(day[3])).min().unwrap()),
    );

    // Whatever the answer names is there.
    let answer = script["steps"][2]["text"].as_str().unwrap();
    for expression in answer.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
        let path = expression.split('|').next().unwrap().trim();
        let pointer = path.strip_prefix("result.0.json").unwrap().replace('.', "/");
        assert!(
            found.pointer(&pointer).is_some_and(|value| !value.is_null()),
            "{path} is not in {found}"
        );
    }

    let monthly = bench.text("report/monthly.csv");
    assert_eq!(monthly.lines().count(), 1 + 48);
    assert!(
        monthly.starts_with("month,days,rain_mm,wet_days,mean_high,mean_low\n2012-01,31,"),
        "{monthly}"
    );
    let chart = bench
        .call("read", json!({ "path": "report/rain-and-warmth.png" }))
        .await;
    assert!(
        words(&chart).starts_with("rain-and-warmth.png: image/png, 1000×560 pixels"),
        "{}",
        words(&chart)
    );
    // A program that is not ours finds it whole.
    let said = bench.ok("exec", json!({ "code": "
        import { inflateSync } from 'node:zlib';
        import { readFile } from 'node:fs/promises';
        const png = await readFile('report/rain-and-warmth.png');
        const pieces = []; let data = Buffer.alloc(0);
        for (let at = 8; at < png.length;) {
            const length = png.readUInt32BE(at), name = png.toString('latin1', at + 4, at + 8);
            if (name === 'IDAT') data = png.subarray(at + 8, at + 8 + length);
            pieces.push(name); at += length + 12;
        }
        const rows = inflateSync(data);
        const colours = new Set(); for (let n = 1; n + 2 < rows.length; n += 3001) for (let x = n - n % 3001 + 1; x < n - n % 3001 + 3001; x += 3) colours.add(rows.readUIntBE(x, 3));
        return { pieces, bytes: rows.length, bars: colours.has(0x2f6fb2), lines: colours.has(0xdd6b20) && colours.has(0x388e3c) }" })).await;
    assert_eq!(
        said,
        "{\"pieces\":[\"IHDR\",\"IDAT\",\"IEND\"],\"bytes\":1680560,\"bars\":true,\"lines\":true}"
    );
}

#[tokio::test]
async fn a_chart_that_cannot_be_drawn_is_refused_in_words() {
    let bench = bench();
    let import = format!(
        "import {{ chart }} from '{}/data-report/scripts/chart.mjs';",
        project("skills").display()
    );
    for (options, expected) in [
        ("{}", "`labels` must be a list"),
        ("{ labels: ['a'] }", "`series` must be a list"),
        (
            "{ labels: ['a'], series: [{ name: 'x', kind: 'pie', values: [1] }] }",
            "must be 'bar' or 'line', not pie",
        ),
        (
            "{ labels: ['a'], series: [{ name: 'x', kind: 'bar', values: [1, 2] }] }",
            "x has 2 values for 1 labels",
        ),
        (
            "{ labels: ['a'], series: [{ name: 'x', kind: 'bar', values: [null] }] }",
            "x has no number to draw",
        ),
    ] {
        let said = bench
            .error("exec", json!({ "code": format!("{import}\nchart({options})") }))
            .await;
        assert!(said.contains(expected), "{options}: {said}");
    }
    for values in ["[0]", "[-5]", "[0.001]", "[1e12]", "[-3, 4]", "[null, 2, null]"] {
        let count = values.split(',').count();
        let labels: Vec<String> = (0..count).map(|n| format!("'{n}'")).collect();
        let code = format!(
            "{import}\nreturn ['bar', 'line'].map((kind) => chart({{ labels: [{}], series: [{{ name: 'x', kind, values: {values} }}] }}).length > 1000)",
            labels.join(",")
        );
        assert_eq!(
            bench.ok("exec", json!({ "code": code })).await,
            "[true,true]",
            "{values}"
        );
    }
}

#[test]
fn every_skill_that_ships_is_without_findings() {
    let (skills, left_out) = skills::load_folder(&project("skills")).unwrap();
    assert_eq!(left_out, []);
    assert!(!skills.is_empty());
    for skill in &skills {
        assert_eq!(skills::check(skill), [], "{}", skill.name);
    }
    let catalogue = skills::catalogue(&skills);
    assert!(
        catalogue.starts_with("- data-report: Turns a data file") || catalogue.contains("\n- data-report: "),
        "{catalogue}"
    );
}
