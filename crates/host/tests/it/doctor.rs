//! The doctor on this machine.
