//! One synthetic address for each name, so that a connection can be carried with the name that it was meant for.
//!
//! Which one is the control plane's to say, so that a session keeps its addresses in every sandbox. One that nobody asked for
//! here, since it was written down in another, is carried as it is: the control plane knows it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox::capture::{NAMES, Synthetic};

#[derive(Default)]
pub(super) struct Names(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_name: HashMap<Arc<str>, u32>,
    by_number: HashMap<u32, Arc<str>>,
}

impl Names {
    /// The addresses of a name: those with the number that the control plane gave it; where it is too old to give any, always
    /// the same, and never another's. None: there are too many names.
    pub(super) fn addresses(&self, name: &str, given: Option<u32>) -> Option<Synthetic> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.by_name.get(name).copied();
        if let Some(number) = known.filter(|known| given.is_none_or(|given| given == *known)) {
            return Some(Synthetic::of(number));
        }
        let number = given.or_else(|| (0..NAMES).find(|number| !table.by_number.contains_key(number)));
        let number = number.filter(|number| *number < NAMES)?;
        let name: Arc<str> = name.into();
        table.by_number.insert(number, Arc::clone(&name));
        table.by_name.insert(name, number);
        Some(Synthetic::of(number))
    }

    /// The name that has this address.
    pub(super) fn name(&self, address: IpAddr) -> Option<Arc<str>> {
        let number = Synthetic::number(address)?;
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.by_number.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back_to_it() {
        let names = Names::default();
        let first = names.addresses("a.test", None).unwrap();
        let second = names.addresses("b.test", None).unwrap();
        assert_ne!(first, second);
        assert_eq!(names.addresses("a.test", None), Some(first));
        for (addresses, name) in [(first, "a.test"), (second, "b.test")] {
            assert_eq!(names.name(addresses.v4.into()).as_deref(), Some(name));
            assert_eq!(names.name(addresses.v6.into()).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_name_has_the_addresses_that_it_was_given() {
        let names = Names::default();
        assert_eq!(names.addresses("a.test", Some(7)), Some(Synthetic::of(7)));
        assert_eq!(names.addresses("a.test", Some(7)), Some(Synthetic::of(7)));
        assert_eq!(names.name(Synthetic::of(7).v4.into()).as_deref(), Some("a.test"));
        assert_eq!(names.name(Synthetic::of(0).v4.into()), None);
        assert_eq!(names.addresses("b.test", Some(NAMES)), None);
    }

    #[test]
    fn there_is_an_end_to_names_and_the_ones_before_stay() {
        let names = Names::default();
        let first = names.addresses("0.test", None);
        for number in 1..NAMES {
            assert!(names.addresses(&format!("{number}.test"), Some(number)).is_some());
        }
        assert_eq!(names.addresses("one.too.many", None), None);
        assert_eq!(names.addresses("0.test", None), first);
    }
}
