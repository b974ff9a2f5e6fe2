//! What operators do about the image that sandboxes are made of.

use std::time::Duration;

use serde_json::{Value, json};

use crate::arguments::ImageCommand;
use crate::terminal::harmless;
use crate::{Client, ClientError, Outcome};

use super::lists::{away, digits, mebibytes, nothing, span, text, time};
use super::table::{Column, table};
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
    let columns = [
        Column::left("IMAGE", |row| text(&row["image"])),
        Column::left("STATE", state),
        Column::left("BEGUN (UTC)", |row| time(&row["begun"])),
        Column::right("TOOK", took),
        Column::right("MiB", |row| mebibytes(&row["bytes"])),
        Column::right("SANDBOXES", |row| text(&row["sandboxes"])),
        Column::left("DIGEST", |row| digits(&row["digest"])),
        Column::optional("WHY", |row| {
            text(&row["error"]).lines().next().unwrap_or_default().to_owned()
        }),
    ];
    let all = Value::from(rows.clone());
    let words = if images.is_empty() {
        "nothing is built anew: the recipe of the image that sandboxes are made of has no [[repositories]]"
    } else {
        "nothing was built yet: `belljar image refresh` builds it now"
    };
    if nothing(&all, words, json)? {
        return Ok(());
    }
    table(&all, &columns, json)?;
    // The newest failure in full, where nothing that is newer went well: it says what to mend.
    let newest = rows.iter().find(|row| !row["ended"].is_null());
    if let Some(failed) = newest.filter(|row| row["state"] == "failed" && !json) {
        println!(
            "\nthe last one failed, and the one before stays:\n{}",
            harmless(&text(&failed["error"]))
        );
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

/// Prints the images of this machine, the newest first.
///
/// # Errors
/// Nobody reads what is written.
pub fn show_images(images: &Value, json: bool) -> Result<(), ClientError> {
    let columns = [
        Column::left("IMAGE", |row| text(&row["name"])),
        Column::left("DIGEST", |row| digits(&row["digest"])),
        Column::right("AGE", |row| away(&row["built"])),
        Column::right("MiB", |row| mebibytes(&row["bytes"])),
        Column::left("MADE OF", |row| match row["base"].as_str() {
            Some(_) => format!("{} and what was built on it", digits(&row["base"])),
            None if row["recipe"] == "imported" => "an archive".to_owned(),
            None => "a recipe".to_owned(),
        }),
    ];
    let words = "there is no image here: `sudo belljar image build images/base` builds one";
    if nothing(images, words, json)? {
        return Ok(());
    }
    table(images, &columns, json)
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
