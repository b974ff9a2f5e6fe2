//! Rows, as they are handed on: JSON that fits, or a file that flows.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use crate::definition::Engine;
use crate::{Code, Failure};

/// Whole numbers up to here are the same in JavaScript.
const EXACT: u64 = 1 << 53;
/// Digits that a fraction keeps in JavaScript.
const DIGITS: usize = 15;
/// Bytes of a file that are handed on at once.
const PIECE: usize = 64 << 10;
/// How long a piece waits for whoever reads the file, and the statement with it.
const TAKES: Duration = Duration::from_secs(10);

/// A value as a JSON text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cell(String);

impl Cell {
    pub(crate) fn null() -> Self {
        Self("null".to_owned())
    }

    pub(crate) fn text(text: &str) -> Self {
        Self(Value::from(text).to_string())
    }

    pub(crate) fn truth(truth: bool) -> Self {
        Self(truth.to_string())
    }

    /// A JSON document as the server wrote it; a text where it is none.
    pub(crate) fn json(text: &str) -> Self {
        match serde_json::from_str::<&serde_json::value::RawValue>(text) {
            Ok(document) => Self(document.get().replace(['\n', '\r'], " ")),
            Err(_) => Self::text(text),
        }
    }

    /// A number where JavaScript reads just that number, else a text.
    pub(crate) fn number(text: &str) -> Self {
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        let is_exact = match text.parse::<i128>() {
            Ok(whole) => whole.unsigned_abs() <= u128::from(EXACT),
            Err(_) => digits <= DIGITS,
        };
        let is_json = serde_json::from_str::<serde_json::Number>(text).is_ok();
        if is_exact && is_json {
            Self(text.to_owned())
        } else {
            Self::text(text)
        }
    }

    /// A floating-point number, which is one of JavaScript's own but for what is no number.
    pub(crate) fn float(text: &str) -> Self {
        if serde_json::from_str::<f64>(text).is_ok() {
            Self(text.to_owned())
        } else {
            Self::text(text)
        }
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        use base64::Engine as _;
        Self::text(&base64::engine::general_purpose::STANDARD.encode(bytes))
    }

    /// The value as a text without quotes; none where it is null.
    pub(crate) fn plain(&self) -> Option<String> {
        match serde_json::from_str::<Value>(&self.0) {
            Ok(Value::Null) => None,
            Ok(Value::String(text)) => Some(text),
            _ => Some(self.0.clone()),
        }
    }

    /// Each engine says in its own way that something holds.
    fn make_truth(&mut self) {
        *self = Self::truth(matches!(&*self.0, "1" | "true" | "\"YES\"" | "\"PRI\""));
    }

    fn as_csv(&self) -> String {
        self.plain().map_or_else(String::new, |plain| quoted(&plain))
    }
}

/// As a field of RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) || text.is_empty() {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// What the rows become.
pub(crate) enum Form {
    /// `{columns, rows, truncated}`
    Rows,
    /// `{engine, placeholders, tables, truncated}`
    Tables(Engine),
    /// `{table, columns, truncated}`
    Described(String),
}

/// Takes rows, as many as there is room for.
pub(crate) struct Rows {
    what: String,
    names: Vec<String>,
    limit: u64,
    bytes: u64,
    count: u64,
    truncated: bool,
    out: Out,
}

enum Out {
    Whole {
        form: Form,
        head: String,
        text: String,
    },
    Flowing {
        csv: bool,
        text: String,
        written: u64,
        pieces: mpsc::Sender<Result<Bytes, Failure>>,
    },
}

impl Rows {
    pub(crate) fn whole(what: &str, form: Form, limit: u64, bytes: u64) -> Self {
        Self::new(
            what,
            limit,
            bytes,
            Out::Whole {
                form,
                head: "[]".to_owned(),
                text: String::new(),
            },
        )
    }

    pub(crate) fn flowing(
        what: &str,
        csv: bool,
        limit: u64,
        bytes: u64,
        pieces: mpsc::Sender<Result<Bytes, Failure>>,
    ) -> Self {
        Self::new(
            what,
            limit,
            bytes,
            Out::Flowing {
                csv,
                text: String::new(),
                written: 0,
                pieces,
            },
        )
    }

    fn new(what: &str, limit: u64, bytes: u64, out: Out) -> Self {
        Self {
            what: what.to_owned(),
            names: Vec::new(),
            limit,
            bytes,
            count: 0,
            truncated: false,
            out,
        }
    }

    /// The most rows that are taken.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The most bytes that are taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What the rows hold: names and types. Of two columns of one name the second gets a number.
    pub(crate) fn columns(&mut self, columns: &[(String, String)]) {
        let mut described = Vec::new();
        for (name, kind) in columns {
            let mut unique = name.clone();
            let mut number = 2;
            while self.names.contains(&unique) {
                unique = format!("{name}_{number}");
                number += 1;
            }
            described.push(json!({ "name": unique, "type": kind }));
            self.names.push(unique);
        }
        match &mut self.out {
            Out::Whole { head, .. } => *head = Value::from(described).to_string(),
            Out::Flowing { csv: true, text, .. } => {
                let names: Vec<String> = self.names.iter().map(|name| quoted(name)).collect();
                text.push_str(&names.join(","));
                text.push_str("\r\n");
            }
            Out::Flowing { .. } => {}
        }
    }

    /// Takes a row. Says whether there is room for more.
    ///
    /// # Errors
    /// When a row alone is too large, or a file would be cut.
    pub(crate) async fn row(&mut self, cells: Vec<Cell>) -> Result<bool, Failure> {
        if self.count >= self.limit {
            self.truncated = true;
            return match self.out {
                Out::Whole { .. } => Ok(false),
                Out::Flowing { .. } => Err(self.too_large(&format!("{} rows", self.limit))),
            };
        }
        let before = self.count;
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        match &mut self.out {
            Out::Whole { form, text, head } => {
                let mut cells = cells;
                if matches!(form, Form::Described(_)) {
                    cells.iter_mut().skip(2).take(2).for_each(Cell::make_truth);
                }
                let row = object(&self.names, &cells);
                if head.len() + text.len() + row.len() + 128 > bytes {
                    if before == 0 {
                        return Err(self.too_large(&format!("{} bytes in one row", self.bytes)));
                    }
                    self.truncated = true;
                    return Ok(false);
                }
                if before > 0 {
                    text.push(',');
                }
                text.push_str(&row);
            }
            Out::Flowing {
                csv,
                text,
                written,
                pieces,
            } => {
                if *csv {
                    let cells: Vec<String> = cells.iter().map(Cell::as_csv).collect();
                    text.push_str(&cells.join(","));
                    text.push_str("\r\n");
                } else {
                    text.push_str(&object(&self.names, &cells));
                    text.push('\n');
                }
                if *written + text.len() as u64 > self.bytes {
                    return Err(self.too_large(&format!("{} bytes", self.bytes)));
                }
                if text.len() >= PIECE {
                    *written += text.len() as u64;
                    // Who reads no further wants no more.
                    match pieces.send_timeout(Ok(std::mem::take(text).into()), TAKES).await {
                        Ok(()) => {}
                        Err(SendTimeoutError::Closed(_)) => return Ok(false),
                        Err(SendTimeoutError::Timeout(_)) => return Err(self.untaken()),
                    }
                }
            }
        }
        self.count += 1;
        Ok(true)
    }

    fn untaken(&self) -> Failure {
        Failure::new(
            Code::Timeout,
            format!(
                "{}: nobody took the next rows for {} s, so the statement was stopped",
                self.what,
                TAKES.as_secs()
            ),
        )
        .remedy("read the answer to its end as it comes, into a file if need be, and work on it then")
    }

    fn too_large(&self, cap: &str) -> Failure {
        Failure::new(
            Code::AnswerTooLarge,
            format!("{}: the answer has more than {cap}", self.what),
        )
        .remedy("name the columns you need, filter and sum in the statement, or ask in parts")
    }

    /// Everything, as JSON.
    pub(crate) fn finish(self) -> Bytes {
        let Out::Whole { form, head, text } = self.out else {
            return Bytes::new();
        };
        let truncated = self.truncated;
        match form {
            Form::Rows => format!("{{\"columns\":{head},\"rows\":[{text}],\"truncated\":{truncated}}}"),
            Form::Tables(engine) => format!(
                "{{\"engine\":{},\"placeholders\":{},\"tables\":[{text}],\"truncated\":{truncated}}}",
                json!(engine.as_str()),
                json!(engine.placeholders())
            ),
            Form::Described(table) => {
                format!(
                    "{{\"table\":{},\"columns\":[{text}],\"truncated\":{truncated}}}",
                    json!(table)
                )
            }
        }
        .into()
    }

    /// Hands on the rest of a file, or why it has no end.
    pub(crate) async fn end(self, result: Result<(), Failure>) {
        let Out::Flowing { text, pieces, .. } = self.out else {
            return;
        };
        let last = match result {
            Ok(()) if text.is_empty() => return,
            Ok(()) => Ok(text.into()),
            Err(failure) => Err(failure),
        };
        // Who is gone needs nothing.
        let _ = pieces.send(last).await;
    }
}

fn object(names: &[String], cells: &[Cell]) -> String {
    let mut row = String::from("{");
    for (name, cell) in names.iter().zip(cells) {
        if row.len() > 1 {
            row.push(',');
        }
        row.push_str(&Value::from(name.as_str()).to_string());
        row.push(':');
        row.push_str(&cell.0);
    }
    row.push('}');
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_what_they_are() {
        for (text, json) in [
            ("1", "1"),
            ("-9007199254740992", "-9007199254740992"),
            ("9007199254740993", "\"9007199254740993\""),
            ("12.50", "12.50"),
            ("0.12345678901234567890", "\"0.12345678901234567890\""),
            ("NaN", "\"NaN\""),
            (".5", "\".5\""),
        ] {
            assert_eq!(Cell::number(text).0, json);
        }
        assert_eq!(Cell::bytes(b"\xff\x00").0, "\"/wA=\"");
        assert_eq!(
            Cell::json("{\"a\": 12345678901234567890}").0,
            "{\"a\": 12345678901234567890}"
        );
    }

    #[tokio::test]
    async fn rows_stop_where_there_is_no_room() {
        let mut rows = Rows::whole("x.query", Form::Rows, 2, 10_000);
        rows.columns(&[("id".into(), "int4".into()), ("id".into(), "int4".into())]);
        for index in 0..2 {
            assert!(
                rows.row(vec![Cell::number(&index.to_string()), Cell::null()])
                    .await
                    .unwrap()
            );
        }
        assert!(!rows.row(vec![Cell::null(), Cell::null()]).await.unwrap());
        let whole: Value = serde_json::from_slice(&rows.finish()).unwrap();
        assert_eq!(
            whole,
            json!({
                "columns": [{ "name": "id", "type": "int4" }, { "name": "id_2", "type": "int4" }],
                "rows": [{ "id": 0, "id_2": null }, { "id": 1, "id_2": null }],
                "truncated": true,
            })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn threat_094_who_takes_no_rows_holds_no_statement() {
        let (sender, mut pieces) = mpsc::channel(1);
        let mut rows = Rows::flowing("x.export", true, u64::MAX, u64::MAX, sender);
        rows.columns(&[("a".into(), "text".into())]);
        let row = || vec![Cell::text(&"x".repeat(PIECE))];
        assert!(rows.row(row()).await.unwrap(), "there is room for it");
        let failure = rows.row(row()).await.unwrap_err();
        assert_eq!(failure.code, Code::Timeout);
        assert!(failure.message.contains("nobody took the next rows"), "{failure}");
        let ((), last) = tokio::join!(rows.end(Err(failure)), async {
            assert!(pieces.recv().await.unwrap().is_ok());
            pieces.recv().await.unwrap()
        });
        assert_eq!(last.unwrap_err().code, Code::Timeout);
    }

    #[tokio::test]
    async fn a_file_that_is_not_whole_says_so() {
        let (sender, mut pieces) = mpsc::channel(8);
        let mut rows = Rows::flowing("x.export", true, 1, 10_000, sender);
        rows.columns(&[("a,b".into(), "text".into())]);
        assert!(rows.row(vec![Cell::text("say \"hi\"")]).await.unwrap());
        let failure = rows.row(vec![Cell::text("more")]).await.unwrap_err();
        rows.end(Err(failure)).await;
        assert_eq!(pieces.recv().await.unwrap().unwrap_err().code, Code::AnswerTooLarge);
        assert_eq!(Cell::text("say \"hi\"").as_csv(), "\"say \"\"hi\"\"\"");
    }
}
