//! Tables: as wide as they must be, and on a terminal no wider than that, where they can.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;
use serde_json::Value;

use super::output;
use crate::ClientError;
use crate::arguments::SHORT_ID;
use crate::terminal::one_line;

/// The longest cell.
const LONGEST: usize = 80;
/// What is between two columns.
const BETWEEN: &str = "  ";

/// A column of a table: its head, and what a row has in it.
pub(super) struct Column {
    head: &'static str,
    right: bool,
    /// It is left out where no row has anything in it.
    optional: bool,
    shrinks: Option<Step>,
    goes: Option<Step>,
    cell: fn(&Value) -> String,
}

/// What becomes of a column where a terminal is too narrow for all of them.
#[derive(Clone, Copy)]
struct Step {
    /// Those with a lower one come first.
    turn: u8,
    /// So many characters stay.
    least: usize,
}

impl Column {
    pub(super) const fn left(head: &'static str, cell: fn(&Value) -> String) -> Self {
        Self {
            head,
            right: false,
            optional: false,
            shrinks: None,
            goes: None,
            cell,
        }
    }

    /// One that is left out where no row has anything in it.
    pub(super) const fn optional(head: &'static str, cell: fn(&Value) -> String) -> Self {
        Self {
            optional: true,
            ..Self::left(head, cell)
        }
    }

    pub(super) const fn right(head: &'static str, cell: fn(&Value) -> String) -> Self {
        Self {
            right: true,
            ..Self::left(head, cell)
        }
    }

    /// Where a terminal is too narrow, its cells are cut in this turn, down to so many characters.
    pub(super) const fn shrinks(self, turn: u8, least: usize) -> Self {
        Self {
            shrinks: Some(Step { turn, least }),
            ..self
        }
    }

    /// Where a terminal is too narrow, it is left out in this turn.
    pub(super) const fn goes(self, turn: u8) -> Self {
        Self {
            goes: Some(Step { turn, least: 0 }),
            ..self
        }
    }

    /// What a row has in it.
    pub(super) fn cell_of(&self, row: &Value) -> String {
        (self.cell)(row)
    }
}

/// The last digits of an id, which are its own: as much of it as people need.
pub(super) fn last_digits(id: &Value) -> String {
    let id = id.as_str().unwrap_or_default();
    id.get(id.len().saturating_sub(SHORT_ID)..).unwrap_or(id).to_owned()
}

/// Prints rows: one JSON value a line, or columns.
pub(super) fn table(rows: &Value, columns: &[Column], json: bool) -> Result<(), ClientError> {
    part_of_table(rows, columns, json, true)
}

/// Prints some of a table's rows, under their heads where they are the first.
pub(super) fn part_of_table(rows: &Value, columns: &[Column], json: bool, first: bool) -> Result<(), ClientError> {
    let empty = Vec::new();
    let rows = rows.as_array().unwrap_or(&empty);
    let mut out = std::io::stdout().lock();
    if json {
        return rows.iter().try_for_each(|row| writeln!(out, "{row}")).map_err(output);
    }
    let lines = drawn(rows, columns, width_of(&out));
    let lines = lines.iter().skip(usize::from(!first));
    lines
        .into_iter()
        .try_for_each(|line| writeln!(out, "{line}"))
        .map_err(output)
}

/// How many characters a line may have; none where nobody looks at it on a terminal.
fn width_of(out: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let size = out.is_terminal().then(|| tcgetwinsize(out))?.ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// The lines of a table, its heads first.
pub(super) fn drawn(rows: &[Value], columns: &[Column], most: Option<usize>) -> Vec<String> {
    let cells = |column: &Column| -> Vec<String> {
        let cells = rows.iter().map(|row| one_line(&column.cell_of(row), LONGEST));
        std::iter::once(column.head.to_owned()).chain(cells).collect()
    };
    let has_any = |cells: &Vec<String>| cells.iter().skip(1).any(|cell| !cell.is_empty());
    let (columns, cells): (Vec<&Column>, Vec<Vec<String>>) = columns
        .iter()
        .map(|column| (column, cells(column)))
        .filter(|(column, cells)| !column.optional || has_any(cells))
        .unzip();
    let widest = |cells: &Vec<String>| cells.iter().map(|cell| cell.chars().count()).max();
    let mut widths: Vec<Option<usize>> = cells.iter().map(widest).collect();
    if let Some(most) = most {
        narrow(&columns, &mut widths, most);
    }
    let line = |row: usize| {
        let drawn = columns
            .iter()
            .zip(&cells)
            .zip(&widths)
            .filter_map(|((column, cells), width)| {
                let width = (*width)?;
                let cell = one_line(&cells[row], width);
                Some(if column.right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                })
            });
        drawn.collect::<Vec<_>>().join(BETWEEN).trim_end().to_owned()
    };
    (0..=rows.len()).map(line).collect()
}

/// Lets columns shrink and go, in their turns, until the others have room. None: it is gone.
fn narrow(columns: &[&Column], widths: &mut [Option<usize>], most: usize) {
    let steps = columns.iter().enumerate().flat_map(|(index, column)| {
        let steps = [column.shrinks, column.goes].into_iter().flatten();
        steps.map(move |step| (step, index))
    });
    let mut steps: Vec<_> = steps.collect();
    steps.sort_by_key(|(step, _)| step.turn);
    for (step, index) in steps {
        let shown = widths.iter().flatten().count();
        let total = widths.iter().flatten().sum::<usize>() + shown.saturating_sub(1) * BETWEEN.len();
        if total <= most {
            return;
        }
        if let Some(width) = widths[index] {
            let left = width.saturating_sub(total - most).max(step.least).min(width);
            widths[index] = (step.least > 0).then_some(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::left("NAME", |row| row["name"].as_str().unwrap_or_default().to_owned()),
        Column::left("WORDS", |row| row["words"].as_str().unwrap_or_default().to_owned())
            .shrinks(1, 8)
            .goes(3),
        Column::right("COUNT", |row| row["count"].to_string()).goes(2),
        Column::optional("WHY", |row| row["why"].as_str().unwrap_or_default().to_owned()),
    ];

    fn drawn_at(most: Option<usize>) -> Vec<String> {
        let rows = [
            json!({ "name": "one", "words": "some words too many", "count": 7 }),
            json!({ "name": "two", "words": "few", "count": 12 }),
        ];
        drawn(&rows, &COLUMNS, most)
    }

    #[test]
    fn a_table_is_whole_where_there_is_room_and_narrow_in_turns_where_there_is_none() {
        let whole = [
            "NAME  WORDS                COUNT",
            "one   some words too many      7",
            "two   few                     12",
        ];
        assert_eq!(drawn_at(None), whole);
        assert_eq!(drawn_at(Some(32)), whole);
        let cut = [
            "NAME  WORDS               COUNT",
            "one   some words too ma…      7",
            "two   few                    12",
        ];
        assert_eq!(drawn_at(Some(31)), cut);
        assert_eq!(drawn_at(Some(20)), ["NAME  WORDS", "one   some wo…", "two   few"]);
        assert_eq!(drawn_at(Some(1)), ["NAME", "one", "two"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_terminal_says_how_wide_it_is_and_a_file_is_none() {
        use std::fs::OpenOptions;

        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/ptmx")
            .expect("a terminal");
        assert_eq!(width_of(&terminal), None, "nobody has said it");
        let size = rustix::termios::Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&terminal, size).expect("a size");
        assert_eq!(width_of(&terminal), Some(80));
        assert_eq!(width_of(&tempfile::tempfile().expect("a file")), None);
    }
}
