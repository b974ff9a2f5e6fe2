//! What only services of kind `script` need to be called.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderValue;

use super::{HttpMethod, HttpPlan, Problems, Shared};
use crate::client::ClientError;
use crate::definition::{Answer, Body, Http, Method, PathTemplate, Request, Script, Service};
use crate::script::ScriptPlan;
use crate::settings::ServiceSettings;

/// Binds a script to what the operator says. Nothing where a problem was said.
pub(super) fn plan(
    service: &Arc<Service>,
    script: &Script,
    settings: &ServiceSettings,
    shared: &Shared,
    problems: &mut Problems<'_>,
) -> Result<Option<ScriptPlan>, ClientError> {
    let mut sites = HashMap::new();
    let api = HttpPlan::new(service, &script.api, settings, shared, problems)?;
    sites.extend(api.map(|api| (String::new(), api)));
    // The credential is for the API alone.
    let open = Arc::new(Service {
        auth: Vec::new(),
        ..Service::clone(service)
    });
    let unbound = ServiceSettings {
        base_url: None,
        auth: Default::default(),
        ..settings.clone()
    };
    for (name, base_url) in &script.hosts {
        let place = Http {
            base_url: base_url.clone(),
            headers: Vec::new(),
            ..script.api.clone()
        };
        let site = HttpPlan::new(&open, &place, &unbound, shared, problems)?;
        sites.extend(site.map(|site| (name.clone(), site)));
    }
    if sites.len() <= script.hosts.len() {
        return Ok(None);
    }
    let reading = |method: &Method| Method {
        answer: Answer::Text,
        fixtures: Vec::new(),
        ..method.clone()
    };
    let methods = service.methods.values();
    Ok(Some(ScriptPlan {
        source: script
            .source
            .replace("\nexport ", "\n")
            .trim_start_matches("export ")
            .to_owned(),
        sites,
        reading: methods.map(|method| (method.name.clone(), reading(method))).collect(),
        asked: HttpMethod {
            request: Request {
                verb: http::Method::GET,
                path: PathTemplate(Vec::new()),
                query: Vec::new(),
                headers: Vec::new(),
                body: Body::None,
            },
            headers: Vec::new(),
            idempotency_header: None,
            accept: HeaderValue::from_static("application/json"),
        },
        worker: shared.worker.clone(),
        running: Arc::clone(&shared.scripts),
    }))
}
