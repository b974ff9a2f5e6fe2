//! `read`.

use domain::ResultPart;
use serde_json::json;

use crate::bench::Bench;

/// A picture of one pixel.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8\xcf\xc0\0\0\x03\x01\x01\0\xc9\xfe\x92\xef\0\0\0\0IEND\xaeB`\x82";

#[tokio::test]
async fn text_comes_in_numbered_parts() {
    let mut bench = Bench::new();
    bench.limits.output_bytes = 2_000;
    let lines: String = (1..=1_000).map(|number| format!("line {number}\n")).collect();
    bench.put("long.txt", lines);
    let first = bench.ok("read", json!({ "path": "long.txt" })).await;
    assert!(
        first.len() <= 2_000 && first.starts_with("1\tline 1\n2\tline 2\n"),
        "{first}"
    );
    let next: u64 = first
        .rsplit("offset ")
        .next()
        .unwrap()
        .trim_end_matches("]\n")
        .parse()
        .unwrap();
    let second = bench
        .ok("read", json!({ "path": "long.txt", "offset": next, "limit": 2 }))
        .await;
    let expected = format!(
        "{next}\tline {next}\n{0}\tline {0}\n[lines {next}–{0} of 1000; go on with offset {1}]\n",
        next + 1,
        next + 2
    );
    assert_eq!(second, expected);
    bench.put("empty", "");
    assert_eq!(bench.ok("read", json!({ "path": "empty" })).await, "empty is empty.");
}

#[tokio::test]
async fn pictures_are_shown_as_pictures_unless_they_are_too_large() {
    let bench = Bench::new();
    bench.put("dot.png", PNG);
    let result = bench.call("read", json!({ "path": "dot.png" })).await;
    let [ResultPart::Text { text }, ResultPart::Image(image)] = result.content.as_slice() else {
        panic!("{result:?}")
    };
    assert!(text.starts_with("dot.png: image/png, 1×1 pixels"), "{text}");
    assert_eq!(image.media_type, "image/png");
    assert!(image.data.starts_with("iVBORw0KGgo"), "{}", image.data);

    let mut huge = PNG.to_vec();
    huge.resize(5_000_000, 0);
    bench.put("huge.png", huge);
    let said = bench.ok("read", json!({ "path": "huge.png" })).await;
    assert!(said.contains("too large to be shown"), "{said}");

    // One that no provider could read would be refused with each request of its session from then on.
    bench.put("half.png", &PNG[..PNG.len() / 2]);
    let said = bench.ok("read", json!({ "path": "half.png" })).await;
    assert!(said.contains("cannot be shown: it is a broken image/png"), "{said}");
}

#[tokio::test]
async fn what_is_no_text_is_said_to_be_binary() {
    let bench = Bench::new();
    for (content, expected) in [
        (&b"\x7fELF\x02\x01\x01\0\0"[..], "an ELF program"),
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive"),
        (b"abc\0def", "unknown kind"),
    ] {
        bench.put("file", content);
        let said = bench.ok("read", json!({ "path": "file" })).await;
        assert!(said.contains("binary") && said.contains(expected), "{said}");
    }
    bench.put("latin1", b"caf\xe9\n");
    let said = bench.ok("read", json!({ "path": "latin1" })).await;
    assert!(
        said.starts_with("1\tcaf\u{fffd}\n") && said.contains("not all of it is UTF-8"),
        "{said}"
    );
}

#[tokio::test]
async fn a_folder_is_listed() {
    let bench = Bench::new();
    bench.put("b.txt", "12345");
    bench.put("a/x", "");
    std::os::unix::fs::symlink("b.txt", bench.at("c")).unwrap();
    let said = bench.ok("read", json!({ "path": "." })).await;
    assert_eq!(
        said,
        ". is a folder with 3 entries:\na/\nb.txt  5 bytes\nc  (symbolic link)\n"
    );
}

#[tokio::test]
async fn the_text_of_a_pdf_is_read() {
    let bench = Bench::new();
    bench.put("hello.pdf", pdf("Hello from a PDF"));
    let said = bench.ok("read", json!({ "path": "hello.pdf" })).await;
    assert!(
        said.starts_with("(text of a PDF)\n1\t") && said.contains("Hello from a PDF"),
        "{said}"
    );
    bench.put("broken.pdf", "%PDF-1.4\nnothing of the kind");
    let said = bench.error("read", json!({ "path": "broken.pdf" })).await;
    assert!(said.starts_with("pdftotext cannot read broken.pdf: "), "{said}");
}

/// A PDF of one page with one line.
fn pdf(line: &str) -> Vec<u8> {
    let content = format!("BT /F1 24 Tf 72 700 Td ({line}) Tj ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
    ];
    let mut file = "%PDF-1.4\n".to_owned();
    let mut places = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", index + 1));
    }
    let table = file.len();
    file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1));
    places
        .iter()
        .for_each(|place| file.push_str(&format!("{place:010} 00000 n \n")));
    file.push_str(&format!(
        "trailer << /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n",
        objects.len() + 1
    ));
    file.into_bytes()
}
