//! The port at which programs inside find models and tools: who may use it, for what, and that bytes pass as they come.

use std::collections::BTreeSet;

use protocol::{Grants, ModelRoute, PLACEHOLDER};
use serde_json::{Value, json};

use crate::handler::TOKEN;
use crate::jail::{Jail, exec, limits, words};
use crate::services;

/// A jail in which a run is on that may ask models and call `crm`.
async fn granted() -> Jail {
    let grants = Grants {
        models: vec!["large".to_owned(), "small".to_owned()],
        ..services::grants()
    };
    Jail::granted(grants).await
}

/// What curl says: the body, and the status behind it.
async fn curl(jail: &Jail, arguments: &str) -> (String, u16) {
    let said = jail
        .shell(&format!("curl -sS --max-time 20 -w '\\n%{{http_code}}' {arguments}"))
        .await;
    let (body, status) = said.rsplit_once('\n').unwrap();
    (body.to_owned(), status.parse().unwrap())
}

#[tokio::test]
async fn a_request_passes_with_its_body_and_without_its_headers() {
    let jail = granted().await;
    for route in ModelRoute::ALL {
        let arguments = format!(
            "http://127.0.0.1:3129/v1/{} -H 'x-api-key: {PLACEHOLDER}' -H 'authorization: Bearer mine' \
             -H 'x-openai-base-url: http://evil.test' -H 'anthropic-beta: one,two' -d '{{\"model\":\"large\"}}'",
            route.path()
        );
        let (said, status) = curl(&jail, &arguments).await;
        assert_eq!(
            (said.as_str(), status),
            ("data: {\"said\":1}\n\ndata: [DONE]\n", 200),
            "{route:?}"
        );
    }
    let asked = jail.handler.models.lock().unwrap().clone();
    let routes: Vec<ModelRoute> = asked.iter().map(|request| request.route).collect();
    assert_eq!(routes, ModelRoute::ALL);
    for request in asked {
        assert_eq!(request.betas, ["one", "two"]);
        assert_eq!(request.body, r#"{"model":"large"}"#);
    }
    let (said, status) = curl(&jail, "http://localhost:3129/v1/models").await;
    let models: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((status, &models["data"][1]["id"]), (200, &json!("small")));
}

#[tokio::test]
async fn threat_133_there_is_no_other_route() {
    let jail = granted().await;
    for request in [
        "http://127.0.0.1:3129/v1/embeddings -d '{}'",
        "http://127.0.0.1:3129/v1/files -d '{}'",
        "http://127.0.0.1:3129/v1/realtime",
        "http://127.0.0.1:3129/v1/completions -d '{}'",
        "http://127.0.0.1:3129/v1/messages/batches -d '{}'",
        "http://127.0.0.1:3129/v1/responses/resp_1",
        "http://127.0.0.1:3129/v1/messages",
        "http://127.0.0.1:3129/v1/turns -d '{}'",
        "http://127.0.0.1:3129/v1/services -d '{}'",
        "--path-as-is http://127.0.0.1:3129/v1/../v1/messages -d '{}'",
        "http://127.0.0.1:3129//v1/messages -d '{}'",
        "http://127.0.0.1:3129/ -H 'connection: upgrade' -H 'upgrade: websocket'",
    ] {
        let (said, status) = curl(&jail, request).await;
        assert_eq!(status, 404, "{request}: {said}");
        assert!(said.contains("there are POST /v1/messages"), "{said}");
    }
    assert!(jail.handler.models.lock().unwrap().is_empty());
}

#[tokio::test]
async fn threat_064_pages_and_other_hosts_are_refused() {
    let jail = granted().await;
    for request in [
        "http://127.0.0.1:3129/v1/messages -d '{}' -H 'origin: http://127.0.0.1:3129'",
        "http://127.0.0.1:3129/v1/messages -d '{}' -H 'host: evil.test'",
        "'http://127.0.0.1:3129/v1/messages?api_key=x' -d '{}'",
        "http://127.0.0.1:3129/mcp -d '{}' -H 'origin: null'",
    ] {
        let (said, status) = curl(&jail, request).await;
        assert_eq!(status, 403, "{request}: {said}");
    }
    assert!(jail.handler.models.lock().unwrap().is_empty());
    let (_, status) = curl(&jail, "'http://127.0.0.1:3129/v1/messages?beta=true' -d '{}'").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn threat_017_what_is_too_long_is_refused_and_others_are_served() {
    let jail = granted().await;
    let long = "head -c 9000000 /dev/zero | curl -sS -o /dev/null -w '%{http_code}' --max-time 20 -H 'expect:' \
                --data-binary @- http://127.0.0.1:3129/v1/messages";
    assert_eq!(jail.shell(long).await, "413");
    let head = "curl -sS -o /dev/null -w '%{http_code}' --max-time 20 -d '{}' -H \"x: $(head -c 60000 /dev/zero | tr '\\0' x)\" \
                http://127.0.0.1:3129/v1/messages || true";
    assert_ne!(jail.shell(head).await, "200");
    let idle = r"
import socket
held = [socket.create_connection(('127.0.0.1', 3129)) for _ in range(40)]
for s in held: s.send(b'POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:3129\r\nx:')
one = socket.create_connection(('127.0.0.1', 3129))
one.send(b'POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:3129\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}')
print(one.recv(15))
";
    assert_eq!(jail.python(idle).await, "b'HTTP/1.1 200 OK'\n");
}

#[tokio::test]
async fn threat_017_many_large_messages_do_not_swell_in_memory() {
    let jail = granted().await;
    // Half a million numbers each, which take thirty times their bytes once they are read.
    let script = r#"
import socket, threading
body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"crm-get","arguments":[' + b'0,' * 500000 + b'0]}}'
head = b'POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:3129\r\nconnection: close\r\ncontent-length: %d\r\n\r\n'
said = set()
def send():
    s = socket.create_connection(('127.0.0.1', 3129))
    s.sendall(head % len(body) + body)
    answer = b''
    while piece := s.recv(65536): answer += piece
    said.add((answer.split(b' ')[1].decode(), b'more than 20000 parts' in answer))
senders = [threading.Thread(target=send) for _ in range(60)]
for sender in senders: sender.start()
for sender in senders: sender.join()
one = socket.create_connection(('127.0.0.1', 3129))
ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
one.sendall(head % len(ping) + ping)
print(said, one.recv(15))
"#;
    assert_eq!(jail.python(script).await, "{('400', True)} b'HTTP/1.1 200 OK'\n");
}

#[tokio::test]
async fn what_is_refused_unread_is_answered_before_it_is_cut() {
    let jail = granted().await;
    // Whoever sends everything before they read gets to read why.
    let script = r#"
import socket
for path in [b'/v1/messages', b'/mcp', b'/v1/nothing']:
    s = socket.create_connection(('127.0.0.1', 3129))
    s.sendall(b'POST %b HTTP/1.1\r\nhost: 127.0.0.1:3129\r\nconnection: close\r\ncontent-length: 20000000\r\n\r\n' % path)
    for _ in range(20): s.sendall(b'x' * 1000000)
    print(s.recv(12).decode())
"#;
    let expected = "HTTP/1.1 413\nHTTP/1.1 413\nHTTP/1.1 404\n";
    assert_eq!(jail.python(script).await, expected);
}

#[tokio::test]
async fn words_pass_as_they_come() {
    let jail = granted().await;
    // The second piece is said once somebody inside has read the first.
    let script = r#"
import http.client, json, socket
answer = http.client.HTTPConnection('127.0.0.1', 3129, timeout=20)
answer.request('POST', '/v1/messages', json.dumps({'model': 'slow'}))
answer = answer.getresponse()
print(answer.getheader('content-type'))
first = answer.read1()
open('/workspace/heard', 'w').close()
print(first, answer.read())
"#;
    let heard = jail.workspace().join("heard");
    *jail.handler.slow.lock().unwrap() = Some(heard);
    let said = jail.python(script).await;
    assert!(
        said.contains("text/event-stream") && said.contains("data: first"),
        "{said}"
    );
    assert!(said.contains("data: second"), "{said}");
}

#[tokio::test]
async fn programs_are_told_where_models_are_while_a_run_may_ask_them() {
    let jail = granted().await;
    let code = "return ['ANTHROPIC_BASE_URL', 'ANTHROPIC_API_KEY', 'OPENAI_BASE_URL', 'OPENAI_API_KEY', 'API_KEY'].map(k => process.env[k] ?? null)";
    let run = async |jail: &Jail| {
        let call = jail.linked.call(exec("1", code), limits());
        words(&testkit::within("the call", call).await.unwrap())
    };
    let told = run(&jail).await;
    for expected in ["http://127.0.0.1:3129\\\"", "http://127.0.0.1:3129/v1\\\"", PLACEHOLDER] {
        assert!(told.contains(expected), "{told}");
    }
    assert!(!told.contains(TOKEN));
    // A run that may ask none is told of none, and finds no port.
    jail.linked.prepare(false, Grants::default()).await.unwrap();
    jail.linked.prepare(true, Grants::default()).await.unwrap();
    let told = run(&jail).await;
    assert!(!told.contains("3129"), "{told}");
    let refused = jail
        .shell("curl -sS http://127.0.0.1:3129/v1/models 2>&1 || true")
        .await;
    assert!(
        refused.contains("Failed to connect") || refused.contains("refused"),
        "{refused}"
    );
    // Services alone are tools, and no way to a model.
    jail.linked.prepare(true, services::grants()).await.unwrap();
    run(&jail).await;
    assert_eq!(curl(&jail, "http://127.0.0.1:3129/v1/messages -d '{}'").await.1, 404);
    assert_eq!(rpc(&jail, "ping", json!({})).await["result"], json!({}));
}

/// What a message of the Model Context Protocol is answered.
async fn rpc(jail: &Jail, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let arguments = format!("http://127.0.0.1:3129/mcp -H 'content-type: application/json' -d '{message}'");
    let (said, status) = curl(jail, &arguments).await;
    assert_eq!(status, 200, "{said}");
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&answer["id"], &answer["jsonrpc"]), (&json!(7), &json!("2.0")));
    answer
}

#[tokio::test]
async fn methods_are_tools_and_a_call_goes_the_way_of_every_call() {
    let jail = granted().await;
    let begun = rpc(
        &jail,
        "initialize",
        json!({"protocolVersion": "2025-06-18", "capabilities": {}}),
    )
    .await;
    assert_eq!(begun["result"]["protocolVersion"], "2025-06-18");
    let newer = rpc(&jail, "initialize", json!({"protocolVersion": "2099-01-01"})).await;
    assert_eq!(newer["result"]["protocolVersion"], "2025-11-25");
    let listed = rpc(&jail, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: BTreeSet<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.contains("crm-echo") && !names.contains("crm-remove"), "{names:?}");
    assert_eq!(tools[0]["inputSchema"]["type"], "object");
    let called = rpc(&jail, "tools/call", json!({"name": "crm-echo", "arguments": {"a": 1}})).await;
    assert_eq!(called["result"]["structuredContent"], json!({"a": 1}));
    assert_eq!(called["result"]["content"][0]["text"], r#"{"a":1}"#);
    let failed = rpc(&jail, "tools/call", json!({"name": "crm-limited", "arguments": {}})).await;
    assert_eq!(failed["result"]["isError"], true);
    assert!(
        failed["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("rate_limited"),
        "{failed}"
    );
    let large = rpc(
        &jail,
        "tools/call",
        json!({"name": "crm-large", "arguments": {"pieces": 3}}),
    )
    .await;
    assert!(
        large["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("too_long"),
        "{large}"
    );
    let asked = jail.handler.asked.lock().unwrap().clone();
    assert!(
        asked
            .iter()
            .all(|asked| asked.idempotency_key.is_some() && asked.call.is_none()),
        "{asked:?}"
    );
}

#[tokio::test]
async fn threat_080_tools_of_two_services_never_share_a_name() {
    let jail = Jail::claimed().await;
    let both = Grants {
        services: vec![
            services::service("crm", &["x_find"]),
            services::service("crm_x", &["find"]),
        ],
        ..Grants::default()
    };
    let second = Grants {
        services: both.services[1..].to_vec(),
        ..Grants::default()
    };
    jail.linked.prepare(true, both).await.unwrap();
    jail.call("exec", json!({ "code": "return 1" })).await;
    let listed = rpc(&jail, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["crm-x_find", "crm_x-find"]);
    for name in names {
        rpc(&jail, "tools/call", json!({"name": name, "arguments": {}})).await;
    }
    let asked = |jail: &Jail| -> Vec<(String, String)> {
        let asked = jail.handler.asked.lock().unwrap();
        asked
            .iter()
            .map(|asked| (asked.service.clone(), asked.method.clone()))
            .collect()
    };
    let own = |service: &str, method: &str| (service.to_owned(), method.to_owned());
    assert_eq!(asked(&jail), [own("crm", "x_find"), own("crm_x", "find")]);

    // What the first was called is nobody's when it is gone.
    jail.linked.prepare(true, second).await.unwrap();
    jail.call("exec", json!({ "code": "return 1" })).await;
    let refused = rpc(&jail, "tools/call", json!({"name": "crm-x_find", "arguments": {}})).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(asked(&jail).len(), 2);
}

#[tokio::test]
async fn threat_070_what_is_no_tool_is_not_called() {
    let jail = granted().await;
    for name in ["crm-remove", "crm-constructor", "crm.echo", "", "__proto__", "crm-"] {
        let refused = rpc(&jail, "tools/call", json!({"name": name, "arguments": {}})).await;
        assert_eq!(refused["error"]["code"], -32602, "{name}: {refused}");
    }
    assert_eq!(rpc(&jail, "resources/list", json!({})).await["error"]["code"], -32601);
    let note = "http://127.0.0.1:3129/mcp -d '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}'";
    assert_eq!(curl(&jail, note).await, (String::new(), 202));
    assert_eq!(curl(&jail, "http://127.0.0.1:3129/mcp").await.1, 405);
    assert_eq!(curl(&jail, "http://127.0.0.1:3129/mcp -d 'no json'").await.1, 400);
    assert!(jail.handler.asked.lock().unwrap().is_empty());
}
