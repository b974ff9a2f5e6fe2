//! Programs that go on when the call that started them is over, for a time and not for ever.

use protocol::{Grants, ToControl};
use serde_json::json;

use crate::jail::{Jail, words};

const CURL: &str = "curl -s --unix-socket /run/belljar-services.sock";

/// A jail in which a run is on; programs in the background may go on for so long.
async fn granted(seconds: u64) -> Jail {
    Jail::granted(grants(seconds)).await
}

fn grants(seconds: u64) -> Grants {
    Grants {
        background_seconds: seconds,
        ..Grants::default()
    }
}

async fn exec(jail: &Jail, code: &str) -> String {
    words(&jail.call("exec", json!({ "code": code })).await)
}

/// How much longer the sandbox is to be kept, as the runtime says next.
async fn told(jail: &mut Jail) -> u64 {
    loop {
        match jail.event().await {
            ToControl::Background { seconds } => return seconds,
            ToControl::Progress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn sleepers(jail: &Jail) -> usize {
    let processes = jail.processes();
    processes
        .iter()
        .filter(|(_, line)| line.starts_with("sleep 2000"))
        .count()
}

#[tokio::test]
async fn a_program_goes_on_after_its_call_and_its_run_until_its_time_is_up() {
    let mut jail = granted(600).await;
    let said = exec(
        &jail,
        "return await background('echo $API_KEY > /workspace/seen; (setsid sleep 20001 &) ; sleep 20002', { minutes: 60 })",
    )
    .await;
    assert!(said.contains("\"minutes\\\":10"), "the most there is: {said}");
    assert!(told(&mut jail).await > 590);
    testkit::eventually("both to run", || (sleepers(&jail) == 2).then_some(()));
    // The run ends, or gives way to another prompt: what belongs to no call goes on.
    jail.linked.prepare(false, Grants::default()).await.unwrap();
    jail.linked.stop().await.unwrap();
    assert_eq!(sleepers(&jail), 2);
    assert_eq!(jail.shell("cat /workspace/seen").await.trim(), "credential-brokered");
    // Between runs nobody can ask for more.
    let asked = format!("{CURL} -d '{{\"command\": \"sleep 20003\"}}' http://x/v1/background; echo $?");
    assert_eq!(jail.shell(&asked).await.trim(), "7", "there is no socket");

    jail.linked.prepare(true, grants(1)).await.unwrap();
    exec(&jail, "return await background('sleep 20004')").await;
    // A control plane that was started anew learns of it with its claim.
    assert!(told(&mut jail).await > 1);
    jail.claim().await;
    assert!(told(&mut jail).await > 1);
    for (pid, line) in jail.processes() {
        if line.starts_with("sleep 20001") || line.starts_with("sleep 20002") {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
    // The first has ended by itself, the other because its time was up.
    while told(&mut jail).await > 0 {}
    assert_eq!(sleepers(&jail), 0);
}

#[tokio::test]
async fn as_many_as_may_be_and_no_more_are_started_and_all_of_them_die_with_the_hands() {
    let mut jail = granted(600).await;
    let ask = format!(
        "for n in 1 2 3 4 5 6 7 8 9; do {CURL} -o /dev/null -w '%{{http_code}} ' -d '{{\"command\": \"sleep 20005\"}}' http://x/v1/background; done"
    );
    let codes = jail.shell(&ask).await;
    assert_eq!(codes.trim(), "200 200 200 200 200 200 200 200 429");
    testkit::eventually("them to run", || (sleepers(&jail) == 8).then_some(()));
    for bad in [
        "{}",
        "{\"command\": \" \"}",
        "{\"command\": \"ls\", \"seconds\": 0}",
        "{\"command\": \"ls\", \"for\": 1}",
    ] {
        let ask = format!("{CURL} -o /dev/null -w '%{{http_code}}' -d '{bad}' http://x/v1/background");
        assert_eq!(jail.shell(&ask).await, "400", "{bad}");
    }
    jail.shell_to_its_death("kill -9 -1").await;
    while told_or_replaced(&mut jail).await > 0 {}
    assert_eq!(sleepers(&jail), 0);
}

async fn told_or_replaced(jail: &mut Jail) -> u64 {
    match jail.event().await {
        ToControl::Background { seconds } => seconds,
        _ => 1,
    }
}

#[tokio::test]
async fn all_of_it_is_dead_when_everything_is_stopped() {
    let mut jail = granted(600).await;
    exec(&jail, "return await background('(setsid sleep 20006 &) ; sleep 20007')").await;
    assert!(told(&mut jail).await > 0);
    testkit::eventually("both to run", || (sleepers(&jail) == 2).then_some(()));
    jail.linked.stop_all().await.unwrap();
    assert_eq!(sleepers(&jail), 0);
    assert_eq!(told(&mut jail).await, 0);
}

#[tokio::test]
async fn a_scope_without_it_has_none() {
    let jail = granted(0).await;
    assert!(exec(&jail, "return typeof background").await.contains("undefined"));
    assert!(jail.shell("ls /run").await.contains("belljar"));
    assert!(!jail.shell("ls /run").await.contains("belljar-services.sock"));
}
