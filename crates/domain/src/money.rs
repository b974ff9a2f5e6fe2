//! Money is counted in whole nano-dollars, so that no sum depends on the order in which it was added.

use std::fmt;
use std::iter::Sum;

use serde::{Deserialize, Serialize};

use crate::Usage;

/// An amount in nano-dollars (10⁻⁹ US dollars).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = i64))]
#[serde(transparent)]
pub struct Money(pub i64);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// This many whole dollars.
    #[must_use]
    pub const fn dollars(dollars: i64) -> Self {
        Self(dollars.saturating_mul(1_000_000_000))
    }

    /// The sum, held at the largest amount there is.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; below zero where `other` is larger.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::plus)
    }
}

impl fmt::Display for Money {
    /// `$1.50`, with as many places (two at least) as the amount needs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let amount = self.0.unsigned_abs();
        let places = format!("{:09}", amount % 1_000_000_000);
        let places = places.trim_end_matches('0');
        write!(formatter, "{sign}${}.{places:0<2}", amount / 1_000_000_000)
    }
}

/// What a model costs, each in nano-dollars for one token (a price of $3 per million tokens is 3,000).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input that no cache knew.
    pub input: i64,
    /// Output, thinking included.
    pub output: i64,
    /// Input that was read from a cache.
    pub cache_read: i64,
    /// Input that was written to a cache for five minutes.
    pub cache_write: i64,
    /// Input that was written to a cache for an hour.
    pub cache_write_hour: i64,
}

impl Price {
    /// What this usage costs.
    #[must_use]
    pub fn of(&self, usage: &Usage) -> Money {
        let part = |tokens: u64, price: i64| Money(i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(price));
        [
            part(usage.input, self.input),
            part(usage.output, self.output),
            part(usage.cache_read, self.cache_read),
            part(usage.cache_write, self.cache_write),
            part(usage.cache_write_hour, self.cache_write_hour),
        ]
        .into_iter()
        .sum()
    }

    /// The most that one token of input can cost, however it is cached.
    #[must_use]
    pub fn dearest_input(&self) -> i64 {
        self.input
            .max(self.cache_read)
            .max(self.cache_write)
            .max(self.cache_write_hour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_print_as_dollars() {
        let printed =
            [0, 5_000_000, 1_500_000_000, 54_390_000, 1, -2_000_000_000].map(|amount| Money(amount).to_string());
        assert_eq!(
            printed,
            ["$0.00", "$0.005", "$1.50", "$0.05439", "$0.000000001", "-$2.00"]
        );
    }

    /// A cache write counted twice: the same call was invoiced at $0.05439 and counted at $0.0913.
    #[test]
    fn threat_132_a_cache_write_is_counted_once() {
        let price = Price {
            input: 3_000,
            output: 15_000,
            cache_read: 300,
            cache_write: 3_750,
            cache_write_hour: 6_000,
        };
        let usage = Usage {
            input: 3,
            cache_write: 12_304,
            output: 550,
            ..Usage::default()
        };
        assert_eq!(price.of(&usage).to_string(), "$0.054399");
    }
}
