//! What pulls of one turn of the event loop are answered with, read in one call: the units of each, what is chosen of
//! them, and the records. The twin is what the broker does with a pull by itself, `features/pulling/requests.py`.

use std::collections::HashSet;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet};

use crate::guard::guarded;
use crate::page_cache::{read_at_once, uninitialized};
use crate::select::{select, Limits, Selected, MAX_CODES, UNIT_BYTES};

/// The units of a pull, or where they are: descriptor, first byte, number. How many messages and bytes it may get, and
/// the codes of the tags that match, None where all do.
type Ask<'py> = (Option<Bound<'py, PyBytes>>, RawFd, i64, usize, usize, i64, Option<Bound<'py, PyFrozenSet>>);

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
    let mut buffer = Vec::new();
    let all = guarded(py, "read_pulls", || {
        asks.iter().map(|ask| read_one(py, ask, log, first_position, &mut buffer)).collect()
    });
    Ok(all.unwrap_or_else(|| asks.iter().map(|_| None).collect()))
}

fn read_one<'py>(
    py: Python<'py>,
    ask: &Ask<'py>,
    log: LogFile,
    first_position: i64,
    buffer: &mut Vec<u8>,
) -> Option<Found<'py>> {
    let (held, descriptor, at, count, max_messages, max_bytes, codes) = ask;
    let units = match held {
        Some(units) => units.as_bytes(),
        None => {
            buffer.resize(count.checked_mul(UNIT_BYTES)?, 0);
            let read = read_at_once(*descriptor, buffer.as_mut_ptr().cast(), buffer.len(), *at).ok()?;
            (read == buffer.len()).then_some(&buffer[..])?
        }
    };
    if units.len() % UNIT_BYTES != 0 || codes.as_ref().is_some_and(|codes| codes.len() > MAX_CODES) {
        return None;
    }
    let codes: Option<HashSet<i64>> = codes.as_ref().map(|codes| codes.extract()).transpose().ok()?;
    let limits = Limits { messages: *max_messages, bytes: *max_bytes, first_position };
    let chosen = select(units, &limits, codes.as_ref(), codes.is_none())?;
    let position = chosen.4.first()?.0;
    Some((chosen.0, chosen.1, chosen.2, position, records(py, &chosen, log)?))
}

/// The records that were chosen, Some(None) if some are in another file; None if they cannot be read at once.
fn records<'py>(py: Python<'py>, chosen: &Selected, log: LogFile) -> Option<Option<Bound<'py, PyBytes>>> {
    let (descriptor, start, end) = log;
    let is_here =
        |&(at, size): &(i64, i64)| at >= start && size >= 0 && at.checked_add(size).is_some_and(|to| to <= end);
    if !chosen.4.iter().all(is_here) {
        return Some(None);
    }
    let total = usize::try_from(chosen.2).ok()?;
    let (bytes, content) = uninitialized(py, total).ok()?;
    let mut done = 0;
    for &(at, size) in &chosen.4 {
        let size = usize::try_from(size).ok()?;
        if size > total - done {
            return None;
        }
        // SAFETY: `size` bytes are left there, as has just been looked at.
        let place = unsafe { content.add(done) };
        if read_at_once(descriptor, place, size, at - start).ok()? != size {
            return None;
        }
        done += size;
    }
    (done == total).then_some(Some(bytes)) // or what was never written would be answered
}
