//! G4: a call of a service, asked of the control plane instead of the service itself, with the credential, scope, schema, audit and
//! events that the other way has not.

use std::time::{Duration, Instant};

use anyhow::bail;
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use super::{CAPS, CORES, always_call};
use crate::http::Client;
use crate::inside::World;
use crate::installation::{Installation, Programs};
use crate::models::Models;
use crate::report::Measure;
use crate::sample::{Sample, WARM_UPS, scaled};
use crate::upstream::{SECRET, Upstream};

/// Calls, a hundred each second.
const CALLS: usize = 1_000;

/// Calls of one session, by each of two ways: it may make 600 a minute.
const OF_A_SESSION: usize = 200;

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let upstream = Upstream::plain().await?;
    let models = Models::start(always_call).await?;
    let installation = Installation::new(programs, Some(models.address), CAPS)?
        .configure("\n[roles.everybody]\nservices = [\"**\"]\n")?
        .service("records", &definition(&upstream))?
        .pin(CORES.1);
    let (world, mut seats) = World::around(installation, models).await?;
    let call = Bytes::from(json!({"service": "records", "method": "get", "args": {"state": "open"}}).to_string());
    let service = Client::new(upstream.address, format!("Bearer {SECRET}"));
    let (mut direct, mut proxied, mut linked) = (Sample::default(), Sample::default(), Sample::default());
    let mut clock = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..scaled(CALLS).div_ceil(OF_A_SESSION) {
        let seat = seats.begin(&world).await?;
        let door = Client::new(world.api.0.address(), format!("Bearer {}", seat.token().expose()));
        let before = upstream.keyed();
        let calls = scaled(CALLS).min(OF_A_SESSION) + WARM_UPS;
        // In turns, so that a noisy machine is noisy for all of them.
        for number in 0..calls {
            clock.tick().await;
            let began = Instant::now();
            service.bytes(Method::GET, "/keyed?state=open", Bytes::new()).await?;
            let took = began.elapsed();
            clock.tick().await;
            let began = Instant::now();
            let answer = door.bytes(Method::POST, "/api/proxy", call.clone()).await?;
            let through = began.elapsed();
            clock.tick().await;
            let began = Instant::now();
            seat.service(call.clone()).await?;
            let by_link = began.elapsed();
            let answer: Value = serde_json::from_slice(&answer)?;
            if answer["result"]["id"] != "cus_000001" {
                bail!("the service said something else: {answer}");
            }
            if number >= WARM_UPS {
                direct.add(took);
                proxied.add(through);
                linked.add(by_link);
            }
        }
        if upstream.keyed() - before != 3 * calls as u64 {
            bail!("not every call had its credential");
        }
        seat.end().await;
    }
    let floor = direct.at(0.5);
    Ok(vec![
        Measure::times(
            "G4",
            "added to a service call by POST /api/proxy, 100/s",
            &proxied.less(floor),
        )
        .at_most(1.0, Some(5.0)),
        Measure::times("G4", "  added by the link, as exec asks", &linked.less(floor)),
        Measure::times("G4", "  the same service asked directly", &direct),
    ])
}

fn definition(upstream: &Upstream) -> String {
    format!(
        "name = \"records\"\nsummary = \"Records of the bench\"\nkind = \"http\"\nbase_url = \"http://{}\"\n\n[auth]\nkind = \"bearer\"\n\n\
         [limits]\nper_minute = 1000000\n\n[methods.get]\nsummary = \"Get a record\"\naccess = \"read\"\nrequest = \"GET /keyed\"\n\
         query = [\"state\"]\nresult = {{ type = \"object\", required = [\"id\"], properties = {{ id = {{ type = \"string\" }} }} }}\n\n\
         [methods.get.arguments]\nproperties.state = {{ enum = [\"open\", \"paid\"] }}\n",
        upstream.address
    )
}
