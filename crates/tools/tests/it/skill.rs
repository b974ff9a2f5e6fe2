//! `skill`.

use std::path::Path;

use protocol::Grants;
use serde_json::json;

use crate::bench::Bench;

fn add(skills: &Path, name: &str) {
    let folder = skills.join(name);
    std::fs::create_dir_all(folder.join("scripts")).unwrap();
    std::fs::write(
        folder.join("SKILL.md"),
        format!("---\nname: {name}\ndescription: d\n---\n\nDo {name}.\n"),
    )
    .unwrap();
    std::fs::write(folder.join("scripts/go.mjs"), "export const go = 1;\n").unwrap();
}

#[tokio::test]
async fn a_skill_is_loaded_by_name_and_its_files_too() {
    let bench = Bench::new();
    add(&bench.skills(), "report");
    let said = bench.ok("skill", json!({ "name": "report" })).await;
    assert!(
        said.starts_with("# Skill report\n\nDo report.\n\nFiles of this skill, in "),
        "{said}"
    );
    assert!(said.ends_with("/skills/report: scripts/go.mjs"), "{said}");
    assert!(!said.contains("description: d"), "{said}");
    let said = bench
        .ok("skill", json!({ "name": "report", "file": "scripts/go.mjs" }))
        .await;
    assert_eq!(said, "export const go = 1;\n");
    let said = bench
        .ok("read", json!({ "path": "/skills/report/scripts/go.mjs" }))
        .await;
    assert_eq!(said, "1\texport const go = 1;\n");
}

#[tokio::test]
async fn only_skills_that_are_allowed_are_loaded() {
    let bench = Bench::new();
    bench.tools.grant(Grants {
        skills: Some(["report".to_owned()].into()),
        ..Grants::default()
    });
    add(&bench.skills(), "report");
    add(&bench.skills(), "payroll");
    std::os::unix::fs::symlink(bench.outside(""), bench.skills().join("link")).unwrap();
    for name in [
        "payroll",
        "link",
        "none",
        "",
        "..",
        "../outside",
        "report/../payroll",
        "report/",
        "/etc",
        "REPORT",
    ] {
        let said = bench.error("skill", json!({ "name": name })).await;
        assert!(said.contains("there are report"), "{name}: {said}");
    }
    for file in [
        "../payroll/SKILL.md",
        "/skills/payroll/SKILL.md",
        "scripts/../../payroll/SKILL.md",
        "none.md",
        "",
    ] {
        bench.error("skill", json!({ "name": "report", "file": file })).await;
    }
    assert!(
        bench
            .ok("skill", json!({ "name": "report" }))
            .await
            .contains("Do report.")
    );
}

#[tokio::test]
async fn a_broken_skill_says_why() {
    let bench = Bench::new();
    std::fs::create_dir(bench.skills().join("broken")).unwrap();
    assert!(
        bench
            .error("skill", json!({ "name": "broken" }))
            .await
            .contains("there is no /skills/broken/SKILL.md")
    );
    std::fs::write(bench.skills().join("broken/SKILL.md"), "no head").unwrap();
    assert!(
        bench
            .error("skill", json!({ "name": "broken" }))
            .await
            .contains("there is no head")
    );
}
