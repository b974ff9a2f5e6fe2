//! Values of the binary protocol.

use serde_json::Value;

use super::Broken;
use super::packet::Fields;
use crate::sql::rows::Cell;

const UNSIGNED: u16 = 0x20;
/// The character set of bytes.
const BINARY: u16 = 63;

/// A column of an answer.
pub(super) struct Column {
    pub(super) name: String,
    charset: u16,
    kind: u8,
    flags: u16,
}

impl Column {
    pub(super) fn read(body: &[u8]) -> Result<Self, Broken> {
        let mut fields = Fields(body);
        for _ in 0..4 {
            fields.bytes()?;
        }
        let name = fields.text()?;
        fields.bytes()?;
        fields.number()?;
        let charset = fields.u16()?;
        fields.u32()?;
        Ok(Self {
            name,
            charset,
            kind: fields.u8()?,
            flags: fields.u16()?,
        })
    }

    /// The type, in words of SQL.
    pub(super) fn kind(&self) -> String {
        let is_bytes = self.charset == BINARY;
        let word = match self.kind {
            0x00 | 0xf6 => "decimal",
            0x01 => "tinyint",
            0x02 => "smallint",
            0x03 => "int",
            0x04 => "float",
            0x05 => "double",
            0x06 => "null",
            0x07 => "timestamp",
            0x08 => "bigint",
            0x09 => "mediumint",
            0x0a => "date",
            0x0b => "time",
            0x0c => "datetime",
            0x0d => "year",
            0x10 => "bit",
            0xf5 => "json",
            0xff => "geometry",
            0x0f | 0xfd | 0xfe if is_bytes => "varbinary",
            0x0f | 0xfd | 0xfe => "varchar",
            _ if is_bytes => "blob",
            _ => "text",
        };
        word.to_owned()
    }
}

/// Values of a statement's parameters, as they follow its number.
pub(super) fn bound(parameters: &[Value], out: &mut Vec<u8>) {
    if parameters.is_empty() {
        return;
    }
    let mut nulls = vec![0_u8; parameters.len().div_ceil(8)];
    let (mut kinds, mut values) = (Vec::new(), Vec::new());
    for (index, value) in parameters.iter().enumerate() {
        let mut text = |kind: u8, text: &str| {
            kinds.extend_from_slice(&[kind, 0]);
            length(text.len(), &mut values);
            values.extend_from_slice(text.as_bytes());
        };
        match value {
            Value::Null => {
                nulls[index / 8] |= 1 << (index % 8);
                kinds.extend_from_slice(&[0x06, 0]);
            }
            Value::Bool(truth) => {
                kinds.extend_from_slice(&[0x01, 0]);
                values.push(u8::from(*truth));
            }
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => {
                    kinds.extend_from_slice(&[0x08, 0]);
                    values.extend_from_slice(&whole.to_le_bytes());
                }
                (None, Some(fraction)) => {
                    kinds.extend_from_slice(&[0x05, 0]);
                    values.extend_from_slice(&fraction.to_le_bytes());
                }
                (None, None) => text(0xfd, &number.to_string()),
            },
            Value::String(string) => text(0xfd, string),
            other => text(0xfd, &other.to_string()),
        }
    }
    out.extend_from_slice(&nulls);
    out.push(1);
    out.extend_from_slice(&kinds);
    out.extend_from_slice(&values);
}

fn length(length: usize, out: &mut Vec<u8>) {
    match length {
        0..0xfb => out.push(u8::try_from(length).unwrap_or_default()),
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&(length as u64).to_le_bytes());
        }
    }
}

/// The cells of a row.
pub(super) fn cells(body: &[u8], columns: &[Column]) -> Result<Vec<Cell>, Broken> {
    let mut fields = Fields(body);
    fields.u8()?;
    let nulls = fields.take((columns.len() + 2).div_ceil(8))?;
    let mut cells = Vec::with_capacity(columns.len());
    for (index, column) in columns.iter().enumerate() {
        let bit = index + 2;
        let is_null = nulls[bit / 8] & 1 << (bit % 8) != 0;
        cells.push(if is_null {
            Cell::null()
        } else {
            cell(&mut fields, column)?
        });
    }
    Ok(cells)
}

fn cell(fields: &mut Fields<'_>, column: &Column) -> Result<Cell, Broken> {
    let unsigned = column.flags & UNSIGNED != 0;
    let whole = |signed: i64, plain: u64| {
        Cell::number(&if unsigned {
            plain.to_string()
        } else {
            signed.to_string()
        })
    };
    Ok(match column.kind {
        0x01 => {
            let value = fields.u8()?;
            whole(value.cast_signed().into(), value.into())
        }
        0x02 | 0x0d => {
            let value = fields.u16()?;
            whole(value.cast_signed().into(), value.into())
        }
        0x03 | 0x09 => {
            let value = fields.u32()?;
            whole(value.cast_signed().into(), value.into())
        }
        0x08 => {
            let value = fields.u64()?;
            whole(value.cast_signed(), value)
        }
        0x04 => Cell::float(&f32::from_bits(fields.u32()?).to_string()),
        0x05 => Cell::float(&f64::from_bits(fields.u64()?).to_string()),
        0x06 => Cell::null(),
        0x07 | 0x0a | 0x0c => Cell::text(&moment(fields, column.kind == 0x0a)?),
        0x0b => Cell::text(&span(fields)?),
        0x00 | 0xf6 => Cell::number(&fields.text()?),
        0xf5 => Cell::json(&fields.text()?),
        0x10 => {
            let bits = fields
                .bytes()?
                .iter()
                .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            Cell::number(&bits.to_string())
        }
        _ if column.charset == BINARY => Cell::bytes(fields.bytes()?),
        _ => Cell::text(&fields.text()?),
    })
}

/// `2026-01-31T12:00:00.5`, or the date alone.
fn moment(fields: &mut Fields<'_>, is_date: bool) -> Result<String, Broken> {
    let length = fields.u8()?;
    let (mut year, mut month, mut day) = (0, 0, 0);
    if length >= 4 {
        (year, month, day) = (fields.u16()?, fields.u8()?, fields.u8()?);
    }
    let date = format!("{year:04}-{month:02}-{day:02}");
    let time = clock(fields, length.saturating_sub(4))?;
    Ok(if is_date { date } else { format!("{date}T{time}") })
}

/// Hours, minutes, seconds and their parts, as far as there are bytes.
fn clock(fields: &mut Fields<'_>, length: u8) -> Result<String, Broken> {
    let (mut hour, mut minute, mut second, mut parts) = (0, 0, 0, 0);
    if length >= 3 {
        (hour, minute, second) = (fields.u8()?, fields.u8()?, fields.u8()?);
    }
    if length >= 7 {
        parts = fields.u32()?;
    }
    let fraction = if parts > 0 {
        format!(".{parts:06}")
    } else {
        String::new()
    };
    Ok(format!("{hour:02}:{minute:02}:{second:02}{fraction}"))
}

/// A time of day or a span, which may be more than a day: `-26:00:00`.
fn span(fields: &mut Fields<'_>) -> Result<String, Broken> {
    let length = fields.u8()?;
    if length < 8 {
        return Ok("00:00:00".to_owned());
    }
    let (negative, days) = (fields.u8()? == 1, fields.u32()?);
    let clock = clock(fields, length - 5)?;
    let hours = u64::from(days) * 24 + clock[..2].parse::<u64>().unwrap_or_default();
    Ok(format!("{}{hours:02}{}", if negative { "-" } else { "" }, &clock[2..]))
}
