//! Credentials that an upstream hands out are not handed on.
//!
//! Some APIs answer with a token when they are asked the right thing: a token endpoint, a security token service, an export of
//! settings. What stands under such a name is taken out of a result. What a service calls by another name is not known here.

use bytes::Bytes;
use serde_json::Value;

/// Names under which credentials are handed out, in JSON and XML.
const NAMES: [&str; 9] = [
    "access_token",
    "accessToken",
    "refresh_token",
    "refreshToken",
    "client_secret",
    "private_key",
    "SecretAccessKey",
    "secretAccessKey",
    "SessionToken",
];

/// What stands in a credential's place.
const WITHHELD: &str = "[withheld: a credential]";

/// A JSON text without credentials. It is not copied where there are none.
pub(crate) fn from_json(text: Bytes) -> Bytes {
    let suspicious = String::from_utf8_lossy(&text);
    if !NAMES.iter().any(|name| suspicious.contains(name)) {
        return text;
    }
    match serde_json::from_slice::<Value>(&text) {
        Ok(mut value) => {
            take_out(&mut value);
            value.to_string().into()
        }
        // It is no JSON.
        Err(_) => text,
    }
}

/// A text without credentials, where it is JSON. Where it is XML, an error names the element that hands one out.
pub(crate) fn from_text(text: Bytes) -> Result<Bytes, &'static str> {
    match text.trim_ascii_start().first() {
        Some(b'{' | b'[') => Ok(from_json(text)),
        Some(b'<') => {
            let xml = String::from_utf8_lossy(&text);
            match NAMES.into_iter().find(|name| xml.contains(&format!("<{name}>"))) {
                Some(name) => Err(name),
                None => Ok(text),
            }
        }
        _ => Ok(text),
    }
}

fn take_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if NAMES.contains(&name.as_str()) && !text.is_empty() => {
                        WITHHELD.clone_into(text);
                    }
                    value => take_out(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(take_out),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn threat_051_what_stands_under_a_credentials_name_is_taken_out() {
        let answer = json!({
            "access_token": "ya29.secret",
            "expires_in": 3600,
            "list": [{"Credentials": {"SecretAccessKey": "wJalr", "AccessKeyId": "AKIA", "SessionToken": "x"}}],
            "properties": {"access_token": {"type": "string"}},
        });
        let clean = from_json(answer.to_string().into());
        assert_eq!(
            serde_json::from_slice::<Value>(&clean).unwrap(),
            json!({
                "access_token": WITHHELD,
                "expires_in": 3600,
                "list": [{"Credentials": {"SecretAccessKey": WITHHELD, "AccessKeyId": "AKIA", "SessionToken": WITHHELD}}],
                "properties": {"access_token": {"type": "string"}},
            })
        );
    }

    #[test]
    fn threat_051_an_xml_answer_with_a_credential_is_withheld_whole() {
        let sts = "<AssumeRoleResult><SecretAccessKey>wJalr</SecretAccessKey></AssumeRoleResult>";
        assert_eq!(from_text(sts.into()), Err("SecretAccessKey"));
        let json = from_text(r#" {"access_token": "x"}"#.into()).unwrap();
        assert!(!json.ends_with(b"\"x\"}"));
        for fine in [
            "call it with an access_token",
            "<p>SecretAccessKey</p>",
            "{\"access_token\": unquoted",
        ] {
            assert_eq!(from_text(fine.into()).unwrap(), fine);
        }
    }

    #[test]
    fn all_else_is_as_it_was_to_the_byte() {
        let text = Bytes::from_static(br#"{"b": 1.50, "a": "token", "b": 2}"#);
        assert_eq!(from_json(text.clone()).as_ptr(), text.as_ptr());
    }
}
