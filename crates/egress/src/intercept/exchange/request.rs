//! What the upstream is sent: the client's request, written anew.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header, request};
use hyper::body::Incoming;
use scrub::Scrub;
use signing::{STREAMING, STREAMING_TRAILER};

use super::{Exchange, Outgoing, unbound};
use crate::inject::aws::Payload;
use crate::inject::chunked::Resign;
use crate::inject::{self, Head, Injected, placeholder};
use crate::intercept::tokens::{self, Handling};
use crate::intercept::upload::{self, Upload, Watch};
use crate::intercept::{Decided, Matching, select, websocket};
use crate::{Code, Denied, Rule, Scheme};

/// Bytes of a body that must be seen whole before it is sent.
const WHOLE: u64 = 4 << 20;
/// Bytes of a body with a placeholder that is filled in before sending, so that its length can be said.
const FILLED: u64 = 64 << 10;
/// Places that a request takes besides its own where its body, or a chunk of it, is held.
const HOLDS: u32 = 15;

/// Headers that are between two neighbours only (RFC 9110, section 7.6.1, and what came before and after it).
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

impl Exchange {
    /// Takes the places of a request whose body is held, once: memory has an end, also for a session with many requests.
    fn hold(&self, upload: &mut Upload) -> Result<(), Denied> {
        if !upload.holds() {
            upload.hold(self.places(HOLDS)?);
        }
        Ok(())
    }

    /// Checks a request against the rules, and writes the one that is sent.
    pub(super) async fn prepare(
        &self,
        mut request: Request<Incoming>,
        matching: &Matching,
    ) -> Result<Outgoing, Denied> {
        let decided = &*self.decided;
        let secrets = &*self.shared.parts.secrets;
        let handshake = self.tunnel.is_some() && websocket::is_handshake(&request);
        let client = handshake.then(|| hyper::upgrade::on(&mut request));
        let (parts, incoming) = request.into_parts();
        let mut head = head_of(decided, parts)?;
        let rule = select::rule(decided, matching, &head)?;
        let name = rule.name.as_str();
        check_media(&rule, &head)?;
        let mut tokens = tokens::handling(&rule, &head);
        if tokens == Handling::Deny {
            return Err(tokens::denied(name));
        }
        let mut upload = Upload::new(
            incoming,
            name,
            rule.body_limit.unwrap_or(u64::MAX),
            watches(&rule, &head),
        );
        clean(&mut head, &rule);

        let mut injected = Injected::default();
        for injection in &rule.inject {
            inject::inject(injection, &mut head, secrets, name, &mut injected)?;
        }
        if let Some(git) = &rule.git {
            let secret = inject::resolve(secrets, &git.secret, name)?;
            inject::set_header(
                &mut head,
                header::AUTHORIZATION,
                &inject::basic(&git.user, &secret),
                name,
            )?;
            injected.secrets.push(secret);
        }
        let signed = match &rule.aws {
            Some(aws) => Some((aws, aws.prepare(&mut head, rule.paths.is_some(), name)?)),
            None => None,
        };
        if let Some((_, (target, _))) = &signed {
            tokens = tokens::handling_of_aws(&rule, target.service(), tokens);
            if tokens == Handling::Deny {
                return Err(tokens::denied(name));
            }
        }
        if let Some(place) = placeholder::in_head(&head) {
            return Err(unbound(place, name));
        }
        let known = length(&head.headers);
        let changes = !upload.keeps_length();
        let frames = injected.body.take_if(|_| handshake);
        if let Some(substitute) = injected.body.take() {
            upload.fill(substitute);
        }
        if !upload.keeps_length() && known.is_some_and(|length| length <= FILLED) {
            self.hold(&mut upload)?;
            upload.gather(WHOLE).await?;
            head.headers.remove(header::CONTENT_LENGTH);
        } else if changes || !upload.keeps_length() {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        if rule.methods.is_some() && may_be_form(&head) {
            self.hold(&mut upload)?;
            let form = upload.gather(WHOLE).await?;
            if inject::query::asks_for_method(Some(&String::from_utf8_lossy(&form))) {
                return Err(upload::other_method(name));
            }
        }
        if tokens == (Handling::Replace { aws: false }) && !rule.fills_body() {
            if !upload.is_over() {
                self.hold(&mut upload)?;
            }
            let body = upload.gather(WHOLE).await?;
            if tokens::carries_refresh_token(&head, &body) {
                return Err(tokens::refresh_token(name));
            }
        }
        if let Some((aws, (target, payload))) = signed {
            let mut chunked = None;
            let payload = match payload {
                Payload::Said(said) => said,
                Payload::Chunked { trailing } => {
                    if rule.fills_body() {
                        return Err(upload::filled_chunks(name));
                    }
                    chunked = Some(trailing);
                    let word = if trailing { STREAMING_TRAILER } else { STREAMING };
                    word.to_owned()
                }
                Payload::Unhashed => {
                    self.hold(&mut upload)?;
                    signing::payload_hash(&upload.gather(WHOLE).await?)
                }
            };
            let host = authority(decided);
            let (used, chunks) = aws.sign(&mut head, &host, &target, &payload, secrets, name)?;
            injected.secrets.extend(used);
            if let Some(trailing) = chunked {
                self.hold(&mut upload)?;
                upload.sign(Resign::new(chunks, trailing));
            }
        }
        let puts_in = !injected.secrets.is_empty();
        // What an earlier request left with the upstream may come back in the answer to this one. What cannot be resolved
        // was not put in either.
        let bound = matching
            .bound
            .iter()
            .filter_map(|reference| secrets.secret(reference).ok());
        injected.secrets.extend(bound);
        let scrub = Scrub::of(&injected.secrets);
        if !scrub.is_nothing() {
            ask_for_plain_answer(&mut head.headers, handshake);
        }
        if handshake {
            head.headers
                .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            head.headers
                .insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        Ok(Outgoing {
            meter: upload.meter(),
            request: write(head, upload)?,
            key: self.key(&rule, matching),
            rule: Arc::clone(&rule),
            scrub,
            injected: puts_in,
            tokens,
            client,
            frames,
        })
    }
}

fn head_of(decided: &Decided, parts: request::Parts) -> Result<Head, Denied> {
    let path = parts.uri.path();
    let asks_all = path == "*" && parts.method == Method::OPTIONS;
    if !path.starts_with('/') && !asks_all {
        return Err(Denied::new(
            Code::Malformed,
            "the request's target has no path",
            format!("send a path of {}", decided.host),
        ));
    }
    Ok(Head {
        method: parts.method,
        path: path.to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
    })
}

/// Refuses a body that says twice what it is, or hides a form in which a method could stand (threat 32).
fn check_media(rule: &Rule, head: &Head) -> Result<(), Denied> {
    let refused = |reason: &str, remedy: &str| Err(Denied::new(Code::Malformed, reason, remedy).by(&*rule.name));
    let mut said = head.headers.get_all(header::CONTENT_TYPE).iter();
    let media = said.next();
    if said.next().is_some() {
        return refused("the request says twice what its body is", "send one Content-Type");
    }
    if rule.methods.is_none() {
        return Ok(());
    }
    let Ok(media) = media.map_or(Ok(""), HeaderValue::to_str) else {
        return refused("what the request's body is cannot be read", "send a plain Content-Type");
    };
    let media = media.trim_start().to_ascii_lowercase();
    let charset = media.split(';').find_map(|part| part.trim().strip_prefix("charset="));
    if is_json(&media) && charset.is_some_and(|charset| !is_plain(charset.trim_matches('"'))) {
        return refused(
            "the request's JSON is written so that no method in it can be seen",
            "send it in UTF-8",
        );
    }
    let is_form = media.starts_with("multipart/") || may_be_form(head) || is_json(&media);
    let mut encodings = head.headers.get_all(header::CONTENT_ENCODING).iter();
    if is_form && encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return refused(
            "the request's body is encoded, so that no method in it can be seen",
            "send it as it is, without Content-Encoding",
        );
    }
    Ok(())
}

/// What a body is searched for on its way.
fn watches(rule: &Rule, head: &Head) -> Vec<Watch> {
    let mut watches = Vec::new();
    if !rule.fills_body() {
        watches.push(Watch::placeholder());
    }
    let media = media(head);
    if rule.methods.is_some() && media.starts_with("multipart/") {
        watches.push(Watch::method());
    }
    if rule.methods.is_some() && is_json(&media) {
        watches.push(Watch::method_key());
    }
    watches
}

/// What the body says it is, in lower case.
fn media(head: &Head) -> String {
    let media = head.headers.get(header::CONTENT_TYPE);
    let media = media.and_then(|media| media.to_str().ok()).unwrap_or_default();
    media.trim().to_ascii_lowercase()
}

/// Whether a server may read a form in the body (threat 32): some also where nothing says what it is.
fn may_be_form(head: &Head) -> bool {
    let media = media(head);
    let named = media.split([';', ',']).next().unwrap_or_default().trim();
    media.starts_with("application/x-www-form-urlencoded") || (named.is_empty() && head.method == Method::POST)
}

/// Whether letters are written as themselves, in lower case.
fn is_plain(charset: &str) -> bool {
    matches!(charset, "utf-8" | "utf8" | "us-ascii" | "iso-8859-1")
        || charset.starts_with("utf-16")
        || charset.starts_with("utf-32")
}

/// Whether frameworks take this media type, in lower case, for JSON.
fn is_json(media: &str) -> bool {
    media.contains("/json") || media.contains("+json")
}

/// Takes out what is not the upstream's business (threats 32, 37, 44).
fn clean(head: &mut Head, rule: &Rule) {
    let headers = &mut head.headers;
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .filter(|name| *name != header::TE)
        .collect();
    for name in listed.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove(header::HOST);
    headers.remove(header::EXPECT);
    // The only coding of a transfer that may be named to the next neighbour (RFC 9113, section 8.2.2).
    let trailers = headers
        .get(header::TE)
        .is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"trailers"));
    headers.remove(header::TE);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if rule.methods.is_some() {
        inject::remove_headers(headers, |name| select::METHOD_OVERRIDES.contains(&name));
    }
    if rule.paths.is_some() || rule.git.is_some() {
        inject::remove_headers(headers, |name| select::PATH_OVERRIDES.contains(&name));
    }
}

/// An answer that is scrubbed comes whole and as it is (threat 46).
fn ask_for_plain_answer(headers: &mut HeaderMap, handshake: bool) {
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.remove(header::RANGE);
    headers.remove(header::IF_RANGE);
    if headers.contains_key("grpc-accept-encoding") {
        headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    }
    if handshake {
        headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn write(head: Head, upload: Upload) -> Result<Request<Upload>, Denied> {
    let target = match &head.query {
        Some(query) => format!("{}?{query}", head.path),
        None => head.path,
    };
    let uri = Uri::try_from(target).map_err(|_| {
        Denied::new(
            Code::Malformed,
            "the request's path or query has characters that no URL has",
            "percent-encode them",
        )
    })?;
    let mut request = Request::new(upload);
    *request.method_mut() = head.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = head.headers;
    Ok(request)
}

/// The host, and its port where it is not the scheme's own.
fn authority(decided: &Decided) -> String {
    let default = if decided.scheme == Scheme::Http { 80 } else { 443 };
    if decided.port == default {
        decided.host.to_string()
    } else {
        format!("{}:{}", decided.host, decided.port)
    }
}

/// Addresses a request as HTTP/1.1 does: the host in a header.
pub(super) fn for_one(request: &mut Request<Upload>, decided: &Decided) {
    *request.version_mut() = Version::HTTP_11;
    if let Ok(host) = HeaderValue::try_from(authority(decided)) {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// Addresses a request as HTTP/2 does: the host in the target.
pub(super) fn for_many(request: &mut Request<Upload>, decided: &Decided) {
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(header::HOST);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = decided.scheme.as_str().parse().ok();
    parts.authority = authority(decided).parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}
