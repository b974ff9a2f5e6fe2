//! What operators do about the image that sandboxes are made of.

use std::time::Duration;

use serde_json::{Value, json};

use crate::arguments::ImageCommand;
use crate::output::line;
use crate::terminal::harmless;
use crate::{Client, ClientError, Outcome};

use super::lists::{away, digits, mebibytes, nothing, session, span, text, time};
use super::table::{Column, last_digits, table};
use super::{encoded, say};

/// How often it is looked whether a refresh has ended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn image(client: &Client, command: ImageCommand, json: bool) -> Result<Outcome, ClientError> {
    match command {
        ImageCommand::Generations => generations(client, json).await?,
        ImageCommand::Refresh { image, detach } => return refresh(client, image, detach, json).await,
    }
    Ok(Outcome::Done)
}

pub(super) const GENERATIONS: [Column; 8] = [
    Column::left("IMAGE", |row| text(&row["image"])).shrinks(4, 12),
    Column::left("STATE", state),
    Column::left("BEGUN (UTC)", |row| time(&row["begun"])),
    Column::right("TOOK", took).goes(5),
    Column::right("MiB", |row| mebibytes(&row["bytes"])).goes(3),
    Column::right("SANDBOXES", |row| text(&row["sandboxes"])).goes(2),
    Column::left("DIGEST", |row| digits(&row["digest"])).goes(6),
    Column::optional("WHY", |row| {
        text(&row["error"]).lines().next().unwrap_or_default().to_owned()
    })
    .shrinks(1, 20)
    .goes(7),
];

async fn generations(client: &Client, json: bool) -> Result<(), ClientError> {
    let images = listed(client).await?;
    let rows = images.iter().flat_map(|image| {
        let generations = image["generations"].as_array().into_iter().flatten().cloned();
        generations.map(|mut row| {
            row["image"] = image["name"].clone();
            row["newest"] = Value::from(!row["digest"].is_null() && row["digest"] == image["newest"]);
            row
        })
    });
    let rows: Vec<Value> = rows.collect();
    let all = Value::from(rows.clone());
    let words = if images.is_empty() {
        "nothing is built anew: the recipe of the image that sandboxes are made of has no [[repositories]]"
    } else {
        "nothing was built yet: `belljar image refresh` builds it now"
    };
    if nothing(&all, words, json)? {
        return Ok(());
    }
    table(&all, &GENERATIONS, json)?;
    // The newest failure in full, where nothing that is newer went well: it says what to mend.
    let newest = rows.iter().find(|row| !row["ended"].is_null());
    if let Some(failed) = newest.filter(|row| row["state"] == "failed" && !json) {
        line(format_args!(
            "\nthe last one failed, and the one before stays:\n{}",
            harmless(&text(&failed["error"]))
        ))?;
    }
    Ok(())
}

/// Between its beginning and its end.
fn took(row: &Value) -> String {
    let (begun, ended) = (row["begun"].as_i64(), row["ended"].as_i64());
    begun
        .zip(ended)
        .map_or_else(String::new, |(begun, ended)| span(begun.abs_diff(ended)))
}

pub(super) const IMAGES: [Column; 5] = [
    Column::left("IMAGE", |row| text(&row["name"])).shrinks(2, 12),
    Column::left("DIGEST", |row| digits(&row["digest"])),
    Column::right("AGE", |row| away(&row["built"])),
    Column::right("MiB", |row| mebibytes(&row["bytes"])),
    Column::left("MADE OF", |row| match row["base"].as_str() {
        Some(_) => format!("{} and what was built on it", digits(&row["base"])),
        None if row["recipe"] == "imported" => "an archive".to_owned(),
        None => "a recipe".to_owned(),
    })
    .shrinks(1, 14),
];

/// Prints the images of this machine, the newest first.
///
/// # Errors
/// Nobody reads what is written.
pub fn show_images(images: &Value, json: bool) -> Result<(), ClientError> {
    let words = "there is no image here: `sudo belljar image build images/base` builds one";
    if nothing(images, words, json)? {
        return Ok(());
    }
    table(images, &IMAGES, json)
}

/// That new sessions get it is worth a word.
fn state(row: &Value) -> String {
    if row["newest"] == true {
        return "newest".to_owned();
    }
    text(&row["state"])
}

async fn listed(client: &Client) -> Result<Vec<Value>, ClientError> {
    let answer: Value = client.get("/images").await?;
    Ok(answer["images"].as_array().cloned().unwrap_or_default())
}

/// The images that must not be removed, as the control plane knows them.
///
/// # Errors
/// It does not answer, the one who asks is no admin, or it does not tell.
pub async fn used_images(client: &Client) -> Result<Vec<String>, ClientError> {
    #[derive(serde::Deserialize)]
    struct Images {
        used: Vec<String>,
    }
    let images: Images = client.get("/images").await?;
    Ok(images.used)
}

/// Who needs an image, each in words, as the control plane knows them; nobody does where there are none.
///
/// # Errors
/// As [`used_images`].
pub async fn image_uses(client: &Client, digest: &str) -> Result<Vec<String>, ClientError> {
    let answer: Value = client.get(&format!("/images/{}/uses", encoded(digest))).await?;
    let uses = answer["uses"].as_array().into_iter().flatten();
    Ok(uses.map(in_words).collect())
}

fn in_words(found: &Value) -> String {
    let words = match found["by"].as_str().unwrap_or_default() {
        "new" => "the next sandboxes are made of it (sandbox.image)".to_owned(),
        "session" => format!("the files of session {}", session(found)),
        "snapshot" => format!("snapshot {} of session {}", text(&found["snapshot"]), session(found)),
        "sandbox" => format!("sandbox {}", last_digits(&found["sandbox"])),
        _ => "something that is under way, or files of which an earlier release did not write down what they lie on"
            .to_owned(),
    };
    harmless(&words).into_owned()
}

async fn refresh(client: &Client, image: Option<String>, detach: bool, json: bool) -> Result<Outcome, ClientError> {
    let image = match image {
        Some(image) => image,
        None => match listed(client).await?.first() {
            Some(image) => text(&image["name"]),
            None => {
                return Err(ClientError::Refused {
                    code: "not_found".into(),
                    message: "nothing is built anew: the recipe of the image that sandboxes are made of has no [[repositories]]"
                        .into(),
                });
            }
        },
    };
    let wanted: Value = client
        .post(&format!("/images/{}/refresh", encoded(&image)), &json!({}))
        .await?;
    if detach {
        say(json, &wanted, &text(&wanted["id"]))?;
        return Ok(Outcome::Done);
    }
    loop {
        let images = listed(client).await?;
        let mut all = images
            .iter()
            .filter_map(|image| image["generations"].as_array())
            .flatten();
        let Some(found) = all.find(|generation| generation["id"] == wanted["id"]) else {
            return Err(ClientError::Refused {
                code: "not_found".into(),
                message: format!(
                    "the refresh {} is not known any more, so nobody can say how it ended: `belljar image generations` shows what was built",
                    text(&wanted["id"])
                ),
            });
        };
        match Some(found).filter(|generation| !generation["ended"].is_null()) {
            None => tokio::time::sleep(LOOK_AGAIN).await,
            Some(failed) if failed["state"] == "failed" => {
                let words = format!(
                    "the refresh failed, and the image stays as it was:\n{}",
                    text(&failed["error"])
                );
                say(json, failed, &words)?;
                return Ok(Outcome::Failed);
            }
            Some(ready) => {
                say(json, ready, &text(&ready["digest"]))?;
                return Ok(Outcome::Done);
            }
        }
    }
}
