//! What messages have in common whose properties differ in the unique key alone: the twin's `PropertiesLayout`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The twin has completed a message of this form before.
pub struct Layout {
    before: Vec<u8>,
    behind: Vec<u8>,
    key_end: usize,
    pub head: Vec<u8>,
    pub added: Vec<u8>,
    pub tag_code: i64,
}

impl Layout {
    pub fn of(layouts: &Bound<'_, PyDict>, length: usize) -> PyResult<Option<Self>> {
        let Some(found) = layouts.get_item(length)? else { return Ok(None) };
        let (before, behind, key_end, head, added, tag_code) = found.extract()?;
        Ok(Some(Self { before, behind, key_end, head, added, tag_code }))
    }

    /// The unique key in properties of this form; None in others.
    pub fn key_in<'a>(&self, properties: &'a [u8]) -> Option<&'a [u8]> {
        if !properties.starts_with(&self.before) || !properties.ends_with(&self.behind) {
            return None;
        }
        let key = properties.get(self.before.len()..self.key_end)?;
        (!key.is_empty() && key.iter().all(u8::is_ascii_alphanumeric)).then_some(key)
    }
}
