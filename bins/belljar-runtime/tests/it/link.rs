//! What an unclaimed or dying runtime lets through: nothing.

use crate::jail::Jail;

#[tokio::test]
async fn before_it_is_claimed_nothing_goes_out() {
    let jail = Jail::unclaimed().await;
    let said = jail.shell("getent hosts good.test && echo resolved; true").await;
    assert_eq!(said, "");
    assert_eq!(jail.seen(), [""; 0]);
}

#[tokio::test]
async fn threat_018_when_the_runtime_is_killed_nothing_is_left_that_could_go_out() {
    let jail = Jail::claimed().await;
    jail.shell("(setsid sleep 10004 >/dev/null 2>&1 &)").await;
    let everybody: Vec<i32> = jail.processes().into_iter().map(|(pid, _)| pid).collect();
    let runtime = rustix::process::Pid::from_raw(jail.pid).unwrap();
    rustix::process::kill_process(runtime, rustix::process::Signal::KILL).unwrap();
    testkit::within("the end of the link", jail.linked.closed()).await;
    for pid in everybody {
        testkit::eventually("everybody's death", || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            (state.is_empty() || state.contains(") Z ") || state.contains(") X ")).then_some(())
        });
    }
}
