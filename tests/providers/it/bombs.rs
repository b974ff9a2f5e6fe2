//! Whoever takes all that there is has it taken from nobody else.

use std::time::{Duration, Instant};

use base64::Engine as _;
use containers::DiskChoice;
use sandbox::{Limits, SandboxProvider, SandboxSpec};

use crate::world::{By, LIMITS, Living, USER, World, full};

on_each!(threat_017_bombs_harm_their_sandbox_alone, files_in_memory_are_counted,);

/// The disk of who fills it: little, as many empty files fit on it.
const DISK_BYTES: u64 = Limits::LEAST.disk_bytes;

/// How many commands the neighbour is given beside each bomb.
fn commands() -> usize {
    if full() { 200 } else { 20 }
}

/// What every bomb begins with. Each goes on for as long as it is let, and says once by which limit it was refused.
const BOMB: &str = r#"
import errno, os
told = False
def tell(refused):
    global told
    if not told:
        told = True
        os.write(3, (refused + "\n").encode())
def name(error):
    return errno.errorcode[error.errno]
"#;

/// What each takes, how, and what may refuse it.
const BOMBS: [(&str, &str, &[&str]); 5] = [
    (
        "processes",
        r#"
while True:
    try:
        os.fork()
    except OSError as error:
        tell(name(error))
"#,
        &["EAGAIN"],
    ),
    (
        "memory",
        r#"
while True:
    child = os.fork()
    if child == 0:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        taken = bytearray(MEMORY)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    tell("killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9 else "not killed")
"#,
        &["killed"],
    ),
    (
        "disk",
        r#"
while True:
    try:
        with open("/workspace/big", "wb", buffering=0) as file:
            for _ in range(2 * DISK >> 20):
                file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        tell("not refused")
    except OSError as error:
        tell(name(error))
    os.unlink("/workspace/big")
"#,
        &["ENOSPC", "EDQUOT"],
    ),
    (
        "files",
        r#"
os.mkdir("/workspace/many")
os.chdir("/workspace/many")
while True:
    made = 0
    try:
        while made < DISK >> 7:
            os.close(os.open(str(made).zfill(250), os.O_CREAT | os.O_WRONLY))
            made += 1
        tell("not refused")
    except OSError as error:
        tell(name(error))
    for number in range(made):
        os.unlink(str(number).zfill(250))
"#,
        &["ENOSPC", "EDQUOT"],
    ),
    (
        "descriptors",
        r#"
held = []
copies = 0
while True:
    try:
        while len(held) < 1 << 20:
            held.append(os.open("/dev/null", os.O_RDONLY))
        tell("not refused")
    except OSError as error:
        tell(name(error))
    for file in held:
        os.close(file)
    held.clear()
    if copies < 2:
        copies += 1
        os.fork()
"#,
        &["EMFILE"],
    ),
];

fn with_little_disk(world: &World) -> SandboxSpec {
    let mut spec = world.spec();
    spec.limits.disk_bytes = DISK_BYTES;
    if world.by == By::RUNSC {
        // A kernel of its own shares less between a process and what it forks.
        spec.limits.memory_bytes *= 2;
    }
    spec
}

/// Lights a bomb, and waits for what refuses it; it goes on.
async fn light(sandbox: &Living, bomb: &str) -> String {
    let bomb = (BOMB.to_owned() + bomb)
        .replace("MEMORY", &(2 * sandbox.spec.limits.memory_bytes).to_string())
        .replace("DISK", &DISK_BYTES.to_string());
    let bomb = base64::engine::general_purpose::STANDARD.encode(bomb);
    let light = format!(
        "cd /workspace && mkfifo told && exec 3<>told && echo {bomb} | base64 -d > bomb.py \
         && {{ python3 bomb.py < /dev/null > bomb.log 2>&1 & }} && read -r refused <&3 && echo $refused"
    );
    sandbox.run(USER, &light).await
}

/// Has a neighbour write and read, and measures each.
async fn go_on(neighbour: &Living, written: &mut Vec<String>) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..commands() {
        let line = format!("line {}", written.len());
        let begun = Instant::now();
        let said = neighbour
            .run(
                USER,
                &format!("echo {line} >> /workspace/lines && tail -n 1 /workspace/lines"),
            )
            .await;
        took.push(begun.elapsed());
        assert_eq!(said, line);
        written.push(line);
    }
    took.sort_unstable();
    took
}

/// Looks at what a sandbox has, while it stands still: the kernel counts first and refuses then, so a look in between would see
/// what nobody gets.
async fn keeps_its_limits(world: &World, sandbox: &Living, what: &str) {
    world.provider.freeze(sandbox.spec.id).await.unwrap();
    let usage = world.provider.usage(sandbox.spec.id).await.unwrap();
    assert!(
        usage.pids <= LIMITS.pids && usage.memory_bytes <= sandbox.spec.limits.memory_bytes,
        "{what}: {usage:?}"
    );
    world.provider.thaw(sandbox.spec.id).await.unwrap();
}

async fn threat_017_bombs_harm_their_sandbox_alone(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let neighbour = world.create().await;
    let mut written = Vec::new();
    let report = |beside: &str, took: &[Duration]| {
        let at = |percent: usize| took[took.len() * percent / 100].as_secs_f64() * 1_000.0;
        println!(
            "{by:?}, a neighbour's command beside {beside}: p50 {:.1} ms, p95 {:.1} ms",
            at(50),
            at(95)
        );
    };
    report("nothing", &go_on(&neighbour, &mut written).await);
    for (what, bomb, refusals) in BOMBS {
        let sandbox = world.create_as(&with_little_disk(&world)).await;
        let refused = light(&sandbox, bomb).await;
        assert!(refusals.contains(&refused.as_str()), "{what}: {refused}");
        report(&format!("a bomb of {what}"), &go_on(&neighbour, &mut written).await);
        keeps_its_limits(&world, &sandbox, what).await;
        // While it is at it.
        let session = sandbox.spec.session;
        sandbox.destroy().await;
        world.provider.remove_disk(session).await.unwrap();
    }
    // All that the neighbour wrote is there, on the disk too.
    let mut spec = world.spec();
    spec.session = neighbour.spec.session;
    neighbour.destroy().await;
    let again = world.create_as(&spec).await;
    assert_eq!(again.run(USER, "cat /workspace/lines").await, written.join("\n"));
    again.destroy().await;
}

/// Makes empty files until that is refused; says why, and how many there were.
const FILL: &str = r#"
import errno, os
os.mkdir("PLACE/many")
os.chdir("PLACE/many")
made = 0
try:
    while made < 1_000_000:
        os.close(os.open(str(made).zfill(250), os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    print(errno.errorcode[error.errno], made)
"#;

async fn fill(living: &Living, place: &str) {
    let said = living.python(USER, &FILL.replace("PLACE", place)).await;
    assert!(
        said.starts_with("ENOSPC ") || said.starts_with("EDQUOT "),
        "{place}: {said}"
    );
    println!("empty files in {place}, {:?}: {said}", living.spec.limits);
}

/// Empty files in memory are memory too: where they alone took all of it, the sandbox would die of them.
async fn files_in_memory_are_counted(by: By) {
    if by == By::Docker {
        println!("an engine makes them as it likes: only the memory of the sandbox bounds them");
        return;
    }
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    for place in ["/tmp", "/dev/shm"] {
        fill(&living, place).await;
        living
            .run(USER, &format!("rm -rf {place}/many && echo room > {place}/again"))
            .await;
    }
    living.destroy().await;
}

async fn a_disk_full_of_empty_files_fails_in_words_and_can_be_emptied(disk: DiskChoice) {
    let world = World::new(disk);
    let full = world.create_as(&with_little_disk(&world)).await;
    let neighbour = world.create().await;
    fill(&full, "/workspace").await;
    let used = world.provider.usage(full.spec.id).await.unwrap().disk_bytes;
    assert!(used <= DISK_BYTES, "{used}");
    neighbour
        .run(USER, "mkdir -p /workspace/x/y && echo room > /workspace/x/y/z && sync")
        .await;
    full.run(
        USER,
        "rm -rf /workspace/many && sync && echo room > /workspace/small && sync",
    )
    .await;
    full.destroy().await;
    neighbour.destroy().await;
}

#[tokio::test]
async fn a_btrfs_disk_full_of_empty_files_fails_in_words_and_can_be_emptied() {
    a_disk_full_of_empty_files_fails_in_words_and_can_be_emptied(DiskChoice::Btrfs).await;
}

#[tokio::test]
async fn an_ext4_disk_full_of_empty_files_fails_in_words_and_can_be_emptied() {
    a_disk_full_of_empty_files_fails_in_words_and_can_be_emptied(DiskChoice::Ext4).await;
}
