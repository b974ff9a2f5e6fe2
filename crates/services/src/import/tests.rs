//! Descriptions, and the services that are made of them.

use std::path::Path;

use super::{ImportError, Imported, Options, import};
use crate::definition::{Access, Action, Auth, Body, CursorPlace, Next, Part, Template};
use crate::{Catalogue, Service};

/// A description with everything that is awkward about descriptions.
const SHOP: &str = r##"
openapi: 3.0.3
info: { title: Pet shop, description: "Pets for sale. And more." }
servers: [{ url: "https://{region}.pets.example/v2/", variables: { region: { default: eu } } }]
security: [{ key: [] }, { app: [] }]
components:
  securitySchemes:
    key: { type: apiKey, in: header, name: X-Api-Key }
    app: { type: oauth2, flows: { clientCredentials: { tokenUrl: "https://login.pets.example/token", scopes: { "pets:read": r } } } }
    unused: { type: http, scheme: basic }
  parameters:
    Limit: { name: limit, in: query, schema: { type: integer, maximum: 50 } }
  schemas:
    Pet:
      type: object
      required: [id, name]
      properties:
        id: { type: integer, format: int64, readOnly: true }
        name: { type: string, description: "What it is called. Unique." }
        kind: { type: string, enum: [cat, dog], nullable: true }
        parent: { $ref: "#/components/schemas/Pet" }
        price: { type: number, minimum: 0, exclusiveMinimum: true }
        code: { type: string, pattern: "^(?!x)y$" }
        owner: { $ref: "https://elsewhere.example/owner.yaml" }
    Page:
      type: object
      properties:
        pets: { type: array, items: { $ref: "#/components/schemas/Pet" } }
        next_cursor: { type: string, nullable: true }
        has_more: { type: boolean }
    Unused: { type: string }
paths:
  /pets:
    parameters: [{ $ref: "#/components/parameters/Limit" }]
    get:
      operationId: list_pets
      summary: List pets
      parameters:
        - { name: cursor, in: query, schema: { type: string } }
        - { name: "filter[kind]", in: query, schema: { type: array, items: { type: string } } }
        - { name: X-Shop, in: header, required: true, schema: { type: string } }
      responses: { 200: { description: ok, content: { application/json: { schema: { $ref: "#/components/schemas/Page" } } } } }
    post:
      operationId: addPet
      requestBody: { required: true, content: { application/json: { schema: { $ref: "#/components/schemas/Pet" } } } }
      responses: { 201: { description: ok, content: { application/json: { schema: { $ref: "#/components/schemas/Pet" } } } } }
  /pets/{pet-id}/photo:
    get:
      operationId: then
      parameters: [{ name: pet-id, in: path, required: true, schema: { $ref: "#/components/schemas/Pet" } }]
      responses: { 200: { description: ok, content: { image/png: {} } } }
    put:
      operationId: setPhoto
      requestBody: { required: true, content: { multipart/form-data: { schema: { type: object } } } }
      responses: { 204: { description: ok } }
    delete: { operationId: dropPhoto, deprecated: true, responses: { 204: { description: ok } } }
"##;

fn imported(text: &str, only: &[&str]) -> Imported {
    let options = Options {
        only: only.iter().map(|name| (*name).to_owned()).collect(),
        ..Options::default()
    };
    import(text, &options).unwrap()
}

/// Writes the service and loads it again.
fn loaded(imported: &Imported) -> Service {
    let folder = tempfile::tempdir().unwrap();
    imported.write(folder.path()).unwrap();
    let (catalogue, mistakes) = Catalogue::load(&[folder.path()]);
    assert_eq!(mistakes, []);
    Service::clone(catalogue.service(&imported.name).unwrap())
}

#[test]
fn a_description_becomes_a_service() {
    let imported = imported(SHOP, &[]);
    assert_eq!(imported.name, "petShop");
    assert_eq!(imported.methods, ["listPets", "addPet", "thenCall"]);
    assert_eq!(imported.slots, ["token"]);
    let service = loaded(&imported);
    assert_eq!(service.place(), "https://eu.pets.example/v2");
    assert_eq!(service.summary, "Pet shop: Pets for sale");
    assert_eq!(service.auth.len(), 2);
    assert_eq!(
        service.auth[0],
        Auth::Header {
            name: "x-api-key".into(),
            prefix: String::new()
        }
    );

    let list = &service.methods["listPets"];
    assert_eq!(list.access, Access::Read);
    let pages = list.pages.as_ref().unwrap();
    assert_eq!(pages.cursor, CursorPlace::Query("cursor".into()));
    assert!(
        matches!(&pages.next, Next::Body { at, more: Some(more) } if at.0 == "/next_cursor" && more.0 == "/has_more")
    );
    let arguments = list.arguments.value();
    assert_eq!(arguments["required"], serde_json::json!(["X-Shop"]));
    assert!(arguments["properties"].get("filterKind").is_some(), "{arguments}");
    let Action::Http(request) = &list.action else {
        panic!("it makes no request");
    };
    assert!(request.query.iter().any(|(name, _)| name == "filter[kind]"));

    let add = &service.methods["addPet"];
    let Action::Http(request) = &add.action else {
        panic!("it makes no request");
    };
    assert!(matches!(&request.body, Body::Json(Template::Rest(_))));
    let arguments = add.arguments.value();
    assert_eq!(arguments["required"], serde_json::json!(["name"]));
    assert!(
        arguments["properties"].get("id").is_none(),
        "what only the server writes is an argument: {arguments}"
    );
    let pet = &add.result.as_ref().unwrap().value()["$defs"]["Pet"];
    assert_eq!(pet["properties"]["kind"]["type"], serde_json::json!(["string", "null"]));
    assert_eq!(
        pet["properties"]["price"],
        serde_json::json!({ "type": "number", "exclusiveMinimum": 0 })
    );
    assert_eq!(pet["properties"]["parent"]["$ref"], "#/$defs/Pet");

    let photo = &service.methods["thenCall"].arguments;
    assert_eq!(
        photo.value()["properties"]["pet-id"],
        serde_json::json!({ "type": "string" })
    );
    assert!(service.types(|_| true).unwrap().contains("Promise<Uint8Array>"));
}

/// Operations of one API with this security, these schemes and these paths.
fn keyed(security: &str, paths: &str) -> String {
    format!(
        "openapi: 3.1.0\ninfo: {{title: a}}\nservers: [{{url: 'https://a.example/v1'}}]\n{security}\n\
         components: {{securitySchemes: {{\n  appKey: {{type: apiKey, in: header, name: X-App-Key}},\n  \
         userKey: {{type: apiKey, in: query, name: key}},\n  app: {{type: oauth2, flows: {{clientCredentials: {{tokenUrl: 'https://l.example/t', scopes: {{}}}}}}}},\n  \
         strange: {{type: mutualTLS}}}}}}\npaths:\n{paths}"
    )
}

#[test]
fn an_api_that_wants_two_credentials_at_once_gets_both() {
    let paths = "  /a: {get: {operationId: a, responses: {}}}\n";
    let both = imported(&keyed("security: [{appKey: [], userKey: []}]", paths), &[]);
    assert_eq!(both.slots, ["appKey", "userKey"]);
    let service = loaded(&both);
    let part = |auth, slot: &str| Part {
        auth,
        slot: Some(slot.to_owned()),
    };
    let header = Auth::Header {
        name: "x-app-key".into(),
        prefix: String::new(),
    };
    let query = Auth::Query { name: "key".into() };
    assert_eq!(
        service.auth,
        [Auth::All(vec![part(header, "appKey"), part(query, "userKey")])]
    );
    assert_eq!(service.auth[0].required(), ["appKey", "userKey"]);
    // A key beside a token that is asked for: there is one slot `token`.
    let mixed = imported(&keyed("security: [{appKey: [], app: []}, {app: []}]", paths), &[]);
    assert_eq!(mixed.slots, ["client_id", "client_secret", "token"]);
    assert_eq!(loaded(&mixed).auth.len(), 2);
    // One of two, as it was.
    let either = imported(&keyed("security: [{appKey: []}, {userKey: []}]", paths), &[]);
    assert_eq!(
        (either.slots.as_slice(), loaded(&either).auth.len()),
        (&["token".to_owned()][..], 2)
    );
}

#[test]
fn what_operations_say_of_servers_and_security_counts_for_them() {
    let paths = "  /a: {get: {operationId: a, responses: {}}}\n  /b: {get: {operationId: b, responses: {}}}\n  \
                 /c: {get: {operationId: c, security: [{userKey: []}], responses: {}}}\n  \
                 /d: {get: {operationId: d, security: [], responses: {}}}\n  \
                 /e: {servers: [{url: 'https://upload.example'}], get: {operationId: e, responses: {}}}\n  \
                 /f: {get: {operationId: f, servers: [{url: '/v1/'}], responses: {}}}\n  \
                 /g: {get: {operationId: g, security: [{strange: []}], responses: {}}}\n";
    let text = keyed("security: [{appKey: []}]", paths);
    let most = imported(&text, &[]);
    assert_eq!(most.methods, ["a", "b", "d", "f"]);
    let said: Vec<String> = most
        .left_out
        .iter()
        .map(|left| format!("{}: {}", left.what, left.why))
        .collect();
    for expected in [
        "GET /c: it asks for another credential than most",
        "GET /e: it is at https://upload.example, and the service at https://a.example/v1",
        "GET /g: it asks for strange, for which there is no way here",
        "security scheme strange: there is no such way here",
    ] {
        assert!(
            said.iter().any(|said| said.starts_with(expected)),
            "{expected}: {said:?}"
        );
    }
    // Those that are left out can be imported by themselves.
    let one = imported(&text, &["c"]);
    assert_eq!(
        (one.methods.as_slice(), loaded(&one).auth),
        (&["c".to_owned()][..], vec![Auth::Query { name: "key".into() }])
    );
    let elsewhere = imported(&text, &["e"]);
    assert_eq!(loaded(&elsewhere).place(), "https://upload.example");
}

#[test]
fn what_is_left_out_is_said() {
    let imported = imported(SHOP, &[]);
    let said: Vec<String> = imported
        .left_out
        .iter()
        .map(|left| format!("{}: {}", left.what, left.why))
        .collect();
    for expected in [
        "PUT /pets/{pet-id}/photo: its body is neither JSON nor a form but multipart/form-data",
        "DELETE /pets/{pet-id}/photo: it is deprecated",
        "schema Pet: the pattern \"^(?!x)y$\" needs look-around",
        "schema Pet: the reference https://elsewhere.example/owner.yaml leads out of the description",
    ] {
        assert!(
            said.iter().any(|said| said.starts_with(expected)),
            "{expected} is missing in:\n{}",
            said.join("\n")
        );
    }
}

#[test]
fn operations_are_chosen_by_name_method_or_path() {
    for (only, methods) in [
        (&["addPet"][..], &["addPet"][..]),
        (&["list*"], &["listPets"]),
        (&["/pets"], &["listPets", "addPet"]),
        (&["dropPhoto"], &["dropPhoto"]),
    ] {
        assert_eq!(imported(SHOP, only).methods, methods, "{only:?}");
    }
}

#[test]
fn what_cannot_be_imported_is_said_in_words() {
    let refuse = |text: &str, options: &Options| import(text, options).unwrap_err().to_string();
    let none = Options::default();
    assert!(refuse("swagger: '2.0'", &none).contains("swagger 2.0; convert it"));
    assert!(refuse("{\"openapi\": \"3.1.0\"", &none).contains("as JSON or YAML"));
    assert!(
        refuse("openapi: 3.1.0\nservers: [{url: /v1}]\ninfo: {title: a}", &none)
            .contains("(/v1): say it with --base-url")
    );
    let only = Options {
        only: vec!["nothing".into()],
        ..Options::default()
    };
    assert!(refuse(SHOP, &only).contains("there are /pets* (5)"));
    let name = Options {
        name: Some("pet.shop".into()),
        ..Options::default()
    };
    assert!(refuse(SHOP, &name).contains("can be no service's name"));
}

#[test]
fn circles_and_masses_have_bounds() {
    let circle = "openapi: 3.1.0\ninfo: {title: a}\nservers: [{url: 'https://a.example'}]\n\
                  components: {parameters: {A: {$ref: '#/components/parameters/B'}, B: {$ref: '#/components/parameters/A'}}, \
                  schemas: {A: {$ref: '#/components/schemas/B'}, B: {$ref: '#/components/schemas/A'}}}\n\
                  paths: {/a: {post: {operationId: a, parameters: [{$ref: '#/components/parameters/A'}], requestBody: {content: \
                  {application/json: {schema: {$ref: '#/components/schemas/A'}}}}, responses: {}}}}";
    assert_eq!(loaded(&imported(circle, &[])).methods.len(), 1);

    let deep = (0..200).fold("{type: string}".to_owned(), |inner, _| {
        format!("{{type: array, items: {inner}}}")
    });
    let deep = format!(
        "openapi: 3.1.0\ninfo: {{title: a}}\nservers: [{{url: 'https://a.example'}}]\npaths: {{/a: {{get: {{operationId: a, parameters: [{{name: x, in: query, schema: {deep}}}], responses: {{}}}}}}}}"
    );
    match import(&deep, &Options::default()) {
        Ok(imported) => assert!(imported.left_out.iter().any(|left| left.why.contains("too deep"))),
        Err(ImportError::Unreadable(_)) => {}
        Err(other) => panic!("{other}"),
    }

    let many: String = (0..300)
        .map(|number| format!("  /p{number}: {{get: {{responses: {{}}}}}}\n"))
        .collect();
    let many = format!("openapi: 3.1.0\ninfo: {{title: a}}\nservers: [{{url: 'https://a.example'}}]\npaths:\n{many}");
    assert!(matches!(
        import(&many, &Options::default()),
        Err(ImportError::TooMany { count: 300, .. })
    ));
    assert_eq!(imported(&many, &["/p1"]).methods, ["getP1"]);
}

#[test]
fn a_folder_that_is_there_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let imported = imported(SHOP, &[]);
    std::fs::create_dir(folder.path().join("petShop")).unwrap();
    assert!(matches!(imported.write(folder.path()), Err(ImportError::Exists(_))));
    assert_eq!(std::fs::read_dir(folder.path().join("petShop")).unwrap().count(), 0);
    assert!(Path::new(&imported.files[0].0).is_relative());
}
