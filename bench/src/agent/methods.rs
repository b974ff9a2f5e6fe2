//! A9: one job over three services with 500 records each, done by code that calls their methods, and by a model that is given each
//! method as a tool and reads every answer. Both are done: by code in the loop of the agent, by tools in a harness inside, over the
//! model routes and the tools of the Model Context Protocol. The model is scripted on both sides: what counts is what it has to be
//! sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

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

const BY_TOOLS: &str = "Do the same job by tools.";

/// A harness that gives the model each method as a tool, and has it do the job.
const HARNESS: &str = "\
const post = async (path, body) => {
  const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream', 'x-api-key': 'none',
                    'anthropic-version': '2023-06-01' };
  const answer = await fetch('http://127.0.0.1:3129' + path, { method: 'POST', headers, body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`);
  return text;
};
let id = 0;
const ask = async (method, params) => {
  const text = await post('/mcp', { jsonrpc: '2.0', id: ++id, method, params });
  const line = text.split('\\n').find((line) => line.startsWith('data: {'));
  const said = JSON.parse(line ? line.slice(6) : text);
  if (said.error) throw new Error(JSON.stringify(said.error));
  return said.result;
};
const reply = async (body) => {
  const text = await post('/v1/messages', { model: 'default', max_tokens: 256, stream: true, ...body });
  const blocks = [];
  for (const line of text.split('\\n').filter((line) => line.startsWith('data: '))) {
    const event = JSON.parse(line.slice(6));
    if (event.type === 'content_block_start') blocks[event.index] = { block: event.content_block, said: '' };
    if (event.type === 'content_block_delta') blocks[event.index].said += event.delta.text ?? event.delta.partial_json;
  }
  return blocks.map(({ block, said }) => block.type === 'tool_use' ? { ...block, input: JSON.parse(said) } : { ...block, text: said });
};
await ask('initialize', { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'bench', version: '1' } });
const listed = await ask('tools/list', {});
const tools = listed.tools.map((tool) => ({ name: tool.name, description: tool.description, input_schema: tool.inputSchema }));
const messages = [{ role: 'user', content: job }];
for (;;) {
  const said = await reply({ system, tools, messages });
  messages.push({ role: 'assistant', content: said });
  const calls = said.filter((block) => block.type === 'tool_use');
  if (calls.length === 0) return messages.length;
  const content = await Promise.all(calls.map(async (call) => {
    const result = await ask('tools/call', { name: call.name, arguments: call.input });
    return { type: 'tool_result', tool_use_id: call.id, content: result.content.map((part) => part.text).join('') };
  }));
  messages.push({ role: 'user', content });
}";

/// What the agent is told at its beginning; the harness tells its model the same.
static SYSTEM: OnceLock<Value> = OnceLock::new();

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
    let ours = asked(&models)?;
    let last = ours.last().context("the model was not asked")?;
    check(last)?;
    let system = last["system"].clone();
    let system = system.as_array().map_or_else(
        || system.clone(),
        |parts| {
            json!(
                parts
                    .iter()
                    .filter_map(|part| part["text"].as_str())
                    .collect::<String>()
            )
        },
    );
    let _ = SYSTEM.set(system);
    let session = api.session().await?;
    let after = api.prompt(&session, BY_TOOLS).await?;
    let mut events = api.watch(&session, &after).await?;
    ended(&mut events, "done").await?;
    let theirs: Vec<Value> = asked(&models)?.into_iter().filter(is_by_tools).collect();
    let pages = theirs
        .last()
        .map(|last| last["messages"].to_string())
        .unwrap_or_default();
    let unread = KINDS.iter().find(|kind| !pages.contains(&format!("{kind}/000499")));
    if let Some(kind) = unread {
        let all = asked(&models)?;
        let said = all.last().and_then(|last| last["messages"].as_array()?.last()).cloned();
        bail!(
            "the harness inside did not read all {kind}: {}",
            said.unwrap_or_default()
        );
    }
    let (ours, theirs) = (Cost::of(&ours), Cost::of(&theirs));
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

fn asked(models: &Models) -> anyhow::Result<Vec<Value>> {
    let bodies = models.last().into_iter();
    Ok(bodies
        .map(|asked| serde_json::from_slice(&asked.body))
        .collect::<Result<_, _>>()?)
}

/// Whether a request is the harness's: its model has the methods as tools.
fn is_by_tools(body: &Value) -> bool {
    let tools = body["tools"].as_array();
    tools.is_some_and(|tools| tools.iter().any(|tool| tool["name"] == "customers-list"))
}

fn script(body: &[u8]) -> Say {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    if is_by_tools(&body) {
        return page_by_page(messages);
    }
    let begins = messages.len() <= 1;
    if begins && body["messages"].to_string().contains(BY_TOOLS) {
        let system = SYSTEM.get().cloned().unwrap_or_default();
        let code = format!("const system = {system};\nconst job = {};\n{HARNESS}", json!(JOB));
        return Say::Call("exec", json!({ "code": code }));
    }
    if begins {
        return Say::Call("exec", json!({ "code": CODE }));
    }
    Say::Words("That is the sum of the open invoices by owner.")
}

/// The next page of each service, until the last one says that there is none.
fn page_by_page(messages: &[Value]) -> Say {
    let results = messages.last().and_then(|last| last["content"].as_array());
    let cursor = results.and_then(|results| results.iter().find_map(next_page));
    let input = match (messages.len(), cursor) {
        (0 | 1, _) => json!({}),
        (_, Some(cursor)) => json!({ "cursor": cursor }),
        (_, None) => return Say::Words("That is the sum of the open invoices by owner."),
    };
    Say::Calls(
        KINDS
            .iter()
            .map(|kind| (format!("{kind}-list"), input.clone()))
            .collect(),
    )
}

/// What a tool's result names as the page after it.
fn next_page(result: &Value) -> Option<String> {
    let text = result["content"]
        .as_str()
        .or_else(|| result["content"].pointer("/0/text")?.as_str())?;
    let page: Value = serde_json::from_str(text).ok()?;
    page["next"].as_str().map(str::to_owned)
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
