//! The whole of Belljar: real processes, real sandboxes, a scripted model. Everything goes through the command line, as a
//! person would have it.

mod access;
mod background;
mod buckets;
mod canaries;
mod carried;
mod clients;
mod crash;
mod demo;
mod docker;
mod forks;
mod generations;
mod harnesses;
mod hostile;
mod installation;
mod jail;
mod jobs;
mod leftovers;
mod live;
mod lots;
mod processes;
mod program;
mod reconciled;
mod services;
mod ssh;
mod suspended;
mod transcript;
mod transitions;
mod unused_images;
mod upgrade;
mod vanished;
mod waking;
mod wanders;
mod warm;
mod workspaces;
mod world;
