//! Services of kind `mcp`.

use std::path::PathBuf;

use serde_json::Value;

/// Where an MCP server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    /// At a URL: streamable HTTP.
    Url {
        /// Http or https, without user, query and fragment.
        url: String,
        /// Headers of every request, in lower case.
        headers: Vec<(String, String)>,
    },
    /// A program on this machine, spoken to over its standard input and output.
    Command(Command),
}

/// A program, and what it may have of the machine besides the system's own programs and libraries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// The program and its arguments. What begins with `./` stands in the service's folder.
    pub words: Vec<String>,
    /// Its environment, besides what Belljar sets itself.
    pub environment: Vec<(String, String)>,
    /// Files and folders that it may read and execute.
    pub read: Vec<PathBuf>,
    /// TCP ports that it may connect to. Without any it has no network.
    pub ports: Vec<u16>,
}

/// A tool of an MCP server, as it was approved.
#[derive(Clone, PartialEq, Debug)]
pub struct Tool {
    /// The server's name of it.
    pub name: String,
    /// SHA-256 of what was approved, as `sha256:` and hexadecimal.
    pub pin: String,
    /// What was approved: name, description and schemas, word for word.
    pub approved: Value,
}
