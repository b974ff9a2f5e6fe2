//! Connections to the outside, opened so that what was checked is what is dialled.
//!
//! A name is resolved once. Every address of the answer is classed by its bits ([`Class`]), and one that is not public, and
//! not named by whoever configured this ([`Allow`]), refuses the whole answer: a name with two faces is no friend. The
//! connection goes to an address of that same answer, so a second answer never counts. Through an upstream [`Proxy`] the
//! name travels unresolved; the proxy is trusted because the configuration names it.
//!
//! Nothing here knows scopes or rules: who may go where was decided before.

mod address;
mod allow;
mod dialer;
mod proxy;
mod resolve;

pub use address::Class;
pub use allow::{Allow, BadNetwork, Network};
pub use dialer::{DialError, Dialer, Settings};
pub use proxy::{Login, Proxy, ProxyError, ProxyKind};
pub use resolve::{Resolve, ResolveError, SystemResolver};
