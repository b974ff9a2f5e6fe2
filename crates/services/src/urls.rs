//! Which URLs a caller may hand to an upstream.

use std::net::IpAddr;

use dial::Class;
use url::{Host, Url};

/// Ends of names that only mean something inside of a network.
const INWARD: [&str; 12] = [
    "localhost",
    "local",
    "internal",
    "intranet",
    "private",
    "corp",
    "home",
    "lan",
    "localdomain",
    "home.arpa",
    "test",
    "invalid",
];

/// Whether a URL that a caller hands in leads to the public network, as far as its text says: http or https, without a user,
/// to a public address in whatever spelling, or to a name that has a dot and is not of the kind that only means something
/// inside of a network. The name is not resolved: a question to a name server may carry data out by itself.
pub(crate) fn is_outward(text: &str) -> bool {
    // What parsers read in different ways.
    if text.contains(|letter: char| letter.is_whitespace() || letter.is_control() || letter == '\\') {
        return false;
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    is_web
        && !authority.contains('@')
        && Url::parse(text).is_ok_and(|url| url.host().is_some_and(|host| is_public(&host)))
}

fn is_public(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(address) => Class::of(IpAddr::V4(*address)) == Class::Public,
        Host::Ipv6(address) => Class::of(IpAddr::V6(*address)) == Class::Public,
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name.contains('.')
                && !INWARD.iter().any(|end| {
                    name.strip_suffix(end)
                        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_074_a_url_argument_leads_to_the_public_network_or_nowhere() {
        for good in [
            "https://example.com/a?b=c#d",
            "http://8.8.8.8:8080/",
            "https://[2606:4700::1111]/",
            "https://local.example.com",
        ] {
            assert!(is_outward(good), "{good}");
        }
        for bad in [
            "",
            "example.com",
            "/etc/passwd",
            "file:///etc/passwd",
            "gopher://example.com/",
            "javascript:alert(1)",
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://0177.0.0.1/",
            "http://0.0.0.0/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::]/",
            "http://[fd00:ec2::254]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://app.localhost/",
            "http://vault/",
            "http://metadata.google.internal/",
            "http://printer.local./",
            "http://user@example.com/",
            "http://@example.com/",
            "http:example.com",
            "http:///@10.0.0.1/",
            "http://example.com\\@10.0.0.1/",
            "http://exa\tmple.com/",
            " http://example.com/",
            "http://１２７.０.０.１/",
        ] {
            assert!(!is_outward(bad), "{bad}");
        }
    }
}
