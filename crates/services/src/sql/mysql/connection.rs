//! Commands and their answers.

use serde_json::Value;

use super::Broken;
use super::packet::{Fields, Packets};
use super::values::{Column, bound, cells};
use crate::sql::rows::Cell;

const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
const RESET: u8 = 0x1f;
/// The first byte of the packet after columns and rows, and its greatest length.
/// What MySQL's tables have at most (its manual, "Limits on Table Column Count").
const MOST_COLUMNS: u64 = 4_096;
/// Of what is asked for ourselves: grants, and what the catalogue says of a few names.
const MOST_ROWS: usize = 100_000;

const END: u8 = 0xfe;
const END_BYTES: usize = 9;

/// A connection of a user.
pub(super) struct Connection {
    packets: Packets,
    pub(super) number: u32,
    pub(super) is_mariadb: bool,
    /// Whether every answer was read to its end.
    quiet: bool,
}

/// A statement that the server has read.
pub(super) struct Prepared {
    id: u32,
    pub(super) columns: u16,
    pub(super) parameters: u16,
}

impl Connection {
    pub(super) fn new(packets: Packets, number: u32, is_mariadb: bool) -> Self {
        Self {
            packets,
            number,
            is_mariadb,
            quiet: true,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Makes it as new: no transaction, no variables, no statements.
    pub(super) async fn reset(&mut self) -> Result<(), Broken> {
        self.packets.command(&[RESET]).await?;
        self.packets.read().await.map(|_| ())
    }

    /// Runs a statement of ours that gives no rows.
    pub(super) async fn command(&mut self, text: &str) -> Result<(), Broken> {
        let mut body = vec![QUERY];
        body.extend_from_slice(text.as_bytes());
        self.packets.command(&body).await?;
        match self.packets.read().await?[0] {
            0 => Ok(()),
            _ => {
                self.quiet = false;
                Err(Broken::Nonsense("rows for a statement that gives none"))
            }
        }
    }

    /// Has the server read a statement: exactly one.
    pub(super) async fn prepare(&mut self, text: &str) -> Result<Prepared, Broken> {
        let mut body = vec![PREPARE];
        body.extend_from_slice(text.as_bytes());
        self.packets.command(&body).await?;
        let answer = self.packets.read().await?;
        let mut fields = Fields(&answer[1..]);
        let (id, columns, parameters) = (fields.u32()?, fields.u16()?, fields.u16()?);
        self.quiet = false;
        for count in [parameters, columns] {
            if count > 0 {
                for _ in 0..count {
                    self.packets.read().await?;
                }
                self.end().await?;
            }
        }
        self.quiet = true;
        Ok(Prepared {
            id,
            columns,
            parameters,
        })
    }

    /// Runs it. What it gives are the columns; the rows come by [`Self::row`].
    pub(super) async fn execute(&mut self, statement: &Prepared, parameters: &[Value]) -> Result<Vec<Column>, Broken> {
        let mut body = vec![EXECUTE];
        body.extend_from_slice(&statement.id.to_le_bytes());
        // No cursor; once.
        body.extend_from_slice(&[0, 1, 0, 0, 0]);
        bound(parameters, &mut body);
        self.packets.command(&body).await?;
        let answer = self.packets.read().await?;
        let count = match answer[0] {
            0 => return Ok(Vec::new()),
            0xfb => {
                self.quiet = false;
                return Err(Broken::Nonsense("the server asks for a file of this machine"));
            }
            _ => Fields(&answer).number()?,
        };
        self.quiet = false;
        if count > MOST_COLUMNS {
            return Err(Broken::Nonsense("more columns than a table can have"));
        }
        let mut columns = Vec::new();
        for _ in 0..count {
            columns.push(Column::read(&self.packets.read().await?)?);
        }
        self.end().await?;
        Ok(columns)
    }

    /// The next row; none at the end.
    pub(super) async fn row(&mut self, columns: &[Column]) -> Result<Option<Vec<Cell>>, Broken> {
        let body = match self.packets.read().await {
            Ok(body) => body,
            Err(broken) => {
                // An error ends an answer.
                self.quiet = matches!(broken, Broken::Said { .. });
                return Err(broken);
            }
        };
        if body[0] == END && body.len() < END_BYTES {
            self.quiet = true;
            return Ok(None);
        }
        cells(&body, columns).map(Some)
    }

    /// All rows of a statement of ours, as texts.
    pub(super) async fn all(&mut self, text: &str, parameters: &[Value]) -> Result<Vec<Vec<Option<String>>>, Broken> {
        let statement = self.prepare(text).await?;
        let columns = self.execute(&statement, parameters).await?;
        let mut rows = Vec::new();
        while let Some(cells) = self.row(&columns).await? {
            if rows.len() == MOST_ROWS {
                return Err(Broken::Nonsense("a catalogue without an end"));
            }
            rows.push(cells.iter().map(Cell::plain).collect());
        }
        Ok(rows)
    }

    async fn end(&mut self) -> Result<(), Broken> {
        match self.packets.read().await?[0] {
            END => Ok(()),
            _ => Err(Broken::Nonsense("columns without an end")),
        }
    }
}
