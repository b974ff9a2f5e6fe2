//! The keys of the way out.

use super::{Kind, Section, key, unset};

/// `[egress]`
pub(super) const EGRESS: Section = Section {
    name: "egress",
    whole: false,
    about: "What one session may use of the way out. Nothing leaves without a rule.",
    keys: &[
        key(
            "connections",
            Kind::Whole(1, 100_000),
            "256",
            "Connections open at once.",
        ),
        key(
            "new_connections",
            Kind::Whole(1, 100_000),
            "50",
            "New connections a second; four times as many in a burst.",
        ),
        key(
            "names",
            Kind::Whole(0, 100_000),
            "60",
            "New names a minute that only a star allows; a hundred in a burst. Names below a star can carry data out.",
        ),
        key(
            "upload",
            Kind::Size,
            "\"10GiB\"",
            "Bytes that may leave, counted since the control plane started.",
        ),
        key(
            "download",
            Kind::Size,
            "\"100GiB\"",
            "Bytes that may come, counted since the control plane started.",
        ),
        key(
            "idle",
            Kind::Duration,
            "\"15m\"",
            "A connection over which nothing passes for so long is closed.",
        ),
    ],
};

/// `[egress.rules.NAME]`
pub(super) const RULES: Section = Section {
    name: "egress.rules.*",
    whole: true,
    about: "What the installation lets out, where a session's scope allows it too: docs/egress.md. What no rule names is denied.",
    keys: &[
        unset(
            "hosts",
            Kind::Patterns,
            "[\"api.example.com\", \"*.example.org:443\"]",
            "The hosts that it is about; ports 80 and 443 where none is said, `:*` for each. `*.` is one more part of a name, `**.` one or more. An address must be named itself.",
        ),
        key(
            "schemes",
            Kind::Names,
            "[\"https\"]",
            "What may be spoken with them: https, http, ssh with the table `ssh`, and tcp for anything else at all, unread.",
        ),
        unset(
            "methods",
            Kind::Names,
            "[\"GET\", \"HEAD\"]",
            "The methods that requests may have; every method where left out.",
        ),
        unset(
            "paths",
            Kind::Patterns,
            "[\"/v1/repos/*\", \"/v1/search/**\"]",
            "The paths that requests may have; every path where left out. `*` is one part, `**` at the end is all below.",
        ),
        unset(
            "inject",
            Kind::Tables,
            "[{ kind = \"header\", name = \"x-api-key\", secret = \"store:example-key\" }]",
            "What is put into requests: kind bearer, basic (user), header (name, prefix), query (name), path or body, each with secret. With the mode \"placeholder\" only where the request says `credential-brokered`.",
        ),
        unset(
            "git",
            Kind::Table,
            "{ repositories = [\"acme/*\"], write = true, secret = \"store:git-token\" }",
            "Where its hosts serve git over HTTPS: which repositories, whether they may be pushed to, and the token. Without `methods`, `paths` and `aws`.",
        ),
        unset(
            "aws",
            Kind::Table,
            "{ access_key = \"store:aws-id\", secret_key = \"store:aws-key\", regions = [\"eu-west-1\"], services = [\"s3\"] }",
            "Where its hosts want signatures of AWS: requests are signed anew, with these keys.",
        ),
        unset(
            "ssh",
            Kind::Table,
            "{ user = \"git\", secret = \"store:deploy-key\", host_keys = [\"SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU\"], commands = [\"git-upload-pack acme/*\"] }",
            "Where its hosts speak SSH: who logs in, with which key, the keys that the hosts may show, and which commands (`commands`) and `subsystems` may run. With schemes = [\"ssh\"] and nothing of HTTP.",
        ),
        unset(
            "tokens",
            Kind::Text,
            "\"replace\"",
            "Where its hosts hand out tokens: replace them, deny the request, or let them pass. Where left out they are replaced if the rule puts secrets in.",
        ),
        unset(
            "token_paths",
            Kind::Patterns,
            "[\"/oauth/issue\"]",
            "Where they are handed out, beside the paths that are known to.",
        ),
        unset(
            "body_limit",
            Kind::Whole(0, i64::MAX),
            "1000000",
            "Bytes that the body of a request may have.",
        ),
        unset(
            "networks",
            Kind::Networks,
            "[\"10.20.0.0/16\"]",
            "Networks that are not public, in which its hosts may lie all the same.",
        ),
        unset(
            "proxy",
            Kind::Table,
            "{ url = \"socks5://127.0.0.1:1055\", user = \"belljar\", password = \"store:proxy\" }",
            "The proxy that leads to its hosts, http:// or socks5://; it resolves their names.",
        ),
    ],
};
