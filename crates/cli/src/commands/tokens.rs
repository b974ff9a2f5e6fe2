//! Tokens of whoever asks, or of others where an admin does.

use domain::TokenId;
use reqwest::Method;
use serde_json::{Value, json};

use crate::arguments::{SHORT_ID, TokenCommand};
use crate::{Client, ClientError};

use super::audit::user_id;
use super::lists::{nothing, text, time};
use super::say;
use super::table::{Column, last_digits, table};

pub(super) const COLUMNS: [Column; 5] = [
    Column::left("TOKEN", |row| last_digits(&row["id"])),
    Column::left("FOR", |row| text(&row["label"])).shrinks(2, 12),
    Column::left("USER", |row| text(&row["user_name"])).shrinks(1, 12),
    Column::left("SINCE (UTC)", |row| time(&row["created"])).goes(3),
    Column::left("STATE", state),
];

pub(super) async fn token(client: &Client, command: TokenCommand, json: bool) -> Result<(), ClientError> {
    match command {
        TokenCommand::List { user } => {
            let tokens = Value::from(of(client, user.as_deref()).await?);
            let words = "there is no token of theirs: `belljar token add LABEL --user U` makes one";
            if nothing(&tokens, words, json)? {
                return Ok(());
            }
            table(&tokens, &COLUMNS, json)
        }
        TokenCommand::Add { label, user } => {
            let user = match &user {
                Some(user) => Some(user_id(client, user).await?),
                None => None,
            };
            let answer: Value = client.post("/tokens", &json!({ "label": label, "user": user })).await?;
            say(json, &answer, answer["secret"].as_str().unwrap_or_default())
        }
        TokenCommand::Revoke { token, user } => {
            let id = match token.parse::<TokenId>() {
                Ok(id) => id.to_string(),
                Err(_) => found(&of(client, user.as_deref()).await?, &token)?,
            };
            let request = client.request(Method::DELETE, &format!("/tokens/{id}"));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "revoked")
        }
    }
}

/// A user's tokens, or one's own.
async fn of(client: &Client, user: Option<&str>) -> Result<Vec<Value>, ClientError> {
    let path = match user {
        Some(user) => format!("/tokens?user={}", user_id(client, user).await?),
        None => "/tokens".to_owned(),
    };
    let mut answer: Value = client.get(&path).await?;
    match answer["tokens"].take() {
        Value::Array(tokens) => Ok(tokens),
        _ => Ok(Vec::new()),
    }
}

/// The id of the one that is meant: by what it is for, or by the last digits of its id. One that opens nothing any more is meant only
/// where none that does is.
fn found(tokens: &[Value], named: &str) -> Result<String, ClientError> {
    let is_meant = |token: &&Value| {
        let by_digits = named.len() >= SHORT_ID && text(&token["id"]).ends_with(named);
        by_digits || token["label"] == named
    };
    let mut meant: Vec<_> = tokens.iter().filter(is_meant).collect();
    if meant.iter().any(|token| token["revoked"].is_null()) {
        meant.retain(|token| token["revoked"].is_null());
    }
    match meant.as_slice() {
        [] => Err(ClientError::Refused {
            code: "not_found".into(),
            message: format!(
                "there is no token {named:?}: `belljar token list` shows yours, `belljar token list --user U` another user's, of whom \
                 `belljar token revoke` is told by --user too"
            ),
        }),
        [token] => Ok(text(&token["id"])),
        several => {
            let digits: Vec<_> = several.iter().map(|token| last_digits(&token["id"])).collect();
            Err(ClientError::Usage(format!(
                "{} tokens are for {named:?}: name one by its digits, {}",
                several.len(),
                digits.join(" or ")
            )))
        }
    }
}

fn state(row: &Value) -> String {
    let is_over = row["expires"]
        .as_i64()
        .is_some_and(|expires| expires <= domain::Timestamp::now().0);
    match (row["revoked"].is_null(), is_over) {
        (false, _) => "revoked".to_owned(),
        (true, true) => "expired".to_owned(),
        (true, false) => "good".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_meant_by_what_it_is_for_or_by_its_last_digits() {
        let token = |digits: &str, label: &str, revoked: Value| {
            let id = format!("0192f0c1-2d3e-7abc-8def-{digits}");
            json!({ "id": id, "label": label, "revoked": revoked })
        };
        let tokens = [
            token("000000000001", "laptop", Value::Null),
            token("000000000002", "laptop", json!(5)),
            token("000000000003", "phone", Value::Null),
            token("000000000004", "phone", Value::Null),
            token("000000000005", "old", json!(5)),
        ];
        let is = |named: &str| found(&tokens, named).map(|id| last_digits(&Value::from(id)));
        assert_eq!(
            is("laptop").unwrap(),
            "000000000001",
            "the other opens nothing any more"
        );
        assert_eq!(is("old").unwrap(), "000000000005");
        assert_eq!(is("000000000003").unwrap(), "000000000003");
        assert_eq!(is("8def-000000000004").unwrap(), "000000000004");
        let several = is("phone").unwrap_err();
        assert!(matches!(several, ClientError::Usage(_)));
        assert!(
            several.to_string().contains("000000000003 or 000000000004"),
            "{several}"
        );
        for none in ["tablet", "0003", ""] {
            let none = is(none).unwrap_err();
            assert!(none.to_string().contains("belljar token list"), "{none}");
        }
    }
}
