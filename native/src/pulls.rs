//! What pulls of one turn of the event loop are answered with, read in one call: the units of each, what is chosen of
//! them, and the records. The twin is what the broker does with a pull by itself, `features/pulling/requests.py`.

use std::collections::HashSet;
use std::os::fd::RawFd;

use crc32fast::Hasher;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet};

use crate::guard::guarded;
use crate::page_cache::Unfilled;
use crate::select::{select, Limits, MAX_CODES, UNIT_BYTES};

/// The units of a pull, or where they are: descriptor, first byte, number, and the states of their stamps before and after.
/// How many messages and bytes it may get, and the codes of the tags that match, None where all do.
type Ask<'py> =
    (Option<Bound<'py, PyBytes>>, RawFd, i64, usize, u32, u32, usize, i64, Option<Bound<'py, PyFrozenSet>>);

/// How many units were passed, how many of them chosen, the bytes of their records, the position of the first, and the
/// records: None if they are not all in the file of the log that was given.
type Found<'py> = (usize, usize, i64, i64, Option<Bound<'py, PyBytes>>);

/// An open file of the log: descriptor, and the positions where it begins and ends.
type LogFile = (RawFd, i64, i64);

/// For each pull what it gets; None where that is nothing, or not in the page cache, or not sound: the twin sees to that.
#[pyfunction]
pub fn read_pulls<'py>(
    py: Python<'py>,
    asks: Vec<Ask<'py>>,
    log: LogFile,
    first_position: i64,
) -> PyResult<Vec<Option<Found<'py>>>> {
    let all = guarded(py, "read_pulls", || asks.iter().map(|ask| read_one(py, ask, log, first_position)).collect());
    Ok(all.unwrap_or_else(|| asks.iter().map(|_| None).collect()))
}

fn read_one<'py>(py: Python<'py>, ask: &Ask<'py>, log: LogFile, first_position: i64) -> Option<Found<'py>> {
    let (held, descriptor, at, count, before, after, max_messages, max_bytes, codes) = ask;
    let units = match held {
        Some(units) => units.clone(),
        None => {
            let units = read(py, *descriptor, &[(*at, count.checked_mul(UNIT_BYTES)?)])?;
            let mut state = Hasher::new_with_initial(*before);
            state.update(units.as_bytes());
            (state.finalize() == *after).then_some(units)?
        }
    };
    let units = units.as_bytes();
    if units.len() % UNIT_BYTES != 0 || codes.as_ref().is_some_and(|codes| codes.len() > MAX_CODES) {
        return None;
    }
    let codes: Option<HashSet<i64>> = codes.as_ref().map(|codes| codes.extract()).transpose().ok()?;
    let limits = Limits { messages: *max_messages, bytes: *max_bytes, first_position };
    let (passed, count, size, _, runs) = select(units, &limits, codes.as_ref(), codes.is_none())?;
    let position = runs.first()?.0;
    Some((passed, count, size, position, records(py, &runs, log)?))
}

/// The records that were chosen, Some(None) if some are in another file; None if they cannot be read at once.
fn records<'py>(py: Python<'py>, runs: &[(i64, i64)], log: LogFile) -> Option<Option<Bound<'py, PyBytes>>> {
    let (descriptor, start, end) = log;
    let mut pieces = Vec::with_capacity(runs.len());
    for &(at, size) in runs {
        if at < start || size < 0 || at.checked_add(size).is_none_or(|to| to > end) {
            return Some(None);
        }
        pieces.push((at - start, usize::try_from(size).ok()?));
    }
    read(py, descriptor, &pieces).map(Some)
}

/// Pieces of a file, (offset, size), as one; None if the page cache has not got them all.
fn read<'py>(py: Python<'py>, descriptor: RawFd, pieces: &[(i64, usize)]) -> Option<Bound<'py, PyBytes>> {
    let total = pieces.iter().try_fold(0usize, |sum, &(_, size)| sum.checked_add(size))?;
    let mut bytes = Unfilled::new(py, total).ok()?;
    for &(at, size) in pieces {
        bytes.read(descriptor, size, at).ok()?.then_some(())?;
    }
    bytes.filled()
}
