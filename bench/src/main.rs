//! Measures Belljar beside its peers, in one run, on one machine: `make bench`, or `make bench ONLY=S1,G2`.

fn main() {}
