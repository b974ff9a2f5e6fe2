//! Where files of workspaces are kept, as the programs use it.

use secret::Reference;

use super::super::values::Reader;

/// Where files of workspaces are kept beside their disks.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    pub(crate) place: ObjectPlace,
    /// Bytes that one session may have.
    pub(crate) quota: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum ObjectPlace {
    Nowhere,
    Local,
    S3(Box<Bucket>),
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) endpoint: Option<String>,
    pub(crate) bucket: String,
    pub(crate) region: String,
    pub(crate) prefix: String,
    pub(crate) path_style: bool,
    pub(crate) plain_http: bool,
    pub(crate) access_key: Reference,
    pub(crate) secret_key: Reference,
    pub(crate) session_token: Option<Reference>,
}

impl Objects {
    /// The references to secrets, by key.
    pub(crate) fn references(&self) -> Vec<(String, Reference)> {
        match &self.place {
            ObjectPlace::S3(bucket) => [
                ("objects.access_key", Some(&bucket.access_key)),
                ("objects.secret_key", Some(&bucket.secret_key)),
                ("objects.session_token", bucket.session_token.as_ref()),
            ]
            .into_iter()
            .filter_map(|(key, reference)| Some((key.to_owned(), reference?.clone())))
            .collect(),
            ObjectPlace::Nowhere | ObjectPlace::Local => Vec::new(),
        }
    }
}

pub(super) fn objects(reader: &mut Reader) -> Option<Objects> {
    let kind = reader.text("objects.kind");
    let quota = reader.size("objects.quota");
    let endpoint = reader.text("objects.endpoint");
    let bucket = reader.text("objects.bucket");
    let region = reader.text("objects.region");
    let prefix = reader.text("objects.prefix");
    let path_style = reader.flag("objects.path_style");
    let plain_http = reader.flag("objects.plain_http");
    let access_key = reader.reference("objects.access_key");
    let secret_key = reader.reference("objects.secret_key");
    let session_token = reader.reference("objects.session_token");
    let place = match kind?.as_str() {
        "none" => ObjectPlace::Nowhere,
        "s3" => {
            for (key, missing) in [
                ("objects.bucket", bucket.is_none()),
                ("objects.access_key", access_key.is_none()),
                ("objects.secret_key", secret_key.is_none()),
            ] {
                if missing && !reader.has(key) {
                    reader.mistake(
                        "objects.kind",
                        format!("objects.kind is \"s3\", and {key} is missing: docs/files.md shows what it needs"),
                    );
                }
            }
            ObjectPlace::S3(Box::new(Bucket {
                endpoint,
                bucket: bucket?,
                region: region?,
                prefix: prefix?,
                path_style: path_style?,
                plain_http: plain_http?,
                access_key: access_key?,
                secret_key: secret_key?,
                session_token,
            }))
        }
        _ => ObjectPlace::Local,
    };
    Some(Objects { place, quota: quota? })
}
