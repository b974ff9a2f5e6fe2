//! The agent loop: ask the model, use the tools that it wants, tell it what they said, again until it stops.
//!
//! The loop knows nothing of where it runs. What it asks goes through a [`Gateway`], what it does through [`Hands`], and
//! both are given to it: in a sandbox the gateway is the link and the hands are processes; in the control plane the
//! gateway is a function call and the hands are at the other end of the link. There is no runtime, no clock and no IO in
//! this crate, and no history either: the control plane keeps it, and a loop that is lost begins again at the turn where
//! it stood.

mod calls;
mod cut;
mod definitions;
mod run;
mod seams;

pub use cut::{cut_middle, cut_result};
pub use definitions::{definitions, system_prompt};
pub use run::{LoopEnd, run_loop};
pub use seams::{Gateway, GatewayError, Hands, TOGETHER};
