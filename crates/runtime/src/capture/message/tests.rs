use super::*;

fn ask(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0xab, 0xcd, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend(CLASS_INTERNET.to_be_bytes());
    message
}

#[test]
fn a_question_is_read_in_lower_case() {
    let question = Question::parse(&ask("API.Example.test.", TYPE_AAAA)).unwrap();
    assert_eq!(
        (question.name.as_str(), question.wanted),
        ("api.example.test", Wanted::V6)
    );
    assert_eq!(Question::parse(&ask("", 2)).unwrap().name, "");
}

#[test]
fn an_address_is_answered_for_the_question_that_was_asked() {
    let question = Question::parse(&ask("a.test", TYPE_A)).unwrap();
    let answer = question.address(Ipv4Addr::new(198, 18, 0, 16), Ipv6Addr::LOCALHOST);
    let mut expected = vec![0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    expected.extend(&ask("a.test", TYPE_A)[HEADER..]);
    expected.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 16]);
    assert_eq!(answer, expected);
}

#[test]
fn threat_003_service_bindings_are_answered_with_nothing() {
    for kind in [64, 65, 16, 255] {
        let question = Question::parse(&ask("a.test", kind)).unwrap();
        let answer = question.address(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        assert_eq!(answer, question.answer(Code::NoError));
        assert_eq!(answer[6..8], [0, 0]);
    }
}

#[test]
fn what_is_no_plain_question_is_refused() {
    let code = |message: &[u8]| match Question::parse(message) {
        Err(Bad::Answer(answer)) => Some(answer[3] & 0x0f),
        Err(Bad::Ignore) => None,
        Ok(question) => panic!("{question:?}"),
    };
    assert_eq!(code(&[0; 11]), None);
    let mut answer = ask("a.test", TYPE_A);
    answer[2] |= 0x80;
    assert_eq!(code(&answer), None);
    let mut update = ask("a.test", TYPE_A);
    update[2] = 0x28;
    assert_eq!(code(&update), Some(4));
    let mut two = ask("a.test", TYPE_A);
    two[5] = 2;
    assert_eq!(code(&two), Some(1));
    let mut compressed = ask("a.test", TYPE_A);
    compressed[HEADER] = 0xc0;
    assert_eq!(code(&compressed), Some(1));
    let mut chaos = ask("a.test", TYPE_A);
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(code(&chaos), Some(5));
    assert_eq!(code(&ask("a b.test", TYPE_A)), Some(1));
    let long = ["x".repeat(63), "y".repeat(63), "z".repeat(63), "w".repeat(63)].join(".");
    assert_eq!(code(&ask(&long, TYPE_A)), Some(1));
}

#[test]
fn no_message_that_is_cut_or_spoilt_makes_it_panic() {
    let whole = ask("some.name.test", TYPE_A);
    for length in 0..whole.len() {
        assert!(Question::parse(&whole[..length]).is_err(), "{length} bytes");
    }
    for at in 0..whole.len() {
        for value in 0..=255 {
            let mut spoilt = whole.clone();
            spoilt[at] = value;
            let _ = Question::parse(&spoilt);
        }
    }
}
