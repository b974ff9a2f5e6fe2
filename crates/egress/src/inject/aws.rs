//! AWS Signature Version 4: the client signs with keys that do not exist, the request is signed anew with those that do.

use std::time::SystemTime;

use http::{HeaderName, header};
use secret::{Reference, Secret, Source};
use serde::Deserialize;
use signing::{
    CONTENT_HASH, Chunks, DATE, Keys, Request, SECURITY_TOKEN, STREAMING, STREAMING_TRAILER, Scope, UNSIGNED,
};

use super::{Head, query, resolve};
use crate::{Code, Denied};

/// What is signed on a rule's hosts, and with what.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aws {
    /// The access key's id.
    pub access_key: Reference,
    /// The secret access key.
    pub secret_key: Reference,
    /// The token of temporary keys.
    pub session_token: Option<Reference>,
    /// The regions that it may be signed for, at least one.
    pub regions: Vec<String>,
    /// The services that it may be signed for, at least one: `s3`, `dynamodb`, ….
    pub services: Vec<String>,
    /// Whether a request may come with its signature in the query, and for how many seconds that may be good at most.
    pub presigned: Option<u64>,
}

/// What a signature is to be good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    region: String,
    service: String,
}

impl Target {
    /// The service's name in the signature.
    pub(crate) fn service(&self) -> &str {
        &self.service
    }
}

/// What stands for the body in a signature.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Payload {
    /// The client's word, which the service checks.
    Said(String),
    /// Its chunks are signed one by one, and behind them what stands in trailers.
    Chunked {
        /// Whether there are trailers.
        trailing: bool,
    },
    /// Its hash, which is to be taken.
    Unhashed,
}

const COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");

impl Aws {
    /// Takes the client's own signature out, after a look at what it was for.
    pub(crate) fn prepare(&self, head: &mut Head, by_path: bool, rule: &str) -> Result<(Target, Payload), Denied> {
        let denied = |reason: &str, remedy: &str| Err(Denied::new(Code::Signature, reason, remedy).by(rule));
        if by_path && head.headers.contains_key(COPY_SOURCE) {
            return denied(
                "the request copies from a place that the rule's paths do not cover",
                "read the source and write the copy in two requests",
            );
        }
        let target = match self.claimed(head, rule)? {
            Some(target) => target,
            None => match (self.regions.as_slice(), self.services.as_slice()) {
                ([region], [service]) => Target {
                    region: region.clone(),
                    service: service.clone(),
                },
                _ => {
                    return denied(
                        "the request is not signed, and the rule has more than one region or service",
                        "sign with any keys, so that region and service are said",
                    );
                }
            },
        };
        if !self.regions.contains(&target.region) || !self.services.contains(&target.service) {
            return denied(
                &format!(
                    "the request is signed for {} in {}, which the rule does not allow",
                    target.service, target.region
                ),
                &format!(
                    "sign for one of {} in one of {}",
                    self.services.join(", "),
                    self.regions.join(", ")
                ),
            );
        }
        let payload = match head
            .headers
            .get(CONTENT_HASH)
            .map(|hash| hash.to_str().unwrap_or_default())
        {
            Some(said) if said == UNSIGNED || said == "STREAMING-UNSIGNED-PAYLOAD-TRAILER" || is_hash(said) => {
                Payload::Said(said.to_owned())
            }
            Some(STREAMING) => Payload::Chunked { trailing: false },
            Some(STREAMING_TRAILER) => Payload::Chunked { trailing: true },
            Some(_) => {
                return denied(
                    "the request's body is signed in a way that is not known",
                    "send the body unsigned, hashed as a whole, or signed in chunks with Signature Version 4",
                );
            }
            None if target.service == "s3" => Payload::Said(UNSIGNED.to_owned()),
            None => Payload::Unhashed,
        };
        for name in [header::AUTHORIZATION, DATE, SECURITY_TOKEN] {
            head.headers.remove(name);
        }
        Ok((target, payload))
    }

    /// Signs a request that is complete. Gives what must be scrubbed from the answer, and what signs the body's chunks.
    pub(crate) fn sign(
        &self,
        head: &mut Head,
        host: &str,
        target: &Target,
        payload: &str,
        source: &dyn Source,
        rule: &str,
    ) -> Result<(Vec<Secret>, Chunks), Denied> {
        let access_key = resolve(source, &self.access_key, rule)?;
        let secret_key = resolve(source, &self.secret_key, rule)?;
        let session_token = match &self.session_token {
            Some(reference) => Some(resolve(source, reference, rule)?),
            None => None,
        };
        let time = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        let (set, chunks) = signing::sign_chunked(
            &Request {
                method: &head.method,
                host,
                path: &head.path,
                query: head.query.as_deref(),
                headers: &head.headers,
                payload,
            },
            &Keys {
                access_key: access_key.expose(),
                secret_key: &secret_key,
                session_token: session_token.as_ref(),
            },
            Scope {
                region: &target.region,
                service: &target.service,
            },
            time,
        )
        .map_err(|error| {
            Denied::new(
                Code::Signature,
                format!("the request could not be signed: {error}"),
                "set the rule's keys anew, or change the header that is named",
            )
            .by(rule)
        })?;
        for (name, value) in set {
            head.headers.insert(name, value);
        }
        let used = [Some(access_key), Some(secret_key), session_token];
        Ok((used.into_iter().flatten().collect(), chunks))
    }

    /// What the client signed for, in a header or the query.
    fn claimed(&self, head: &mut Head, rule: &str) -> Result<Option<Target>, Denied> {
        let denied = |reason: &str, remedy: &str| Err(Denied::new(Code::Signature, reason, remedy).by(rule));
        let query = head.query.as_deref();
        let presigned = ["X-Amz-Signature", "X-Amz-Credential", "X-Amz-Algorithm"]
            .iter()
            .any(|name| query.is_some_and(|query| names_in_any_case(query, name)));
        if presigned {
            let Some(most) = self.presigned else {
                return denied(
                    "the request carries its signature in the query, which the rule does not allow",
                    "sign in the Authorization header, or ask for `presigned` in the rule",
                );
            };
            let expires = query::value(query, "X-Amz-Expires").and_then(|seconds| seconds.parse::<u64>().ok());
            if expires.is_none_or(|seconds| seconds > most) {
                return denied(
                    &format!("the signature in the query would be good for longer than {most} s"),
                    &format!("ask for at most {most} s"),
                );
            }
            let credential = query::value(query, "X-Amz-Credential").unwrap_or_default();
            let rest: Vec<&str> = query
                .unwrap_or_default()
                .split('&')
                .filter(|pair| !pair.to_ascii_lowercase().starts_with("x-amz-"))
                .collect();
            head.query = (!rest.is_empty()).then(|| rest.join("&"));
            return target_of(&credential).map_or_else(
                || {
                    denied(
                        "the signature in the query names no region and service",
                        "sign with Signature Version 4",
                    )
                },
                |target| Ok(Some(target)),
            );
        }
        let Some(authorization) = head.headers.get(header::AUTHORIZATION) else {
            return Ok(None);
        };
        let authorization = authorization.to_str().unwrap_or_default();
        let Some(rest) = authorization.strip_prefix(signing::ALGORITHM) else {
            return Ok(None);
        };
        let credential = rest
            .split(',')
            .find_map(|part| part.trim().strip_prefix("Credential="))
            .unwrap_or_default();
        target_of(credential).map_or_else(
            || {
                denied(
                    "the request's signature names no region and service",
                    "sign with Signature Version 4",
                )
            },
            |target| Ok(Some(target)),
        )
    }
}

/// `KEY/20260102/eu-central-1/s3/aws4_request`.
fn target_of(credential: &str) -> Option<Target> {
    let mut parts = credential.rsplit('/');
    let (end, service, region) = (parts.next()?, parts.next()?, parts.next()?);
    (end == "aws4_request").then(|| Target {
        region: region.to_owned(),
        service: service.to_owned(),
    })
}

fn names_in_any_case(query: &str, name: &str) -> bool {
    query::names(Some(query), name) || query::names(Some(&query.to_ascii_lowercase()), &name.to_ascii_lowercase())
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;

    fn aws() -> Aws {
        Aws {
            access_key: "env:KEY".parse().unwrap(),
            secret_key: "env:SECRET".parse().unwrap(),
            session_token: None,
            regions: vec!["eu-central-1".to_owned()],
            services: vec!["s3".to_owned()],
            presigned: None,
        }
    }

    fn head(query: Option<&str>, headers: &[(&'static str, &str)]) -> Head {
        Head {
            method: Method::GET,
            path: "/key".to_owned(),
            query: query.map(str::to_owned),
            headers: headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
                .collect::<HeaderMap>(),
        }
    }

    fn signed_for(scope: &str) -> String {
        format!("AWS4-HMAC-SHA256 Credential=ANY/20260102/{scope}/aws4_request, SignedHeaders=host, Signature=00")
    }

    #[test]
    fn threat_048_scope_and_payload_are_checked() {
        let mut allowed = head(None, &[("authorization", &signed_for("eu-central-1/s3"))]);
        let (_, payload) = aws().prepare(&mut allowed, false, "r").unwrap();
        assert_eq!(payload, Payload::Said(UNSIGNED.to_owned()));
        assert!(allowed.headers.is_empty());
        for scope in ["us-east-1/s3", "eu-central-1/sts", "eu-central-1"] {
            let mut denied = head(None, &[("authorization", &signed_for(scope))]);
            assert!(aws().prepare(&mut denied, false, "r").is_err(), "{scope}");
        }
        for payload in ["STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "anything"] {
            let mut denied = head(None, &[("x-amz-content-sha256", payload)]);
            assert!(aws().prepare(&mut denied, false, "r").is_err(), "{payload}");
        }
        let mut copied = head(None, &[("x-amz-copy-source", "/other/key")]);
        assert!(aws().prepare(&mut copied, true, "r").is_err());
    }

    #[test]
    fn threat_049_a_signature_in_the_query_needs_leave_and_is_capped() {
        let query = |seconds: u64| {
            format!(
                "a=b&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=ANY%2F20260102%2Feu-central-1%2Fs3%2Faws4_request\
                 &X-Amz-Expires={seconds}&X-Amz-Signature=00"
            )
        };
        assert!(aws().prepare(&mut head(Some(&query(60)), &[]), false, "r").is_err());
        assert!(
            aws()
                .prepare(&mut head(Some("x-amz-signature=00"), &[]), false, "r")
                .is_err()
        );
        let lenient = Aws {
            presigned: Some(300),
            ..aws()
        };
        assert!(lenient.prepare(&mut head(Some(&query(301)), &[]), false, "r").is_err());
        let mut allowed = head(Some(&query(300)), &[]);
        assert!(lenient.prepare(&mut allowed, false, "r").is_ok());
        assert_eq!(allowed.query.as_deref(), Some("a=b"));
    }
}
