//! What a supervisor is told to start.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Confinement;

/// The longest order, in bytes.
const LONGEST: usize = 1 << 20;
/// The longest argument or variable that the kernel passes on (`MAX_ARG_STRLEN`), in bytes.
const LONGEST_WORD: usize = 128 * 1024 - 1;

/// What to start, and how. Written it is the length of what follows (four bytes, the lowest first), and JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Its whole environment.
    pub(crate) environment: BTreeMap<String, String>,
    /// Where it is started.
    pub(crate) folder: PathBuf,
    /// It reads what follows the order; otherwise its input is empty.
    pub(crate) pass_input: bool,
    pub(crate) confinement: Option<Confinement>,
}

impl Order {
    /// The order as it is written.
    pub(crate) fn written(&self) -> io::Result<Vec<u8>> {
        let too_long = |words| Err(io::Error::new(io::ErrorKind::ArgumentListTooLong, words));
        let variables = self
            .environment
            .iter()
            .map(|(name, value)| name.len() + 1 + value.len());
        if self
            .arguments
            .iter()
            .map(String::len)
            .chain(variables)
            .any(|length| length > LONGEST_WORD)
        {
            return too_long(format!(
                "an argument or a variable of its environment is longer than {LONGEST_WORD} bytes: put it into a file"
            ));
        }
        let mut written = vec![0; 4];
        serde_json::to_writer(&mut written, self)?;
        let length = written.len() - 4;
        let Some(length) = u32::try_from(length).ok().filter(|_| length <= LONGEST) else {
            return too_long(format!(
                "its arguments and environment are longer than {LONGEST} bytes: put data into files"
            ));
        };
        written[..4].copy_from_slice(&length.to_le_bytes());
        Ok(written)
    }

    /// Waits for an order and takes no byte of what follows it. None comes where the other end is closed.
    pub(super) fn read(input: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let mut length = [0; 4];
        match fill(input, &mut length)? {
            0 => return Ok(None),
            4 => {}
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(io::Error::other(format!("it is {length} bytes long")));
        }
        let mut written = vec![0; length];
        if fill(input, &mut written)? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(serde_json::from_slice(&written)?))
    }
}

/// Reads until `into` is full or nothing more comes. The standard library's input would take more than that.
fn fill(input: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match rustix::io::read(input, &mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(filled)
}
