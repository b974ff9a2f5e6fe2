//! What the engine is told of one sandbox.

use std::collections::HashMap;
use std::path::Path;

use bollard::service::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    ResourcesUlimits,
};
use containers::confinement::{CAPABILITIES, HOSTNAME, MASKED, READ_ONLY, SLICE_MICROS, open_files};
use containers::maker::Order;
use containers::seccomp;
use sandbox::{ProviderError, inside};

use crate::shown::Shown;

/// What the runtime needs beside its own rights, until it has led the network: to do so, and to give that right up for good.
const UNTIL_LED: [&str; 2] = ["CAP_NET_ADMIN", "CAP_SETPCAP"];

/// The engine shows the machine's devices and drivers, which other providers do not.
const SHOWN_BY_THE_ENGINE: &str = "/sys";

/// What the runtime may say before its first words are forgotten.
const WORDS: &str = "256k";

/// The folders on the session's disk, and where they are inside.
pub(crate) fn places(home: &str) -> [(&'static str, &str); 4] {
    [
        (containers::disk::WORKSPACE, inside::WORKSPACE),
        ("tmp", "/tmp"),
        ("var-tmp", "/var/tmp"),
        ("home", home),
    ]
}

/// Where the image's user is at home.
pub(crate) fn home(environment: &[String]) -> &str {
    let home = environment.iter().find_map(|entry| entry.strip_prefix("HOME="));
    home.filter(|home| home.starts_with("/home/")).unwrap_or("/home/agent")
}

/// The whole of what the engine is told. `disk` is where the session's disk is, `knowledge` what is shown at that place, `group`
/// the cgroup that holds the container's.
pub(crate) fn body(
    order: &Order<'_>,
    image: &str,
    shown: &Shown,
    disk: &Path,
    knowledge: Option<Mount>,
    group: &str,
    label: (&str, &str),
) -> Result<ContainerCreateBody, ProviderError> {
    let limits = &order.spec.limits;
    let home = home(&order.image.environment);
    let amount = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mut mounts = vec![
        shown.mount(&order.folder.link(), inside::LINK_DIRECTORY, true)?,
        shown.mount(order.runtime, inside::RUNTIME, true)?,
    ];
    for (place, file) in order.files {
        mounts.push(shown.mount(file, place, true)?);
    }
    for (name, place) in places(home) {
        mounts.push(shown.mount(&disk.join(name), place, false)?);
    }
    mounts.extend(knowledge);
    let masked = MASKED.into_iter().chain([SHOWN_BY_THE_ENGINE]);
    let host = HostConfig {
        mounts: Some(mounts),
        tmpfs: Some(HashMap::from([(
            "/run".to_owned(),
            format!("rw,nosuid,nodev,mode=0755,size={}", limits.memory_bytes / 16),
        )])),
        shm_size: Some(amount(limits.memory_bytes / 2)),
        readonly_rootfs: Some(true),
        network_mode: Some("none".into()),
        sysctls: Some(sysctls()),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        cgroup_parent: Some(group.to_owned()),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(CAPABILITIES.into_iter().chain(UNTIL_LED).map(str::to_owned).collect()),
        security_opt: Some(vec![
            "no-new-privileges".into(),
            format!("seccomp={}", seccomp::profile_with_rules()?),
        ]),
        masked_paths: Some(masked.map(str::to_owned).collect()),
        readonly_paths: Some(READ_ONLY.map(str::to_owned).to_vec()),
        memory: Some(amount(limits.memory_bytes)),
        // Memory and swap together: none is left for swap.
        memory_swap: Some(amount(limits.memory_bytes)),
        pids_limit: Some(limits.pids.into()),
        cpu_period: Some(amount(SLICE_MICROS)),
        cpu_quota: Some(amount(u64::from(limits.cpu_millis) * SLICE_MICROS / 1_000)),
        ulimits: Some(vec![most("core", 0), most("nofile", amount(open_files()))]),
        init: Some(false),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), WORDS.to_owned()),
                ("max-file".to_owned(), "1".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    };
    Ok(ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: Some(HOSTNAME.into()),
        user: Some("0:0".into()),
        entrypoint: Some(vec![inside::RUNTIME.into()]),
        cmd: Some(vec![inside::RUNTIME_ARGUMENT.into(), inside::LISTED_ARGUMENT.into()]),
        env: Some(order.image.environment.clone()),
        working_dir: Some("/".into()),
        // What an image says of its health would be run by the engine, beside the runtime.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".into()]),
            ..HealthConfig::default()
        }),
        labels: Some(HashMap::from([(label.0.to_owned(), label.1.to_owned())])),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    })
}

/// What belongs to the container's own network: the runtime may listen on every port, and there is IPv6.
fn sysctls() -> HashMap<String, String> {
    let set = [
        ("net.ipv4.ip_unprivileged_port_start", "0"),
        ("net.ipv6.conf.all.disable_ipv6", "0"),
        ("net.ipv6.conf.lo.disable_ipv6", "0"),
    ];
    set.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn most(name: &str, value: i64) -> ResourcesUlimits {
    ResourcesUlimits {
        name: Some(name.into()),
        soft: Some(value),
        hard: Some(value),
    }
}
