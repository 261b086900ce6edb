//! What indexes need of stored records: units of consume queues, and keys with their hashes.
//!
//! Usual records alone, of version 1 and with IPv4 hosts, whose tags, topics and keys are ASCII. Of everything else,
//! sound or not, these functions say `None`, and the twin in Python decides: `views/scan.py` and `views/keyscan.py` of the
//! broker. Format: the table in `dledger_remoting/record.py`.

use std::collections::HashMap;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::guarded;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const HEAD_BYTES: usize = 88;
const MIN_RECORD_BYTES: usize = HEAD_BYTES + 1 + 2;
const HOST_MASK: u32 = 0x30;
const TRANSACTION_MASK: u32 = 0xC;
const TRANSACTION_ROLLBACK: u32 = 0xC;
const NAME_END: u8 = 1;
const VALUE_END: u8 = 2;
const UNIT_BYTES: usize = 20;

/// A usual record.
struct Record<'a> {
    size: u32,
    queue_id: i32,
    queue_offset: i64,
    position: i64,
    sys_flag: u32,
    stored_ms: i64,
    topic: &'a [u8],
    properties: &'a [u8],
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The record with which `data` begins, if it is a usual one and sound.
fn first_record(data: &[u8]) -> Option<Record<'_>> {
    if data.len() < MIN_RECORD_BYTES {
        return None;
    }
    let size = u32_at(data, 0)?;
    let data = data.get(..size as usize)?;
    let sys_flag = u32_at(data, 36)?;
    if u32_at(data, 4)? != MAGIC_V1 || sys_flag & HOST_MASK != 0 {
        return None;
    }
    let body_bytes = u32_at(data, 84)? as usize;
    let tail = data.get(HEAD_BYTES.checked_add(body_bytes)?..)?;
    let (&topic_bytes, tail) = tail.split_first()?;
    let topic = tail.get(..topic_bytes as usize)?;
    let tail = &tail[topic.len()..];
    let properties = tail.get(2..)?;
    if properties.len() != usize::from(tail[0]) << 8 | usize::from(tail[1]) {
        return None;
    }
    Some(Record {
        size,
        queue_id: u32_at(data, 12)? as i32,
        queue_offset: i64_at(data, 20)?,
        position: i64_at(data, 28)?,
        sys_flag,
        stored_ms: i64_at(data, 56)?,
        topic,
        properties,
    })
}

/// Where the value of a property begins and ends; the last one of those with this name, which has its end mark.
fn find_property<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    debug_assert_eq!(name.last(), Some(&NAME_END));
    let begin = (0..=properties.len().checked_sub(name.len())?)
        .rev()
        .find(|&at| (at == 0 || properties[at - 1] == VALUE_END) && properties[at..].starts_with(name))?
        + name.len();
    let value = &properties[begin..];
    Some(value.split(|byte| *byte == VALUE_END).next().unwrap_or(value))
}

/// Java's hash of a text that goes on with these characters, all ASCII.
fn hash_on(code: u32, text: &[u8]) -> u32 {
    text.iter().fold(code, |code, character| code.wrapping_mul(31).wrapping_add(u32::from(*character)))
}

/// What a consume queue holds of a record's tag.
fn tag_code(properties: &[u8]) -> Option<i64> {
    match find_property(properties, b"TAGS\x01") {
        None => Some(0),
        Some(tag) if tag.is_ascii() => Some(i64::from(hash_on(0, tag) as i32)),
        Some(_) => None,
    }
}

/// Records that follow one another in a queue.
struct Run<'a> {
    topic: &'a [u8],
    queue_id: i32,
    first_offset: i64,
    units: Vec<u8>,
}

impl Run<'_> {
    fn end_offset(&self) -> Option<i64> {
        self.first_offset.checked_add((self.units.len() / UNIT_BYTES) as i64)
    }
}

/// Runs in the order of the twin: those that others have followed, then the newest of each queue, by its first record.
fn collect_runs(data: &[u8], log_position: i64) -> Option<Vec<Run<'_>>> {
    let mut closed = Vec::new();
    let mut open: Vec<Run<'_>> = Vec::new();
    let mut by_queue: HashMap<(&[u8], i32), usize> = HashMap::new();
    let mut last: Option<usize> = None;
    let mut at = 0;
    while at < data.len() {
        let record = first_record(&data[at..])?;
        if record.queue_offset < 0 {
            return None;
        }
        let number = match last {
            Some(number) if open[number].queue_id == record.queue_id && open[number].topic == record.topic => number,
            _ => *by_queue.entry((record.topic, record.queue_id)).or_insert_with(|| {
                open.push(Run {
                    topic: record.topic,
                    queue_id: record.queue_id,
                    first_offset: record.queue_offset,
                    units: Vec::new(),
                });
                open.len() - 1
            }),
        };
        let run = &mut open[number];
        if run.end_offset()? != record.queue_offset {
            let units = std::mem::take(&mut run.units);
            closed.push(Run { topic: run.topic, queue_id: run.queue_id, first_offset: run.first_offset, units });
            run.first_offset = record.queue_offset;
        }
        run.units.extend_from_slice(&log_position.checked_add(i64::try_from(at).ok()?)?.to_be_bytes());
        run.units.extend_from_slice(&record.size.to_be_bytes());
        run.units.extend_from_slice(&tag_code(record.properties)?.to_be_bytes());
        last = Some(number);
        at += record.size as usize;
    }
    closed.append(&mut open);
    Some(closed)
}

type PyRun<'py> = (Bound<'py, PyBytes>, i32, i64, Bound<'py, PyBytes>);

/// `scan_runs(records, log_position)` of the twin, or None. The interpreter's lock is kept: an event loop calls this, and
/// a thread that took the lock meanwhile would keep it for longer than the work takes.
#[pyfunction]
pub fn scan_runs<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyAny>,
    log_position: i64,
) -> PyResult<Option<Vec<PyRun<'py>>>> {
    let buffer;
    let data = match records.cast::<PyBytes>() {
        Ok(bytes) => bytes.as_bytes(),
        Err(_) => {
            buffer = PyBuffer::<u8>::get(records)?;
            let Some(bytes) = buffer.as_slice_ptr() else { return Ok(None) };
            // SAFETY: the buffer is held to the end, and so is the lock: nobody writes there meanwhile.
            unsafe { bytes.as_ref() }
        }
    };
    let found = guarded(py, "scan_runs", || collect_runs(data, log_position)).flatten();
    let Some(runs) = found else { return Ok(None) };
    let mut told: Vec<PyRun<'py>> = Vec::with_capacity(runs.len());
    for run in runs {
        let Some(end_offset) = run.end_offset() else { return Ok(None) };
        let topic = match told.last() {
            Some((topic, ..)) if topic.as_bytes() == run.topic => topic.clone(),
            _ => PyBytes::new(py, run.topic),
        };
        told.push((topic, run.queue_id, end_offset, PyBytes::new(py, &run.units)));
    }
    Ok(Some(told))
}

/// One row of the key index: hash, position, stored at; in the byte order of the machine.
fn add_key(rows: &mut Vec<u8>, record: &Record<'_>, topic_code: u32, key: &[u8]) -> Option<()> {
    if !key.is_ascii() {
        return None;
    }
    // Like Java's, the absolute value of the smallest number is itself; the index has 0 for it.
    let code = (hash_on(topic_code, key) as i32).checked_abs().unwrap_or(0);
    rows.extend_from_slice(&code.to_ne_bytes());
    rows.extend_from_slice(&record.position.to_ne_bytes());
    rows.extend_from_slice(&record.stored_ms.to_ne_bytes());
    Some(())
}

fn add_keys(rows: &mut Vec<u8>, record: &Record<'_>) -> Option<()> {
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK {
        return Some(());
    }
    if !record.topic.is_ascii() {
        return None;
    }
    let topic_code = hash_on(hash_on(0, record.topic), b"#");
    let unique = find_property(record.properties, b"UNIQ_KEY\x01").unwrap_or_default();
    if !unique.is_empty() {
        add_key(rows, record, topic_code, unique)?;
    }
    let words = find_property(record.properties, b"KEYS\x01").unwrap_or_default();
    for word in words.split(|byte| *byte == b' ') {
        if !word.is_empty() && word != unique {
            add_key(rows, record, topic_code, word)?;
        }
    }
    Some(())
}

fn collect_keys(data: &[u8], spans: &[(usize, usize)]) -> Option<Vec<u8>> {
    let mut rows = Vec::new();
    for (begin, end) in spans {
        let mut rest = data.get(*begin..*end)?;
        while !rest.is_empty() {
            let record = first_record(rest)?;
            add_keys(&mut rows, &record)?;
            rest = &rest[record.size as usize..];
        }
    }
    Some(rows)
}

/// `scan_keys(data, spans)` of the twin, as the bytes of its rows, or None. Without the interpreter's lock.
#[pyfunction]
pub fn scan_keys<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    spans: Vec<(usize, usize)>,
) -> Option<Bound<'py, PyBytes>> {
    let bytes = data.as_bytes();
    let rows = guarded(py, "scan_keys", || py.detach(|| collect_keys(bytes, &spans))).flatten()?;
    Some(PyBytes::new(py, &rows))
}
