use knowledge::Knowledge;
use store::Ingredients;

use super::*;

const MINUTE: i64 = 60_000;

fn digest(of: u8) -> ImageDigest {
    ImageDigest::from_bytes([of; 32])
}

fn refresh() -> Refresh {
    Refresh {
        image: "base".to_owned(),
        knowledge: Knowledge {
            refresh: Duration::from_secs(30 * 60),
            time: Duration::from_secs(60),
            repositories: Vec::new(),
            build: Vec::new(),
            ready: None,
            egress: Vec::new(),
        },
    }
}

/// One that was begun and ended at these minutes.
fn row(state: GenerationState, begun: i64, ended: i64) -> Generation {
    Generation {
        id: GenerationId::new(),
        number: ended,
        image: "base".to_owned(),
        state,
        asked: Timestamp(begun * MINUTE),
        made_of: Some(Ingredients {
            recipe: refresh().knowledge.key(),
            base: digest(0),
            parent: digest(0),
        }),
        session: None,
        attempts: 1,
        lease: None,
        begun: Some(Timestamp(begun * MINUTE)),
        ended: Some(Timestamp(ended * MINUTE)),
        digest: (state == GenerationState::Ready).then(|| digest(u8::try_from(ended).unwrap_or_default())),
        error: None,
    }
}

fn minutes(rows: &[Generation], now: i64) -> u64 {
    let made_of = made_of(&digest(0), &refresh(), rows);
    due_in(&refresh(), &made_of, rows, Timestamp(now * MINUTE)).as_secs() / 60
}

#[test]
fn the_next_is_due_a_period_after_the_last_began_and_sooner_after_failures() {
    use GenerationState::{Failed, Ready};
    assert_eq!(minutes(&[], 100), 0);
    let mut rows = vec![row(Ready, 100, 110)];
    assert_eq!(
        (minutes(&rows, 110), minutes(&rows, 129), minutes(&rows, 130)),
        (20, 1, 0)
    );
    assert_eq!(minutes(&rows, 90), 30, "another machine's clock is a little late");
    assert_eq!(minutes(&rows, 10), 0, "a clock was set back");
    let waits = (0_i64..7).map(|failure| {
        let ended = 140 + failure;
        rows.push(row(Failed, ended, ended));
        minutes(&rows, ended)
    });
    assert_eq!(waits.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30]);
    rows.push(row(Ready, 200, 200));
    assert_eq!(minutes(&rows, 200), 30);
}

#[test]
fn the_newest_is_the_one_made_last_whatever_the_clocks_said() {
    let mut rows = vec![
        row(GenerationState::Ready, 100, 110),
        row(GenerationState::Ready, 50, 60),
    ];
    rows[1].number = 111;
    assert_eq!(newest_ready(&rows).unwrap().digest, Some(digest(60)));
    assert_eq!(newest_ended(&rows).unwrap().number, 111);
}

#[test]
fn another_recipe_or_base_is_due_at_once_and_begins_from_the_base() {
    let rows = vec![row(GenerationState::Ready, 100, 110)];
    let (base, other) = (digest(0), digest(1));
    assert_eq!(made_of(&base, &refresh(), &rows).parent, digest(110));
    let mut recipe = refresh();
    recipe.knowledge.build.push("true".to_owned());
    for (base, refresh) in [(&other, &refresh()), (&base, &recipe)] {
        let made_of = made_of(base, refresh, &rows);
        assert_eq!(made_of.parent, *base);
        assert_eq!(
            due_in(refresh, &made_of, &rows, Timestamp(111 * MINUTE)),
            Duration::ZERO
        );
    }
    // How often and how long change nothing of what is built.
    let mut same = refresh();
    same.knowledge.time *= 2;
    assert_eq!(made_of(&base, &same, &rows).parent, digest(110));
}
