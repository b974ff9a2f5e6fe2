//! The store as others use it: real files, real processes.

mod audit;
mod backup;
mod disk_full;
mod durability;
mod events;
mod history;
mod measure;
mod money;
mod parts;
mod prompts;
mod runs;
mod sessions;
mod store;
mod tokens;
mod turns;
mod writer;
