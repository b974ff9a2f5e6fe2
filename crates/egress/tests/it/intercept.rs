//! Connections that are read: real TLS on both sides, real HTTP clients and servers.

mod clients;
mod facts;
mod git;
mod house;
mod injections;
mod passing;
mod raw;
mod scrubbing;
mod signatures;
mod tokens;
mod upstream;
mod websocket;
