//! A plain request with a whole URL: passed on over a connection of its own.

use std::time::Duration;

use ::http::header::{CONNECTION, HOST, TE, TRAILER, UPGRADE};
use ::http::uri::{Authority, PathAndQuery, Scheme};
use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use lifecycle::Tasks;
use tokio::time::timeout;

use super::Proxy;
use super::http::{Body, broken, malformed, refuse};

/// How long an answer may take to begin.
const ANSWER: Duration = Duration::from_secs(600);

const HTTP_PORT: u16 = 80;

/// Of a head, what concerns the two ends of one connection only.
const OF_ONE_CONNECTION: [HeaderName; 7] = [
    CONNECTION,
    TE,
    TRAILER,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
];

/// Passes a request on, and its answer back.
pub(super) async fn forward(mut request: Request<Incoming>, proxy: &Proxy, tasks: &Tasks) -> Response<Body> {
    let target = match Target::of(request.uri()) {
        Ok(target) => target,
        Err(words) => return malformed(words),
    };
    let far = match proxy.connect(target.authority.host(), target.port).await {
        Ok(far) => far,
        Err(error) => return refuse(&error),
    };
    let Ok(host) = HeaderValue::from_str(target.authority.as_str()) else {
        return malformed("this is no host");
    };
    *request.uri_mut() = Uri::from(target.path);
    leave_out(request.headers_mut());
    // The URL says which host is meant, whatever the head says.
    request.headers_mut().insert(HOST, host);
    let (mut sender, connection) = match http1::handshake(far.into_inner()).await {
        Ok(opened) => opened,
        Err(error) => return broken(&format!("the connection broke off: {error}")),
    };
    tasks.spawn_until_stopped(async move {
        // Whoever waits for the answer is told what went wrong.
        let _ = connection.await;
    });
    match timeout(ANSWER, sender.send_request(request)).await {
        Ok(Ok(answer)) => {
            let mut answer = answer.map(BodyExt::boxed_unsync);
            leave_out(answer.headers_mut());
            answer
        }
        Ok(Err(error)) => broken(&format!("no answer came: {error}")),
        Err(_) => broken("no answer came in time"),
    }
}

struct Target {
    authority: Authority,
    port: u16,
    path: PathAndQuery,
}

impl Target {
    fn of(uri: &Uri) -> Result<Self, &'static str> {
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err("this is a proxy: it takes CONNECT, and requests with a whole URL");
        };
        if *scheme != Scheme::HTTP {
            return Err("a request for https:// goes through CONNECT");
        }
        if authority.as_str().contains('@') {
            return Err("a URL with a name and a password in it is not passed on");
        }
        Ok(Self {
            port: authority.port_u16().unwrap_or(HTTP_PORT),
            authority: authority.clone(),
            path: uri
                .path_and_query()
                .cloned()
                .unwrap_or_else(|| PathAndQuery::from_static("/")),
        })
    }
}

/// Leaves out what concerns one connection, and what a head itself says does.
fn leave_out(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.into_iter().chain(OF_ONE_CONNECTION) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_urls_of_http_are_passed_on() {
        let target = |uri: &'static str| Target::of(&Uri::from_static(uri)).map(|target| (target.port, target.path));
        assert_eq!(
            target("http://a.test/b?c=d"),
            Ok((80, PathAndQuery::from_static("/b?c=d")))
        );
        assert_eq!(target("http://a.test:81"), Ok((81, PathAndQuery::from_static("/"))));
        for uri in [
            "/",
            "https://a.test/",
            "http://u:p@a.test/",
            "http://bound.test@a.test/",
        ] {
            assert!(target(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn what_concerns_one_connection_is_left_out() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-own"),
            ("x-own", "1"),
            ("proxy-authorization", "Basic eDp5"),
            ("accept", "*/*"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        leave_out(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"]);
    }
}
