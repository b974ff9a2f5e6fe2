use super::*;

const TOKEN: &str = "sk-live/4f+9&\"x\\y=é\u{1f512}Zz";

fn scrub() -> Scrub {
    Scrub::of([&Secret::new(TOKEN)])
}

fn in_pieces(scrub: &Scrub, pieces: &[&[u8]]) -> Vec<u8> {
    let mut stream = scrub.stream();
    let mut clean = Vec::new();
    for piece in pieces {
        clean.extend_from_slice(&stream.push(Bytes::copy_from_slice(piece)));
    }
    clean.extend_from_slice(&stream.finish());
    clean
}

fn spellings_of(token: &str) -> Vec<Vec<u8>> {
    let mut spellings = Vec::new();
    spelling::of(token.as_bytes(), &mut spellings);
    spellings
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_text_that_breaks_off_within_a_spelling_is_known_from_one_that_does_not() {
    let secrets = [Secret::new(TOKEN), Secret::new("sk-live/4"), Secret::new("zzzz-zzzz")];
    let Some(spellings) = Scrub::of(&secrets).0 else {
        panic!("there is something to look for");
    };
    let mut beginnings: Vec<&[u8]> = vec![b"sk-live/5", b"zzzz-zzzz", b"~~", b"\0"];
    for spelling in &spellings.list {
        beginnings.extend((1..=spelling.len()).map(|length| &spelling[..length]));
    }
    for beginning in beginnings {
        let goes_on = |spelling: &Vec<u8>| spelling.len() > beginning.len() && spelling.starts_with(beginning);
        let expected = spellings.list.iter().any(goes_on);
        assert_eq!(
            spellings.is_begun(beginning),
            expected,
            "{}",
            String::from_utf8_lossy(beginning)
        );
    }
}

#[test]
fn threat_045_every_spelling_is_masked_at_every_border_of_pieces() {
    let scrub = scrub();
    for spelling in spellings_of(TOKEN) {
        let mut text = b"{\"you sent\": \"".to_vec();
        text.extend_from_slice(&spelling);
        text.extend_from_slice(b"\"}");
        for border in 0..=text.len() {
            let clean = in_pieces(&scrub, &[&text[..border], &text[border..]]);
            assert_eq!(clean.len(), text.len());
            assert!(
                !contains(&clean, &spelling),
                "{:?} cut at {border}",
                String::from_utf8_lossy(&spelling)
            );
            assert!(clean.starts_with(b"{\"you sent\": \"") && clean.ends_with(b"\"}"));
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert!(!contains(&in_pieces(&scrub, &bytes), &spelling));
    }
}

#[test]
fn threat_045_a_basic_header_with_the_secret_in_it_is_masked() {
    use base64::Engine as _;
    for user in ["", "a", "ab", "abc", "x-access-token"] {
        let composed = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{TOKEN}"));
        let clean = scrub().clean(Bytes::from(format!("Basic {composed} was sent")));
        let clean = String::from_utf8(clean.to_vec()).unwrap();
        let word = clean.split(' ').nth(1).unwrap();
        let shown = word.trim_start_matches(|letter| letter != '*').trim_matches('*');
        assert!(shown.len() <= 4, "{shown:?} is left of {composed}");
        assert!(word.matches('*').count() > TOKEN.len(), "{clean}");
    }
}

#[test]
fn what_the_json_of_this_house_escapes_is_masked() {
    let text = serde_json::to_string(&serde_json::json!({"headers": {"authorization": TOKEN}})).unwrap();
    let clean = scrub().clean(Bytes::from(text));
    assert!(clean.ends_with(b"**\"}}"), "{}", String::from_utf8_lossy(&clean));
}

#[test]
fn a_piece_without_a_secret_is_not_copied_or_held() {
    let piece = Bytes::from_static(b"data: hello\n\n");
    let mut stream = scrub().stream();
    let clean = stream.push(piece.clone());
    assert_eq!(clean.as_ptr(), piece.as_ptr());
    assert_eq!(clean, piece);
    assert!(stream.finish().is_empty());
}

#[test]
fn only_what_may_become_a_secret_is_held() {
    let mut stream = scrub().stream();
    assert_eq!(stream.push(Bytes::from_static(b"a disk-")), "a di");
    assert_eq!(stream.push(Bytes::from_static(b"drive")), "sk-drive");
}

#[test]
fn a_longer_secret_wins_and_a_shorter_one_is_found_where_the_longer_breaks_off() {
    let scrub = Scrub::of([&Secret::new("abcdef"), &Secret::new("abcdefghij"), &Secret::new("bcdx")]);
    assert_eq!(in_pieces(&scrub, &[b"-abcdefgh", b"ij-"]), b"-**********-");
    assert_eq!(in_pieces(&scrub, &[b"-abcdefgh", b"-"]), b"-******gh-");
    assert_eq!(in_pieces(&scrub, &[b"-abcd", b"x-"]), b"-a****-");
}

#[test]
fn pieces_of_any_length_give_the_same_as_the_whole() {
    let scrub = Scrub::of([&Secret::new("aabaab"), &Secret::new("baaba"), &Secret::new("abab")]);
    let mut seed = 7_u32;
    let mut next = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % below
    };
    for _ in 0..2000 {
        let text: Vec<u8> = (0..next(60)).map(|_| if next(3) == 0 { b'b' } else { b'a' }).collect();
        let whole = scrub.clean(Bytes::copy_from_slice(&text));
        let mut pieces = Vec::new();
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(next(9) as usize));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(
            in_pieces(&scrub, &pieces),
            whole,
            "{:?}",
            String::from_utf8_lossy(&text)
        );
    }
}

#[test]
fn a_secret_of_no_length_finds_nothing() {
    let scrub = Scrub::of([&Secret::new(""), &Secret::new("ab")]);
    assert_eq!(scrub.clean(Bytes::from_static(b"ab ab")), "ab ab");
    assert!(Scrub::nothing().is_nothing());
    assert!(Scrub::of([]).is_nothing());
}

#[test]
fn a_scrub_never_prints_what_it_looks_for() {
    assert!(!format!("{:?}", scrub()).contains("sk-live"));
}
