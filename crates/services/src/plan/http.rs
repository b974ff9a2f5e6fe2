//! What only services of kind `http` need to be called.

use std::collections::HashMap;
use std::sync::Arc;

use dial::Allow;
use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::{Problems, Shared};
use crate::client::{Client, ClientError};
use crate::credentials::Credentials;
use crate::definition::{Access, Action, Answer as Output, Body, Http, Method, Request, Service, Template};
use crate::graphql::{self, Operation};
use crate::settings::ServiceSettings;

/// The way to an API over HTTP.
pub(crate) struct HttpPlan {
    pub(crate) api: Http,
    pub(crate) base: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) client: Client,
    pub(crate) credentials: Credentials,
    methods: HashMap<String, HttpMethod>,
}

/// How a method becomes a request.
pub(crate) struct HttpMethod {
    pub(crate) request: Request,
    pub(crate) headers: Vec<(HeaderName, Template)>,
    pub(crate) idempotency_header: Option<HeaderName>,
    pub(crate) accept: HeaderValue,
}

impl HttpPlan {
    /// Binds the definition of an API to what the operator says. Nothing where a problem was said.
    pub(super) fn new(
        service: &Arc<Service>,
        api: &Http,
        settings: &ServiceSettings,
        shared: &Shared,
        problems: &mut Problems<'_>,
    ) -> Result<Option<Self>, ClientError> {
        let base = problems.base(settings.base_url.as_ref().unwrap_or(&api.base_url), settings);
        let headers = problems.headers(&api.headers);
        let methods = service
            .methods
            .values()
            .filter_map(|method| Some((method.name.clone(), problems.http_method(method)?)))
            .collect();
        let Some(base) = base else { return Ok(None) };
        let allow = Allow {
            networks: settings.addresses.clone(),
        };
        Ok(Some(Self {
            api: api.clone(),
            base,
            headers,
            client: Client::new(&service.name, shared.tls.clone(), shared.dialer.clone(), allow)?,
            credentials: Credentials::new(
                &service.name,
                &service.auth,
                settings.auth.clone(),
                shared.secrets.clone(),
            ),
            methods,
        }))
    }

    /// How a method of this service becomes a request.
    pub(crate) fn method(&self, name: &str) -> &HttpMethod {
        // Each method of the service has one.
        &self.methods[name]
    }
}

impl Problems<'_> {
    pub(super) fn base(&mut self, text: &str, settings: &ServiceSettings) -> Option<Url> {
        let usable = |url: &Url| {
            url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none()
        };
        match Url::parse(text) {
            Ok(url) if url.scheme() == "https" && usable(&url) => Some(url),
            Ok(url) if url.scheme() == "http" && usable(&url) && !settings.addresses.is_empty() => Some(url),
            Ok(url) if url.scheme() == "http" && usable(&url) => {
                self.say(
                    "base_url",
                    format!("{text} is plain http, which would show the credential on its way"),
                    "write https, or name the address of an inner server in `addresses`",
                );
                None
            }
            _ => {
                self.say(
                    "base_url",
                    format!("{text:?} is no base of an API"),
                    "write https://host/path, without a user, a query and a fragment",
                );
                None
            }
        }
    }

    pub(super) fn headers(&mut self, written: &[(String, String)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in written {
            match (HeaderName::try_from(name.as_str()), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => {
                    headers.insert(name, value);
                }
                _ => self.say(&format!("headers.{name}"), "it is no header", "correct the definition"),
            }
        }
        headers
    }

    fn http_method(&mut self, method: &Method) -> Option<HttpMethod> {
        let Action::Http(request) = &method.action else {
            return None;
        };
        let mut name = |name: &String| match HeaderName::try_from(name.as_str()) {
            Ok(name) => Some(name),
            Err(_) => {
                self.say(
                    &format!("methods.{}.headers", method.name),
                    format!("{name:?} is no header's name"),
                    "correct the definition",
                );
                None
            }
        };
        let headers: Vec<_> = request
            .headers
            .iter()
            .filter_map(|(header, template)| Some((name(header)?, template.clone())))
            .collect();
        let idempotency_header = method.idempotency_header.as_ref().and_then(name);
        self.document(&method.name, method.access, &request.body);
        let accept = match method.answer {
            Output::Json => "application/json",
            Output::Text | Output::Binary => "*/*",
        };
        Some(HttpMethod {
            request: request.clone(),
            headers,
            idempotency_header,
            accept: HeaderValue::from_static(accept),
        })
    }

    /// A method that reads holds no mutation.
    fn document(&mut self, name: &str, access: Access, body: &Body) {
        let Body::GraphQl { document, .. } = body else {
            return;
        };
        let place = format!("methods.{name}.graphql");
        match (graphql::operation(document), access) {
            (Ok(Operation::Query), _) | (Ok(Operation::Mutation), Access::Write) => {}
            (Ok(Operation::Mutation), Access::Read) => self.say(
                &place,
                "the document changes something, and the method only reads",
                "write access = \"write\", or a query",
            ),
            (Ok(Operation::Subscription), _) => self.say(&place, "a subscription has no end", "write a query"),
            (Err(error), _) => self.say(&place, error.to_string(), "correct the document"),
        }
    }
}
