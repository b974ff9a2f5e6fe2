//! How a command ended, as the shell sees it.

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It did what was asked.
    Done,
    /// It did not.
    Failed,
    /// It was asked wrongly.
    Usage,
    /// Whoever asked may not.
    Denied,
    /// A cap of money was reached.
    OverBudget,
}

impl Outcome {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Denied => 3,
            Self::OverBudget => 4,
        }
    }

    /// What a run's or an error's code says.
    pub(crate) fn of_code(code: &str) -> Self {
        match code {
            "unauthorized" | "denied" | "model_denied" => Self::Denied,
            code if code.starts_with("budget") => Self::OverBudget,
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_denied_and_what_has_no_money_left_is_no_plain_failure() {
        for (code, outcome) in [
            ("denied", Outcome::Denied),
            ("model_denied", Outcome::Denied),
            ("unauthorized", Outcome::Denied),
            ("budget_busy", Outcome::OverBudget),
            ("budget_exhausted", Outcome::OverBudget),
            ("model_failed", Outcome::Failed),
        ] {
            assert_eq!(Outcome::of_code(code), outcome, "{code}");
        }
    }
}
