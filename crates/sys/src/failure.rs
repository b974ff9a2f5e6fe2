//! Whose fault a failure is.

use std::error::Error;
use std::io::{self, ErrorKind};

/// Whether a failure may be the machine's, which may do better later: the kernel refused, and not because of what stands there, or
/// does not. Whoever would remove what cannot be read asks this first.
#[must_use]
pub fn may_pass(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| cause.downcast_ref().is_some_and(is_of_the_machine))
}

fn is_of_the_machine(error: &io::Error) -> bool {
    let is_of_what_stands_there = matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::AddrInUse
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::DirectoryNotEmpty
    );
    error.raw_os_error().is_some() && !is_of_what_stands_there
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[derive(Debug)]
    struct Attempt(io::Error);

    impl std::fmt::Display for Attempt {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("tried in vain")
        }
    }

    impl Error for Attempt {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn only_the_kernels_refusals_may_pass_and_not_what_it_finds() {
        for passes in [Errno::MFILE, Errno::NOSPC, Errno::NOMEM, Errno::IO, Errno::ACCESS] {
            assert!(may_pass(&Attempt(passes.into())), "{passes}");
        }
        for stays in [
            Errno::NOENT,
            Errno::EXIST,
            Errno::ISDIR,
            Errno::NOTDIR,
            Errno::ADDRINUSE,
        ] {
            assert!(!may_pass(&Attempt(stays.into())), "{stays}");
        }
        assert!(!may_pass(&Attempt(io::Error::other("garbage"))));
        assert!(!may_pass(&Attempt(ErrorKind::InvalidData.into())));
    }
}
