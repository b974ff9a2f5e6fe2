//! Errors do not repeat their causes, so whoever shows one, to a person, a model or the log, tells the causes too.

use std::error::Error;

/// The error and everything that caused it, in one line.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failure(&'static str, Option<Box<Failure>>);

    impl fmt::Display for Failure {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }
    }

    impl Error for Failure {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn every_cause_is_told() {
        let disk = Failure("the disk is full", None);
        let write = Failure("cannot write /a", Some(Box::new(disk)));
        let save = Failure("cannot save", Some(Box::new(write)));
        assert_eq!(with_causes(&save), "cannot save: cannot write /a: the disk is full");
    }
}
