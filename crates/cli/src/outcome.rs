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
            "unauthorized" | "denied" => Self::Denied,
            code if code.starts_with("budget") => Self::OverBudget,
            _ => Self::Failed,
        }
    }
}
