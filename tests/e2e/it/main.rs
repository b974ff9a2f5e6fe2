//! The whole of Belljar: real processes, real sandboxes, a scripted model. Everything goes through the command line, as a
//! person would have it.

mod crash;
mod installation;
mod jail;
mod jobs;
mod processes;
mod program;
mod transcript;
