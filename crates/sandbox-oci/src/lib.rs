//! Sandboxes as containers of an OCI runtime, made by root on this machine.
