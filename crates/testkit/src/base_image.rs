//! What the base image has, for whoever tries it.

/// What is run in the image, by bash and as its user, and how its answer begins.
pub const PROMISES: &[(&str, &str)] = &[
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
