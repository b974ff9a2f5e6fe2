//! Waiting that ends.

use std::fs::File;
use std::future::Future;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How long a test waits for anything: far more than it takes, and still an end. The big numbers of `make test-full` take longer.
static LIMIT: LazyLock<Duration> = LazyLock::new(|| {
    let is_full = std::env::var_os("BELLJAR_TEST_FULL").is_some();
    Duration::from_secs(if is_full { 1_800 } else { 60 })
});
/// How long to rest between two looks at something that tells nobody when it changes.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The same where each look begins a process: so many of them would keep what is waited for from coming.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Awaits something; panics and names it when it has not come in a long time.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    within_limit(*LIMIT, what, future).await
}

async fn within_limit<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {limit:?} for {what}"),
    }
}

/// Looks until there is something to see; panics and names it when there is nothing for a long time.
///
/// For what can only be looked at (a process that is gone, a file of the kernel). What can be awaited, await.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    again_and_again(what, LOOK_AGAIN, look)
}

/// [`eventually`], for a look that runs a program.
pub fn eventually_asked<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    again_and_again(what, ASK_AGAIN, look)
}

fn again_and_again<T>(what: &str, rest: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let (begun, limit) = (Instant::now(), *LIMIT);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(rest);
    }
}

/// [`eventually`], for a look that has to be awaited.
pub async fn eventually_async<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    })
    .await
}

/// Ports that no kernel gives away by itself, as long as nobody tells it to: those begin at 32,768.
const PORTS: RangeInclusive<u16> = 20_000..=29_999;

/// A TCP port of the loopback that was free a moment ago; for programs that cannot be told to listen on port 0. Of all tests of
/// the machine nobody else gets the same for the next thousands.
#[must_use]
pub fn free_port() -> u16 {
    let path = std::env::temp_dir().join("belljar-test-ports");
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .expect("open what says which port was given last");
    file.lock().expect("wait for other tests");
    let mut last = String::new();
    file.read_to_string(&mut last).expect("read which port was given last");
    let last = last.trim().parse().unwrap_or(*PORTS.end());
    let next = PORTS.filter(|port| *port > last).chain(PORTS);
    let port = next
        .into_iter()
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("find a port that is free");
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| write!(file, "{port}"))
        .expect("write which port was given last");
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "waited 10ms for the end of days")]
    async fn waiting_ends_and_says_for_what() {
        within_limit(
            Duration::from_millis(10),
            "the end of days",
            std::future::pending::<()>(),
        )
        .await;
    }

    #[test]
    fn looking_again_sees_what_comes_later() {
        let mut looks = 0;
        let seen = eventually("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(seen, 3);
    }
}
