//! The choice of what a pull is answered with, from the units of a consume queue: `select` of the broker's
//! `views/reading.py`, which also has the rules.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet};

use crate::guard::guarded;

pub const UNIT_BYTES: usize = 20;
/// A filter of more tags is the twin's: they are looked at anew for each pull.
pub const MAX_CODES: usize = 64;

struct Unit {
    position: i64,
    size: i64,
    tag_code: i64,
}

fn unit(bytes: &[u8]) -> Option<Unit> {
    Some(Unit {
        position: i64::from_be_bytes(bytes.get(..8)?.try_into().ok()?),
        size: i64::from(i32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?)),
        // In files the four bytes before are a stamp, in memory the sign.
        tag_code: i64::from(i32::from_be_bytes(bytes.get(16..20)?.try_into().ok()?)),
    })
}

/// How many units were passed, how many of them chosen, the bytes of their records, how many were below the log's first
/// position, and (position, size) of the pieces of the log that the records are.
type Selected = (usize, usize, i64, usize, Vec<(i64, i64)>);

/// What a pull may get.
pub struct Limits {
    pub messages: usize,
    pub bytes: i64,
    pub first_position: i64,
}

/// All units as one piece, if their records are to be answered and lie back to back, as the twin tells that: by the first
/// and the last of them and the sum of all sizes. It calculates without bounds, and so wide numbers are taken here:
/// positions of damaged units may stand anywhere.
fn whole_run(units: &[u8], limits: &Limits) -> Option<Selected> {
    let count = units.len() / UNIT_BYTES;
    if count == 0 || count > limits.messages {
        return None;
    }
    let first = unit(units)?.position;
    let (mut size, mut end) = (0i64, i128::from(first));
    for bytes in units.chunks_exact(UNIT_BYTES) {
        let one = unit(bytes)?;
        size = size.checked_add(one.size)?;
        end = i128::from(one.position) + i128::from(one.size);
    }
    let apart = first < limits.first_position || end - i128::from(first) != i128::from(size);
    (!apart && (size <= limits.bytes || count == 1)).then(|| (count, count, size, 0, vec![(first, size)]))
}

/// Unit by unit; `codes` are those of the tags that match, None where all do.
fn choose(units: &[u8], limits: &Limits, codes: Option<&HashSet<i64>>) -> Option<Selected> {
    let (mut passed, mut count, mut total, mut removed) = (0, 0, 0i64, 0);
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for bytes in units.chunks_exact(UNIT_BYTES) {
        let one = unit(bytes)?;
        if one.position < limits.first_position {
            removed += 1;
        } else if removed > 0 {
            break;
        } else if codes.is_none_or(|codes| codes.contains(&one.tag_code)) {
            if count > 0 && (count >= limits.messages || total.checked_add(one.size)? > limits.bytes) {
                break;
            }
            if one.position < 0 {
                return None;
            }
            count += 1;
            total = total.checked_add(one.size)?;
            match runs.last_mut() {
                Some((begin, size)) if begin.checked_add(*size)? == one.position => {
                    *size = size.checked_add(one.size)?
                }
                _ => runs.push((one.position, one.size)),
            }
        }
        passed += 1;
    }
    Some((passed, count, total, removed, runs))
}

/// What to answer from units; `whole`: they may be looked at all at once. None of units that are not sound.
pub fn select(units: &[u8], limits: &Limits, codes: Option<&HashSet<i64>>, whole: bool) -> Option<Selected> {
    let all = whole.then(|| whole_run(units, limits)).flatten();
    all.or_else(|| choose(units, limits, codes))
}

/// `select` of the twin, but for what it is told only to tell it again. None of what is not sound, and of long filters.
#[pyfunction]
pub fn select_units(
    units: &Bound<'_, PyBytes>,
    max_messages: usize,
    max_bytes: i64,
    codes: Option<&Bound<'_, PyFrozenSet>>,
    first_position: i64,
    whole: bool,
) -> PyResult<Option<Selected>> {
    let (py, units) = (units.py(), units.as_bytes());
    if units.len() % UNIT_BYTES != 0 || codes.is_some_and(|codes| codes.len() > MAX_CODES) {
        return Ok(None);
    }
    let limits = Limits { messages: max_messages, bytes: max_bytes, first_position };
    let codes = codes.map(|codes| codes.extract::<HashSet<i64>>()).transpose()?;
    let chosen = guarded(py, "select_units", || select(units, &limits, codes.as_ref(), whole));
    Ok(chosen.flatten())
}
