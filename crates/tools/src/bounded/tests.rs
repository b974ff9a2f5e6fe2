use super::*;
use crate::Settings;

fn cleaned(pieces: &[&[u8]]) -> String {
    let mut cleaner = Cleaner::default();
    let mut text: String = pieces.iter().map(|piece| cleaner.push(piece)).collect();
    text.push_str(&cleaner.finish());
    text
}

#[test]
fn threat_115_terminal_codes_are_taken_out() {
    for (bytes, expected) in [
        (&b"plain \xc3\xa9\ttext\n"[..], "plain é\ttext\n"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b[1;38;5;196mbold\x1b[m\x1b[2J\x1b[H", "bold"),
        (b"\x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\", "click"),
        (b"\x1b]8;;https://evil.example/\x07click\x1b]8;;\x07", "click"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b]52;c;ZXZpbA==\x07clipboard", "clipboard"),
        (b"\x1bPq#0;2;0;0;0\x1b\\sixel", "sixel"),
        (b"\x1b_apc\x1b\\a\x1b^pm\x1b\\b\x1bXsos\x1b\\c", "abc"),
        (b"\x1b(Bset\x1b)0\x1b=\x1b>\x1bc", "set"),
        (b"\xc2\x9b31mc1\xc2\x9dtitle\xc2\x9cend", "c1end"),
        (b"a\x08b\x07c\x00d\x7fe", "abcde"),
        (b"10%\r20%\r\r30%\r\ndone\r", "10%\n20%\n30%\ndone\n"),
        (b"\x1b]8;;never ended\nnext line", "\nnext line"),
        (b"\x1b[9999", ""),
        (b"bad \xff\xfe utf8 \xe2\x82", "bad \u{fffd}\u{fffd} utf8 \u{fffd}"),
        (b"\x1b\x1b[31mx", "x"),
    ] {
        assert_eq!(cleaned(&[bytes]), expected, "{bytes:?}");
        // However the pipe cuts it.
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(cleaned(&single), expected, "{bytes:?} byte by byte");
    }
}

fn files() -> (tempfile::TempDir, Files) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::sandbox(vec![], [].into());
    settings.workspace = folder.path().to_owned();
    let files = Files::open(&settings).unwrap();
    (folder, files)
}

#[test]
fn threat_115_an_output_bomb_is_cut_and_kept_in_a_file() {
    let (folder, files) = files();
    let mut collector = Collector::clean(&files, "bomb.txt".into(), 1_000);
    for number in 0..10_000 {
        collector.push(format!("line {number} \x1b[31mé\x1b[0m\n").as_bytes());
    }
    let collected = collector.finish();
    assert!(!collected.whole);
    assert!(collected.text.len() <= 1_000, "{}", collected.text.len());
    assert!(collected.text.starts_with("line 0 é\nline 1 é\n"), "{}", collected.text);
    assert!(collected.text.ends_with("line 9999 é\n"), "{}", collected.text);
    assert!(
        collected
            .text
            .contains("bytes left out; all of it is in /workspace/.belljar/bomb.txt"),
        "{}",
        collected.text
    );
    let kept = std::fs::read_to_string(folder.path().join(".belljar/bomb.txt")).unwrap();
    assert_eq!(kept.lines().count(), 10_000);
}

#[test]
fn what_fits_is_whole_and_makes_no_file() {
    let (folder, files) = files();
    for length in [0, 1, 999, 1_000] {
        let mut collector = Collector::raw(&files, "x".into(), 1_000);
        let text = "y".repeat(length);
        collector.push(text.as_bytes());
        let collected = collector.finish();
        assert!(collected.whole);
        assert_eq!(collected.text, text);
    }
    assert!(!folder.path().join(".belljar").exists());
}

#[test]
fn what_cannot_be_kept_is_said_to_be_lost() {
    let (folder, files) = files();
    std::fs::write(folder.path().join(".belljar"), "a file is in the way").unwrap();
    let mut collector = Collector::raw(&files, "x".into(), 400);
    collector.push(&[b'y'; 4_000]);
    let collected = collector.finish();
    assert!(collected.text.contains("the rest is lost"), "{}", collected.text);
}

#[test]
fn no_more_is_kept_than_a_disk_can_bear() {
    let (folder, files) = files();
    let mut collector = Collector::raw(&files, "x".into(), 1_000);
    let piece = vec![b'y'; 1024 * 1024];
    (0..70).for_each(|_| drop(collector.push(&piece)));
    let collected = collector.finish();
    assert!(
        collected
            .text
            .contains("its beginning is in /workspace/.belljar/x: only its first"),
        "{}",
        collected.text
    );
    assert_eq!(
        std::fs::metadata(folder.path().join(".belljar/x")).unwrap().len(),
        MAX_KEPT
    );
}
