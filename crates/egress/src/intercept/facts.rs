//! The facts that must agree before a rule is even looked for: link, address, server name, host.

use http::{HeaderMap, Uri, Version, header};
use policy::Destination;

use super::Decided;
use crate::{Code, Denied, Scheme};

/// The name in the TLS handshake is the host that the connection was opened for (threat 21).
pub(super) fn server_name(decided: &Decided, said: Option<&str>) -> Result<(), Denied> {
    let agrees = match (said, &decided.host) {
        (Some(said), host) => Destination::parse(said).is_ok_and(|said| said == *host),
        (None, Destination::Address(_)) => true,
        (None, Destination::Name(_)) => false,
    };
    if agrees {
        return Ok(());
    }
    Err(Denied::new(
        Code::OtherServerName,
        format!(
            "the connection was opened for {}, and TLS names another host or none",
            decided.host
        ),
        "connect to the host that is meant, by its name",
    ))
}

/// A client that would not take the certificate, most likely.
pub(super) fn no_handshake(decided: &Decided, error: &std::io::Error) -> Denied {
    Denied::new(
        Code::Handshake,
        format!("the TLS handshake with the client failed for {}: {error}", decided.host),
        "if the client brings its own trust roots or pins a certificate, point it to the system's roots \
         (SSL_CERT_FILE), or ask for a rule that passes this host without reading",
    )
}

/// The host in the request is the host of the connection (threats 19, 20, 22, 23, 25, 26, 28).
pub(super) fn host(decided: &Decided, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
    let malformed = |reason: &str| {
        Err(Denied::new(
            Code::Malformed,
            reason,
            format!("send the request with exactly one host, {}", decided.host),
        ))
    };
    if let Some(scheme) = uri.scheme_str()
        && scheme != decided.scheme.as_str()
    {
        return malformed("the request's target has another scheme than its connection");
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let (in_header, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return malformed("the request has more than one Host header");
    }
    let in_header = match in_header.map(|host| host.to_str()) {
        Some(Ok(host)) => Some(host),
        Some(Err(_)) => return malformed("the request's Host header is not ASCII"),
        None => None,
    };
    let in_target = uri.authority().map(http::uri::Authority::as_str);
    if in_header.is_none() && (version < Version::HTTP_2 || in_target.is_none()) {
        return malformed("the request has no host");
    }
    for said in [in_target, in_header].into_iter().flatten() {
        agrees(decided, said)?;
    }
    Ok(())
}

fn agrees(decided: &Decided, said: &str) -> Result<(), Denied> {
    let (name, port) = split(said);
    let Some((name, port)) = Destination::parse(name).ok().zip(port) else {
        return Err(Denied::new(
            Code::Malformed,
            "the request's host is not a host's name with or without a port",
            format!("send the request with the host {}", decided.host),
        ));
    };
    let default = if decided.scheme == Scheme::Http { 80 } else { 443 };
    if name != decided.host || port.unwrap_or(default) != decided.port {
        return Err(Denied::new(
            Code::OtherHost,
            format!(
                "the connection was opened for {}:{}, and the request is for another host or port",
                decided.host, decided.port
            ),
            "open a connection for each host",
        ));
    }
    Ok(())
}

/// A host and its port: none if it has none, or no port at all if it is not one.
fn split(said: &str) -> (&str, Option<Option<u16>>) {
    match said.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) => {
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            (host, if digits { port.parse().ok().map(Some) } else { None })
        }
        _ => (said, Some(None)),
    }
}

#[cfg(test)]
mod tests {
    use domain::SessionId;

    use super::*;

    fn decided(scheme: Scheme, port: u16) -> Decided {
        Decided {
            session: SessionId::new(),
            scheme,
            host: Destination::parse("bound.com").unwrap(),
            port,
        }
    }

    fn code(decided: &Decided, version: Version, target: &str, hosts: &[&str]) -> Option<Code> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, http::HeaderValue::from_bytes(host.as_bytes()).unwrap());
        }
        host(decided, version, &target.parse().unwrap(), &headers)
            .err()
            .map(|denied| denied.code)
    }

    #[test]
    fn threat_028_one_host_has_one_spelling() {
        let decided = decided(Scheme::Https, 443);
        for said in [
            "bound.com",
            "BOUND.com",
            "bound.com.",
            "bound.com:443",
            "Bound.Com.:443",
        ] {
            assert_eq!(code(&decided, Version::HTTP_11, "/", &[said]), None, "{said}");
        }
        for said in [
            "bound.com:8443",
            "bound.com:80",
            "evilbound.com",
            "a.bound.com",
            "bound.com.evil.com",
        ] {
            assert_eq!(
                code(&decided, Version::HTTP_11, "/", &[said]),
                Some(Code::OtherHost),
                "{said}"
            );
        }
    }

    #[test]
    fn threat_026_a_host_is_a_host_and_nothing_else() {
        let decided = decided(Scheme::Https, 443);
        for said in [
            "bound.com@evil.com",
            "evil.com#@bound.com",
            "evil.com\\@bound.com",
            "bound.com\tevil.com",
            "bound.com%2fevil.com",
            "evil.com%00.bound.com",
            "bound.com/",
            "bound.com:",
            "bound.com:+443",
            "bound.com:443:443",
            "bound.com, evil.com",
            "",
            "[bound.com]",
        ] {
            assert_eq!(
                code(&decided, Version::HTTP_11, "/", &[said]),
                Some(Code::Malformed),
                "{said}"
            );
        }
    }

    #[test]
    fn threat_023_hosts_that_differ_or_lack_are_refused() {
        let decided = decided(Scheme::Https, 443);
        let target = "https://bound.com/";
        assert_eq!(code(&decided, Version::HTTP_2, target, &[]), None);
        assert_eq!(code(&decided, Version::HTTP_2, target, &["bound.com"]), None);
        assert_eq!(
            code(&decided, Version::HTTP_2, target, &["other.com"]),
            Some(Code::OtherHost)
        );
        assert_eq!(code(&decided, Version::HTTP_2, "/", &[]), Some(Code::Malformed));
        assert_eq!(code(&decided, Version::HTTP_11, "/", &[]), Some(Code::Malformed));
        assert_eq!(
            code(&decided, Version::HTTP_11, "/", &["bound.com"; 2]),
            Some(Code::Malformed)
        );
    }

    #[test]
    fn threat_025_a_target_with_a_host_must_agree() {
        let decided = decided(Scheme::Http, 80);
        assert_eq!(
            code(&decided, Version::HTTP_11, "http://bound.com/", &["bound.com"]),
            None
        );
        for target in ["http://other.com/", "https://bound.com/", "http://bound.com:8080/"] {
            assert!(
                code(&decided, Version::HTTP_11, target, &["bound.com"]).is_some(),
                "{target}"
            );
        }
    }

    #[test]
    fn threat_021_the_handshake_names_the_connections_host() {
        let decided = decided(Scheme::Https, 443);
        assert!(server_name(&decided, Some("BOUND.com")).is_ok());
        assert!(server_name(&decided, Some("other.com")).is_err());
        assert!(server_name(&decided, None).is_err());
    }
}
