//! Connections that are read: real TLS on both sides, real HTTP clients and servers.

mod clients;
mod facts;
mod git;
mod house;
mod injections;
mod passing;
mod raw;
mod s3;
mod scrubbing;
mod signatures;
mod tokens;
mod upstream;
mod websocket;
