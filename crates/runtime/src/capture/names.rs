//! One synthetic address for each name, so that a connection can be carried with the name that it was meant for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use sandbox::capture::{SYNTHETIC_V4, SYNTHETIC_V6};

/// Names that may have an address; each was asked of the control plane, and its address is good while the sandbox lives.
const MOST: u32 = 10_000;

/// The addresses before this one are the resolver's own.
const FIRST: u32 = 16;

#[derive(Default)]
pub(super) struct Names(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_name: HashMap<Arc<str>, u32>,
    /// The name of each number, counted from 0.
    names: Vec<Arc<str>>,
}

/// The two addresses of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Addresses {
    pub(super) v4: Ipv4Addr,
    pub(super) v6: Ipv6Addr,
}

impl Names {
    /// The addresses of a name: always the same, and never another's. None: there are too many names.
    pub(super) fn addresses(&self, name: &str) -> Option<Addresses> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = table.by_name.get(name) {
            return Some(Addresses::of(*number));
        }
        let number = u32::try_from(table.names.len()).ok().filter(|number| *number < MOST)?;
        let name: Arc<str> = name.into();
        table.names.push(Arc::clone(&name));
        table.by_name.insert(name, number);
        Some(Addresses::of(number))
    }

    /// The name that has this address.
    pub(super) fn name(&self, address: IpAddr) -> Option<Arc<str>> {
        let number = match address {
            IpAddr::V4(address) => u32::from(address).checked_sub(u32::from(SYNTHETIC_V4.0))?,
            IpAddr::V6(address) => u32::try_from(u128::from(address).checked_sub(u128::from(SYNTHETIC_V6.0))?).ok()?,
        };
        let number = usize::try_from(number.checked_sub(FIRST)?).ok()?;
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.names.get(number).cloned()
    }
}

impl Addresses {
    fn of(number: u32) -> Self {
        let offset = number + FIRST;
        Self {
            v4: (u32::from(SYNTHETIC_V4.0) + offset).into(),
            v6: (u128::from(SYNTHETIC_V6.0) + u128::from(offset)).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back_to_it() {
        let names = Names::default();
        let first = names.addresses("a.test").unwrap();
        let second = names.addresses("b.test").unwrap();
        assert_ne!(first, second);
        assert_eq!(names.addresses("a.test"), Some(first));
        for (addresses, name) in [(first, "a.test"), (second, "b.test")] {
            assert_eq!(names.name(addresses.v4.into()).as_deref(), Some(name));
            assert_eq!(names.name(addresses.v6.into()).as_deref(), Some(name));
        }
    }

    #[test]
    fn an_address_that_was_never_given_has_no_name() {
        let names = Names::default();
        names.addresses("a.test").unwrap();
        for address in [
            "198.18.0.1",
            "198.18.0.17",
            "93.184.216.34",
            "0.0.0.0",
            "::1",
            "fdbe:11a6:a12::1",
            "ffff::",
        ] {
            assert_eq!(names.name(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn there_is_an_end_to_names_and_the_ones_before_stay() {
        let names = Names::default();
        let first = names.addresses("0.test");
        for number in 1..MOST {
            assert!(names.addresses(&format!("{number}.test")).is_some());
        }
        assert_eq!(names.addresses("one.too.many"), None);
        assert_eq!(names.addresses("0.test"), first);
        let last = names.addresses(&format!("{}.test", MOST - 1)).unwrap();
        assert!(last.v4.octets()[1] == 18 || last.v4.octets()[1] == 19, "{last:?}");
    }
}
