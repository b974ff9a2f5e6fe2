//! The keys of services.

use super::{Kind, Section, key, unset};

/// `[services.NAME]`
pub(super) const SERVICES: Section = Section {
    name: "services.*",
    whole: true,
    about: "What a service of that name needs here: [services.crm], [services.issues] and so on. What it is stands in its definition, `services/<name>/service.toml`.",
    keys: &[
        unset(
            "base_url",
            Kind::Text,
            "\"https://crm.example.com/v1\"",
            "Where its API is; as its definition says where left out. Plain http only to an inner server that `addresses` names.",
        ),
        unset(
            "auth",
            Kind::Texts,
            "{ token = \"store:crm-token\" }",
            "What the slots of its way to authenticate are bound to: references to secrets. What is no secret (user, client_id, app_id, installation_id, access_key_id, account) may stand here as it is. `belljar service show` lists the slots.",
        ),
        unset(
            "addresses",
            Kind::Networks,
            "[\"10.20.0.0/16\"]",
            "Addresses and networks that are not public, where it may be all the same. Without them it reaches the public network only.",
        ),
        unset(
            "database",
            Kind::Table,
            "{ engine = \"postgres\", host = \"warehouse.internal\", name = \"analytics\", schemas = [\"public\"] }",
            "Which database it is, of a service of kind sql such as warehouse: engine, host, port, name, file, schemas, functions, tls, max_cost, warehouse, role. docs/services.md says what each does.",
        ),
        key(
            "concurrency",
            Kind::Whole(1, 1024),
            "16",
            "Requests under way at once, of which one user has at most half in all of their sessions. Its definition may say another default.",
        ),
        unset(
            "per_minute",
            Kind::Whole(1, 1_000_000),
            "600",
            "Requests a minute of all sessions together; as its definition says where left out.",
        ),
        key(
            "session_per_minute",
            Kind::Whole(1, 1_000_000),
            "600",
            "Requests a minute of one session.",
        ),
    ],
};
