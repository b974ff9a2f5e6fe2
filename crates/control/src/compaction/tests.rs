use bytes::Bytes;

use super::*;

/// `p` is a prompt, `c` makes calls, `r` holds their results, `a` is an answer; each of some tokens.
fn history(kinds: &str, tokens: u64) -> Vec<Line> {
    let line = |(place, kind)| Line::of(place as i64 + 1, Bytes::new(), tokens * 3, kind == 'c');
    kinds.chars().enumerate().map(line).collect()
}

#[test]
fn a_call_is_never_parted_from_its_result() {
    for kinds in ["pcrcrcra", "pcrcrcr", "pcr", "papapa", "pcrapcrcrap", "p", "pc", "pp"] {
        for keep in [0, 50, 100, 250, 10_000] {
            let lines = history(kinds, 100);
            let Some(end) = boundary(&lines, keep) else { continue };
            assert!(end > 1 && end < lines.len(), "{kinds} {keep}: {end}");
            assert_ne!(kinds.as_bytes()[end - 1], b'c', "{kinds} {keep}: {end}");
            assert_ne!(kinds.as_bytes()[end], b'r', "{kinds} {keep}: {end}");
        }
    }
}

#[test]
fn what_is_kept_is_as_much_as_asked_where_that_parts_nothing() {
    assert_eq!(boundary(&history("papapapa", 100), 250), Some(5));
    assert_eq!(boundary(&history("pcrcrcr", 100), 100), Some(5));
    assert_eq!(boundary(&history("pcrcrcr", 100), 300), Some(5));
    assert_eq!(boundary(&history("pcr", 100), 100), None);
}

#[test]
fn a_piece_fits_its_room_and_parts_nothing() {
    for kinds in ["pcrcrcra", "pcrcrcr", "pcr", "papapa", "pcrapcrcrap", "p", "pp"] {
        let lines = history(kinds, 100);
        for room in [0, 100, 200, 250, 300, 450, 10_000] {
            let Some(end) = piece(&lines, room) else { continue };
            assert!(end > 1 && end as u64 * 100 <= room, "{kinds} {room}: {end}");
            assert_ne!(kinds.as_bytes()[end - 1], b'c', "{kinds} {room}: {end}");
        }
    }
    let lines = history("pcrcrcra", 100);
    assert_eq!(piece(&lines, 600), Some(5));
    assert_eq!(piece(&lines, 10_000), Some(8));
    assert_eq!(piece(&lines, 250), None, "a call is not shown without its result");
}
