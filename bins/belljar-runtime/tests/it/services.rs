//! Services, as code in `exec` and any other process calls them.

use std::collections::BTreeSet;

use protocol::{Grants, MethodGrant, ServiceGrant, Start, ToControl};
use serde_json::{Value, json};

use crate::handler::{TOGETHER, reply};
use crate::jail::{Jail, exec, limits, words};

pub(crate) fn grants() -> Grants {
    let methods = ["echo", "text", "bytes", "large", "cut", "together", "limited", "denied"];
    Grants {
        services: vec![service("crm", &methods)],
        ..Grants::default()
    }
}

pub(crate) fn service(name: &str, methods: &[&str]) -> ServiceGrant {
    ServiceGrant {
        name: name.to_owned(),
        summary: "Customers and what was said to them.".to_owned(),
        methods: methods.iter().map(|&name| name.to_owned()).collect(),
        types: format!("declare namespace services.{name} {{ function echo(args: {{}}): Promise<unknown>; }}"),
        tools: methods.iter().map(|name| tool(name)).collect(),
    }
}

fn tool(name: &str) -> MethodGrant {
    MethodGrant {
        name: name.to_owned(),
        summary: format!("Does {name}."),
        read_only: true,
        arguments: json!({ "type": "object" }),
    }
}

/// A jail in which a run is on that may use `crm`.
async fn granted() -> Jail {
    Jail::granted(grants()).await
}

async fn run(jail: &Jail, code: &str) -> String {
    let result = jail.call("exec", json!({ "code": code })).await;
    assert!(!result.is_error, "{code}: {result:?}");
    text(&result)
}

fn text(result: &domain::ToolResult) -> String {
    let parts: Vec<Value> = serde_json::from_str(&words(result)).unwrap();
    parts.iter().filter_map(|part| part["text"].as_str()).collect()
}

#[tokio::test]
async fn a_method_is_called_and_its_result_is_what_it_answered() {
    let mut jail = granted().await;
    let said = run(
        &jail,
        "return [await services.crm.echo({ a: [1, null] }), await services.crm.echo(), await services.crm.text(), \
         (await services.crm.bytes()).length]",
    )
    .await;
    assert_eq!(said, r#"[{"a":[1,null]},{},"a,b\n",3]"#);
    let mut lines = String::new();
    while lines.lines().count() < 4 {
        match jail.event().await {
            ToControl::Progress { call, text } => {
                assert_eq!(call.0, "1");
                lines += &text;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(lines.starts_with("crm.echo: 14 B in "), "{lines}");
}

#[tokio::test]
async fn threat_070_what_is_not_allowed_does_not_exist_and_no_name_leads_further() {
    let jail = granted().await;
    let said = run(
        &jail,
        "const gone = ['constructor', '__proto__', 'toString', 'hasOwnProperty', 'delete', '', 'then'];
         return [gone.map(name => typeof services.crm[name]), gone.map(name => typeof services[name]),
                 Object.keys(services), Object.isFrozen(services.crm), 'secret' in services]",
    )
    .await;
    let undefined = ["undefined"; 7];
    assert_eq!(said, json!([undefined, undefined, ["crm"], true, false]).to_string());
    // Who asks past `services` is refused by the control plane, and told so.
    let said = jail
        .shell(
            "curl -sS -w ' %{http_code}' --unix-socket /run/belljar-services.sock http://x/v1/services \
             -d '{\"service\":\"crm\",\"method\":\"constructor\"}'",
        )
        .await;
    assert_eq!(
        said,
        r#"{"error":{"code":"denied","message":"crm.constructor is not allowed"}} 403"#
    );
    assert_eq!(jail.seen(), ["service crm.constructor"]);
}

#[tokio::test]
async fn a_failure_is_an_error_with_code_status_message_and_remedy() {
    let jail = granted().await;
    let said = run(
        &jail,
        "try { await services.crm.limited() } catch (e) {
           return [e instanceof Error, e.name, e.message, e.code, e.status, e.remedy, e.retryAfter] }",
    )
    .await;
    let expected = json!([
        true,
        "ServiceError",
        "crm takes 10 calls a second",
        "rate_limited",
        429,
        "Wait a little.",
        7
    ]);
    assert_eq!(said, expected.to_string());
    for code in [
        "const a = services.crm.limited();\nreturn await a",
        "services.crm.limited(); await new Promise(done => setTimeout(done, 1e6))",
        "services.crm.limited()",
    ] {
        let result = jail.call("exec", json!({ "code": code })).await;
        assert!(result.is_error, "{code}: {result:?}");
        let said = text(&result);
        assert!(
            said.starts_with("ServiceError: crm takes 10 calls a second (rate_limited, 429)\nWait a little."),
            "{code}: {said}"
        );
    }
    let said = run(&jail, "return await Promise.allSettled([services.crm.denied()])").await;
    let expected = json!([{ "status": "rejected", "reason": {
        "code": "denied", "status": 403, "name": "ServiceError", "message": "crm.denied is not allowed" } }]);
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), expected);
}

#[tokio::test]
async fn calls_run_beside_one_another_and_no_more_than_the_bound() {
    let jail = granted().await;
    // Sixteen are answered only together; twice as many come in two times sixteen.
    let code = format!(
        "return (await Promise.all(Array.from({{ length: {} }}, () => services.crm.together()))).length",
        2 * TOGETHER
    );
    assert_eq!(run(&jail, &code).await, (2 * TOGETHER).to_string());
}

#[tokio::test]
async fn a_result_of_any_length_is_written_in_constant_memory() {
    let jail = granted().await;
    let said = run(
        &jail,
        "const written = await writeToFile('out/large.bin', services.crm.large({ pieces: 200 }));
         return { ...written, large: process.resourceUsage().maxRSS > 200_000 }",
    )
    .await;
    let bytes = 200_u64 << 20;
    let expected = json!({ "path": "out/large.bin", "bytes": bytes, "large": false });
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), expected);
    let file = std::fs::metadata(jail.workspace().join("out/large.bin")).unwrap();
    assert_eq!(file.len(), bytes);
    let error = jail
        .call(
            "exec",
            json!({ "code": "return await services.crm.large({ pieces: 70 })" }),
        )
        .await;
    assert!(
        text(&error).contains("writeToFile(path, services.x.y(args))"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_result_that_breaks_off_or_fails_leaves_no_file() {
    let jail = granted().await;
    for (method, expected) in [("cut", "broke off"), ("limited", "10 calls a second")] {
        let code = format!("await writeToFile('{method}.json', services.crm.{method}())");
        let result = jail.call("exec", json!({ "code": code })).await;
        assert!(
            result.is_error && text(&result).contains(expected),
            "{method}: {result:?}"
        );
    }
    assert_eq!(std::fs::read_dir(jail.workspace()).unwrap().count(), 0);
}

#[tokio::test]
async fn threat_114_what_is_written_stays_beneath_the_workspace_and_goes_over_no_link() {
    let jail = granted().await;
    jail.shell("cd /workspace && ln -s /tmp out && ln -s /tmp/x link && mkdir folder")
        .await;
    for path in ["../x", "/etc/x", "/run/x", "out/x", "link", "folder", "/workspace/../x"] {
        let code = format!("await writeToFile('{path}', services.crm.echo())");
        let result = jail.call("exec", json!({ "code": code })).await;
        assert!(result.is_error, "{path} was written");
    }
    assert!(
        run(&jail, "return await writeToFile('/workspace/a/b', 'y')")
            .await
            .contains("bytes")
    );
}

#[tokio::test]
async fn equal_calls_have_equal_keys_in_whatever_order_they_are_made_again() {
    let jail = granted().await;
    let keys = || -> BTreeSet<String> {
        let asked = std::mem::take(&mut *jail.handler.asked.lock().unwrap());
        assert_eq!(asked.len(), 4);
        asked.into_iter().map(|asked| asked.idempotency_key.unwrap()).collect()
    };
    run(
        &jail,
        "await services.crm.echo({ a: 1 }); await services.crm.echo({ a: 1 }); await services.crm.echo({ a: 2 }); await services.crm.text({ a: 1 })",
    )
    .await;
    let first = keys();
    assert_eq!(first.len(), 4);
    run(
        &jail,
        "await services.crm.text({ a: 1 }); await Promise.all([2, 1, 1].map(a => services.crm.echo({ a })))",
    )
    .await;
    assert_eq!(keys(), first);
    let again = "for (const a of [1, 1, 2]) await services.crm.echo({ a }); await services.crm.text({ a: 1 })";
    let result = testkit::within("the call", jail.linked.call(exec("2", again), limits())).await;
    assert!(!result.unwrap().is_error);
    assert!(keys().is_disjoint(&first), "another call of a tool has other keys");
}

#[tokio::test]
async fn the_types_of_a_service_are_told_when_they_are_asked_for() {
    let jail = granted().await;
    let said = run(&jail, "return [await describe('crm'), await describe()]").await;
    let expected = json!([
        "declare namespace services.crm { function echo(args: {}): Promise<unknown>; }",
        "crm: Customers and what was said to them.\n"
    ]);
    assert_eq!(said, expected.to_string());
    let result = jail
        .call("exec", json!({ "code": "return describe('__proto__')" }))
        .await;
    assert!(text(&result).contains("there are crm"), "{result:?}");
}

#[tokio::test]
async fn without_services_or_without_a_run_there_is_nothing_to_call() {
    let jail = Jail::claimed().await;
    let gone = "return [typeof services, typeof describe, require('node:fs').existsSync('/run/belljar-services.sock')]";
    let nothing = json!(["undefined", "undefined", false]).to_string();
    assert_eq!(run(&jail, gone).await, nothing);
    jail.linked.prepare(true, grants()).await.unwrap();
    assert!(run(&jail, gone).await.ends_with("true]"));
    jail.linked.prepare(false, Grants::default()).await.unwrap();
    assert_eq!(run(&jail, gone).await, nothing);
    jail.linked.prepare(true, grants()).await.unwrap();
    jail.linked.stop().await.unwrap();
    assert_eq!(run(&jail, gone).await, nothing);
}

#[tokio::test]
async fn a_loop_in_the_sandbox_calls_services_if_it_may_run_code() {
    for (tools, expected) in [(vec!["exec", "read"], true), (vec!["read"], false)] {
        let mut jail = Jail::claimed().await;
        let first = if expected {
            exec("a", "return services.crm.echo({ x: 1 })")
        } else {
            crate::jail::tool_call("a", "read", json!({ "path": "/workspace" }))
        };
        jail.play([reply(vec![first]), reply(vec![])]);
        let start = Start {
            run: domain::RunId::new(),
            epoch: domain::Epoch(1),
            turn: 1,
            tools: tools.into_iter().map(Into::into).collect(),
            limits: limits(),
            grants: grants(),
            traced: false,
        };
        jail.linked.start(start).await.unwrap();
        while !matches!(jail.event().await, ToControl::LoopEnded { .. }) {}
        let called = jail.seen().contains(&"service crm.echo".to_owned());
        assert_eq!(called, expected);
        let socket = jail.shell("ls /run").await.contains("belljar-services");
        assert!(!socket, "the run is over");
    }
}

#[tokio::test]
async fn threat_017_a_flood_of_calls_is_served_in_turn_and_the_tools_go_on() {
    let jail = granted().await;
    let flood = r#"
import socket
body = b'{"service":"crm","method":"echo"}'
open_ = []
for number in range(300):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    try:
        s.connect('/run/belljar-services.sock')
    except BlockingIOError:
        break
    open_.append(s)
    if number % 2:
        s.send(b'POST /v1/services HTTP/1.1\r\nx: ')
    else:
        s.send(b'POST /v1/services HTTP/1.1\r\ncontent-length: %d\r\n\r\n' % len(body) + body)
print(len(open_) > 60)
"#;
    assert_eq!(jail.python(flood).await, "True\n");
    assert!(!jail.call("read", json!({ "path": "/workspace" })).await.is_error);
    assert_eq!(run(&jail, "return await services.crm.echo({})").await, "{}");
    let long = run(
        &jail,
        "try { await services.crm.echo({ a: 'x'.repeat(2_000_000) }) } catch (e) { return e.status }",
    );
    assert_eq!(long.await, "413");
}

#[tokio::test]
async fn threat_065_the_token_is_added_behind_the_wall() {
    let jail = granted().await;
    // The handler asserts that every request shows it; here nobody does, and a token of one's own is passed on to nobody.
    let said = jail
        .shell(
            "curl -sS --unix-socket /run/belljar-services.sock http://x/v1/services -H 'authorization: Bearer mine' \
             -d '{\"service\":\"crm\",\"method\":\"echo\",\"args\":{\"a\":1}}'; \
             curl -sS -o /dev/null -w ' %{http_code}' --unix-socket /run/belljar-services.sock http://x/v1/turns -d '{}'; \
             curl -sS -o /dev/null -w ' %{http_code}' --unix-socket /run/belljar-services.sock -X CONNECT http://x/v1/services",
        )
        .await;
    assert_eq!(said, r#"{"a":1} 404 404"#);
}

#[tokio::test]
async fn skills_that_the_run_may_not_load_are_not_there() {
    let jail = Jail::claimed().await;
    let none = Grants {
        skills: Some(BTreeSet::new()),
        ..Grants::default()
    };
    jail.linked.prepare(true, none).await.unwrap();
    let result = jail.call("skill", json!({ "name": "data-report" })).await;
    assert!(text(&result).contains("there are none"), "{result:?}");
    jail.linked.prepare(true, Grants::default()).await.unwrap();
    let result = jail.call("skill", json!({ "name": "data-report" })).await;
    assert!(!result.is_error, "{result:?}");
}

#[tokio::test]
async fn a_call_waits_for_a_control_plane_that_comes_back() {
    let mut jail = granted().await;
    let code = "console.log('begun'); while (!require('node:fs').existsSync('/workspace/go')) await new Promise(done => setTimeout(done, 10));
                return services.crm.echo({ a: 1 })";
    jail.play([reply(vec![exec("a", code)]), reply(vec![])]);
    let start = Start {
        run: domain::RunId::new(),
        epoch: domain::Epoch(1),
        turn: 1,
        tools: vec!["exec".into()],
        limits: limits(),
        grants: grants(),
        traced: false,
    };
    jail.linked.start(start).await.unwrap();
    while !matches!(jail.event().await, ToControl::Progress { .. }) {}
    jail.linked.close();
    std::fs::write(jail.workspace().join("go"), "").unwrap();
    jail.restart_control().await;
    while !matches!(jail.event().await, ToControl::LoopEnded { .. }) {}
    let turns = jail.handler.turns.lock().unwrap();
    assert!(words(&turns[1].results[0]).contains("\\\"a\\\":1"), "{turns:?}");
}
