//! Calls of services, against real HTTP servers on this machine that check what they are sent.

mod answers;
mod calls;
mod credentials;
mod hostile;
mod limits;
mod places;
mod rig;
mod tls;
mod tokens;
