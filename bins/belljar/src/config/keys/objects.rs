//! The keys of where files of workspaces are kept.

use super::{Kind, Section, key, unset};

/// `[objects]`
pub(super) const OBJECTS: Section = Section {
    name: "objects",
    whole: false,
    about: "Where the files of workspaces are kept beside their disks: in a folder of this machine, or in a service that speaks S3.",
    keys: &[
        key(
            "kind",
            Kind::Word(&["local", "s3", "none"]),
            "\"local\"",
            "`local` is a folder in the data directory; with `none` files are on the disks of sandboxes only.",
        ),
        key(
            "quota",
            Kind::Size,
            "\"10GiB\"",
            "What the files of one session may have. What does not fit is on its disk only, and the session is told.",
        ),
        unset(
            "endpoint",
            Kind::Text,
            "\"https://s3.example.com\"",
            "The service's address; that of AWS in the region where left out.",
        ),
        unset("bucket", Kind::Text, "\"belljar\"", "The bucket, which must be there."),
        key("region", Kind::Text, "\"us-east-1\"", "The bucket's region."),
        key(
            "prefix",
            Kind::Text,
            "\"\"",
            "What the names of objects begin with, for a bucket that others use too.",
        ),
        key(
            "path_style",
            Kind::Flag,
            "false",
            "Whether the bucket stands in the path and not in the host's name, as most services other than AWS want it.",
        ),
        key(
            "plain_http",
            Kind::Flag,
            "false",
            "Whether the endpoint may be http://. Whoever is on the way reads the files.",
        ),
        unset(
            "access_key",
            Kind::Reference,
            "\"store:s3-access-key\"",
            "The id of the access key. It needs GetObject, PutObject and DeleteObject, and nothing more.",
        ),
        unset(
            "secret_key",
            Kind::Reference,
            "\"store:s3-secret-key\"",
            "The secret access key.",
        ),
        unset(
            "session_token",
            Kind::Reference,
            "\"file:/run/s3/session-token\"",
            "The session token, where the keys are temporary. All three are read anew for each request: whoever renews them writes them where they are referred to.",
        ),
    ],
};
