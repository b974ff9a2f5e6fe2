//! The runtime's end of the link.
