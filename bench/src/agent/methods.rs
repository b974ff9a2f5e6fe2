//! A9: one job over three services with 500 records each, done by code that calls their methods, and by a model that is given each
//! method as a tool and reads every answer. The model is scripted on both sides: what counts is what it has to be sent.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::installation::{Installation, Programs, ended};
use crate::models::{Models, Say};
use crate::report::Measure;
use crate::upstream::{Upstream, page};

const KINDS: [&str; 3] = ["customers", "tickets", "invoices"];

const JOB: &str = "Which customers have an open invoice and an open ticket? Sum their open invoices by owner.";

/// What the model writes where it may write code.
const CODE: &str = "\
async function all(list) {
  const items = [];
  let cursor;
  do {
    const page = await list(cursor ? { cursor } : {});
    items.push(...page.items);
    cursor = page.next;
  } while (cursor);
  return items;
}
const [customers, tickets, invoices] = await Promise.all([services.customers, services.tickets, services.invoices].map((each) => all(each.list)));
const waiting = new Set(tickets.filter((ticket) => ticket.state === 'open').map((ticket) => ticket.customer));
const owner = new Map(customers.map((customer) => [customer.id, customer.owner]));
const owners = {};
for (const invoice of invoices) {
  if (invoice.state !== 'open' || !waiting.has(invoice.customer)) continue;
  const name = owner.get(invoice.customer);
  owners[name] = (owners[name] ?? 0) + invoice.total;
}
return owners;";

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let upstream = Upstream::plain().await?;
    let models = Models::start(script).await?;
    let mut installation = Installation::new(programs, Some(models.address), "")?
        .configure("\n[roles.everybody]\nservices = [\"**\"]\n")?;
    for kind in KINDS {
        installation = installation.service(kind, &definition(kind, &upstream))?;
    }
    installation.start_host()?;
    installation.start_serve()?;
    let api = installation.api()?;
    let session = api.session().await?;
    let after = api.prompt(&session, JOB).await?;
    let mut events = api.watch(&session, &after).await?;
    ended(&mut events, "done").await?;
    let bodies: Vec<Value> = models
        .last()
        .into_iter()
        .map(|asked| serde_json::from_slice(&asked.body))
        .collect::<Result<_, _>>()?;
    let last = bodies.last().context("the model was not asked")?;
    check(last)?;
    let system = bodies[0]["system"].clone();
    let theirs = by_tools(&system);
    let (ours, theirs) = (Cost::of(&bodies), Cost::of(&theirs));
    let saved = |ours: f64, theirs: f64| (1.0 - ours / theirs) * 100.0;
    Ok(vec![
        Measure::value(
            "A9",
            "context tokens saved by code, all model calls",
            "%",
            saved(ours.all, theirs.all),
        )
        .at_least(90.0),
        Measure::value(
            "A9",
            "  saved of the last, longest context",
            "%",
            saved(ours.last, theirs.last),
        ),
        Measure::value(
            "A9",
            format!("  tokens by code, {} calls", ours.calls),
            "tokens",
            ours.all,
        )
        .beside(format!("a tool per method, {} calls", theirs.calls), theirs.all),
    ])
}

/// What a model had to be sent.
struct Cost {
    calls: usize,
    all: f64,
    last: f64,
}

impl Cost {
    /// A token is four bytes here, on both sides.
    #[allow(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    fn of(bodies: &[Value]) -> Self {
        let tokens = |body: &Value| body.to_string().len() as f64 / 4.0;
        Self {
            calls: bodies.len(),
            all: bodies.iter().map(tokens).sum(),
            last: bodies.last().map_or(0.0, tokens),
        }
    }
}

fn script(body: &[u8]) -> Say {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body["messages"].as_array().map_or(0, Vec::len) {
        0 | 1 => Say::Call("exec", json!({ "code": CODE })),
        _ => Say::Words("That is the sum of the open invoices by owner."),
    }
}

/// Whether the code found what there is to be found.
fn check(last: &Value) -> anyhow::Result<()> {
    let records = |kind: &str| -> Vec<Value> {
        let pages = std::iter::successors(Some(page(kind, "")), |before| {
            before["next"]
                .as_str()
                .map(|next| page(kind, &format!("cursor={next}")))
        });
        pages
            .flat_map(|page| page["items"].as_array().cloned().unwrap_or_default())
            .collect()
    };
    let is_open = |record: &&Value| record["state"] == "open";
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tickets = records("tickets");
    let waiting: BTreeSet<String> = tickets
        .iter()
        .filter(is_open)
        .map(|ticket| text(&ticket["customer"]))
        .collect();
    let customers = records("customers");
    let owners: BTreeMap<String, String> = customers
        .iter()
        .map(|customer| (text(&customer["id"]), text(&customer["owner"])))
        .collect();
    let mut sums: BTreeMap<&String, u64> = BTreeMap::new();
    for invoice in records("invoices").iter().filter(is_open) {
        let customer = text(&invoice["customer"]);
        if let Some(owner) = owners.get(&customer).filter(|_| waiting.contains(&customer)) {
            *sums.entry(owner).or_default() += invoice["total"].as_u64().unwrap_or_default();
        }
    }
    let said = last["messages"].to_string();
    match sums.values().find(|sum| !said.contains(&sum.to_string())) {
        None if !sums.is_empty() => Ok(()),
        missing => bail!("the code found something else than {missing:?} of {sums:?}: {said}"),
    }
}

/// The requests of a model that has each method as a tool: page after page of the three services side by side, all of it kept.
fn by_tools(system: &Value) -> Vec<Value> {
    let tools: Vec<Value> = KINDS.iter().flat_map(|kind| tools(kind)).collect();
    let mut messages = vec![json!({"role": "user", "content": [{"type": "text", "text": JOB}]})];
    let mut bodies = Vec::new();
    let mut cursor = Some(String::new());
    let mut number = 0;
    loop {
        bodies.push(json!({"model": "fake", "max_tokens": 256, "stream": true, "system": system, "tools": tools, "messages": messages}));
        let Some(after) = cursor else { return bodies };
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        cursor = None;
        for kind in KINDS {
            number += 1;
            let id = format!("toolu_{number:024}");
            let input = if after.is_empty() {
                json!({})
            } else {
                json!({"cursor": after})
            };
            calls.push(json!({"type": "tool_use", "id": id, "name": format!("{kind}_list"), "input": input}));
            let page = page(kind, &format!("cursor={after}"));
            cursor = page["next"].as_str().map(str::to_owned);
            results.push(json!({"type": "tool_result", "tool_use_id": id, "content": page.to_string()}));
        }
        messages.push(json!({"role": "assistant", "content": calls}));
        messages.push(json!({"role": "user", "content": results}));
    }
}

/// The methods of a service as tools.
fn tools(kind: &str) -> Vec<Value> {
    let tool = |method: &str, summary: &str, properties: Value, required: Value| {
        json!({"name": format!("{kind}_{method}"), "description": summary,
            "input_schema": {"type": "object", "properties": properties, "required": required, "additionalProperties": false}})
    };
    vec![
        tool(
            "list",
            &format!("List {kind}, {} a page", crate::upstream::PAGE),
            json!({"cursor": {"type": "string"}}),
            json!([]),
        ),
        tool(
            "get",
            &format!("Get one of the {kind}"),
            json!({"id": {"type": "string"}}),
            json!(["id"]),
        ),
    ]
}

fn definition(kind: &str, upstream: &Upstream) -> String {
    format!(
        "name = \"{kind}\"\nsummary = \"The {kind} of the bench\"\nkind = \"http\"\nbase_url = \"http://{}\"\n\n[auth]\nkind = \"bearer\"\n\n\
         [schemas.Record]\ntype = \"object\"\nrequired = [\"id\"]\nproperties.id = {{ type = \"string\" }}\n\
         properties.state = {{ type = \"string\" }}\nproperties.customer = {{ type = \"string\" }}\n\
         properties.owner = {{ type = \"string\" }}\nproperties.total = {{ type = \"integer\" }}\n\n\
         [methods.list]\nsummary = \"List {kind}, {} a page\"\naccess = \"read\"\nrequest = \"GET /records/{kind}\"\nresult = \"Record\"\n\
         pages = {{ items = \"/items\", cursor = \"cursor\", next = \"/next\" }}\n\n[methods.list.arguments]\n\n\
         [methods.get]\nsummary = \"Get one of the {kind}\"\naccess = \"read\"\nrequest = \"GET /records/{kind}/{{id}}\"\nresult = \"Record\"\n\n\
         [methods.get.arguments]\nrequired = [\"id\"]\nproperties.id = {{ type = \"string\" }}\n",
        upstream.address,
        crate::upstream::PAGE,
    )
}
