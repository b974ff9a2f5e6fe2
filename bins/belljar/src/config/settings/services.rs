//! What services need, as the programs use it.

use std::collections::BTreeMap;

use ::services::ServiceSettings;

use super::super::values::Reader;

pub(super) fn services(reader: &mut Reader) -> BTreeMap<String, ServiceSettings> {
    reader.whole("services.*")
}
