//! Tool calls, and what is left of them: nothing.

use protocol::ToControl;
use serde_json::json;

use crate::jail::{AT_REST, Jail, exec, limits, words};

/// Starts two processes that try to get away (one double-forked into a session of its own), says so, and waits for ever.
const RUNAWAY: &str = r#"
const { spawn } = await import('node:child_process');
spawn('sleep', ['10001'], { stdio: 'ignore' });
spawn('sh', ['-c', '(setsid sh -c "trap \\"\\" TERM HUP INT; sleep 10002" &) &'], { detached: true, stdio: 'ignore' }).unref();
console.log('started');
await new Promise(done => setTimeout(done, 1_000_000));
"#;

fn sleepers(jail: &Jail) -> usize {
    jail.processes()
        .iter()
        .filter(|(_, line)| line.starts_with("sleep 1000"))
        .count()
}

#[tokio::test]
async fn double_forked_processes_of_a_call_die_when_everything_is_stopped() {
    let jail = Jail::claimed().await;
    let call = jail.linked.call(exec("1", RUNAWAY), limits());
    let stop = async {
        testkit::eventually_async("both sleepers", async || (sleepers(&jail) == 2).then_some(())).await;
        jail.linked.stop().await.unwrap();
        // Dead when it is answered, not some time later.
        jail.assert_at_rest();
    };
    let (result, ()) = testkit::within("the call and its end", async { tokio::join!(call, stop) }).await;
    assert!(result.unwrap().is_error);
    assert!(!jail.call("exec", json!({"code": "return 1"})).await.is_error);
}

#[tokio::test]
async fn nothing_outlives_a_call_that_ends_of_itself() {
    let jail = Jail::claimed().await;
    let ends = RUNAWAY.replace("setTimeout(done, 1_000_000)", "setTimeout(done, 200)");
    let result = testkit::within("the call", jail.linked.call(exec("1", &ends), limits()))
        .await
        .unwrap();
    assert!(words(&result).contains("started"), "{result:?}");
    testkit::eventually("the sleepers' end", || (sleepers(&jail) == 0).then_some(()));
}

#[tokio::test]
async fn orphans_are_reaped_and_strays_killed() {
    let jail = Jail::claimed().await;
    // Entered from outside, so nobody but PID 1 stands over what it leaves behind.
    jail.shell("for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; (setsid sleep 10003 >/dev/null 2>&1 &)")
        .await;
    jail.linked.stop().await.unwrap();
    testkit::eventually("an empty jail", || (jail.commands() == AT_REST).then_some(()));
}

#[tokio::test]
async fn hands_that_are_killed_are_replaced_and_the_call_says_that_it_was_interrupted() {
    let mut jail = Jail::claimed().await;
    let hands = jail.hands();
    let call = jail.linked.call(exec("1", RUNAWAY), limits());
    let kill = async {
        testkit::eventually_async("both sleepers", async || (sleepers(&jail) == 2).then_some(())).await;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(hands).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    };
    let (result, ()) = testkit::within("the call's end", async { tokio::join!(call, kill) }).await;
    let result = result.unwrap();
    assert!(
        result.is_error && words(&result).contains("may have taken effect"),
        "{result:?}"
    );
    assert_eq!(sleepers(&jail), 0);
    loop {
        match jail.event().await {
            ToControl::Progress { .. } => {}
            event => break assert_eq!(event, ToControl::HandsReplaced),
        }
    }
    assert_ne!(jail.hands(), hands);
    let result = jail.call("exec", json!({"code": "return process.env.API_KEY"})).await;
    assert!(
        words(&result).contains("credential-brokered"),
        "the new hands do not know the environment: {result:?}"
    );
}

#[tokio::test]
async fn hands_that_are_stopped_do_not_hold_up_a_stop() {
    let jail = Jail::claimed().await;
    let hands = rustix::process::Pid::from_raw(jail.hands()).unwrap();
    rustix::process::kill_process(hands, rustix::process::Signal::STOP).unwrap();
    testkit::within("the stop", jail.linked.stop()).await.unwrap();
    assert!(!jail.call("exec", json!({"code": "return 1"})).await.is_error);
}

#[tokio::test]
async fn a_user_who_kills_everything_kills_only_his_own() {
    let jail = Jail::claimed().await;
    let hands = jail.hands();
    jail.shell_to_its_death("kill -9 -1").await;
    testkit::eventually("new hands", || {
        jail.process("belljar-runtime hands").filter(|pid| *pid != hands)
    });
    assert!(!jail.call("exec", json!({"code": "return 1"})).await.is_error);
    assert!(jail.linked.is_connected());
}

#[tokio::test]
async fn nobody_gives_orders_to_who_waits_to_start_a_program() {
    let jail = Jail::claimed().await;
    // Its numbers are not told: all of them are tried.
    let code = "
        const { openSync, readdirSync } = await import('node:fs');
        const own = readdirSync('/proc/self/task').map(Number);
        const opened = (file, how) => Array.from({ length: 300 }, (_, pid) => pid).filter((pid) => {
          try { return openSync(`/proc/${pid}/${file}`, how) } catch { return false }
        });
        return [opened('fd/0', 'w'), opened('mem', 'r+').filter((pid) => !own.includes(pid))]";
    let result = jail.call("exec", json!({ "code": code })).await;
    assert!(words(&result).contains("[[],[]]"), "{result:?}");

    let another = async |before: i32| {
        testkit::eventually_async("another", async || {
            let waiting = jail.process("supervise").filter(|_| jail.commands() == AT_REST);
            waiting.filter(|now| *now != before)
        })
        .await
    };
    let first = another(0).await;
    // One that was made to stand still holds no call up.
    let number = rustix::process::Pid::from_raw(first).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::STOP).unwrap();
    let result = jail.call("safebash", json!({ "command": "pwd" })).await;
    assert!(words(&result).contains("/workspace"), "{result:?}");

    // Who got at one all the same has it no longer than its run, or than everything is stopped.
    let second = another(first).await;
    jail.linked.prepare(false, protocol::Grants::default()).await.unwrap();
    let third = another(second).await;
    jail.linked.stop().await.unwrap();
    another(third).await;
}
