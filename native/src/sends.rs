//! The sends of a turn of the event loop: taken from frames, written as one unit of records, and answered.
//!
//! Ordinary sends alone: code 310 in JSON as clients write it, one message, with a unique key, to a topic that remembers
//! no identities, whose properties look like those of a message that the twin has completed (`PropertiesLayout`). The
//! first frame that is anything else ends a call, and is the twin's: `features/sending/send.py` and `unit.py` of the broker,
//! which also knows the rules behind all that is done here.

use std::collections::HashMap;
use std::io::Write;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::send_header::{parse, SendHeader, ONEWAY};

const HEAD_BYTES: usize = 88;
const SPECIAL_SYS_FLAGS: i32 = 0xCC;
const KEPT_SYS_FLAGS: i32 = 0x703;

/// What messages have in common whose properties differ in the unique key alone.
struct Layout {
    before: Vec<u8>,
    behind: Vec<u8>,
    key_end: usize,
    head: Vec<u8>,
    added: Vec<u8>,
    tag_code: i64,
}

impl Layout {
    fn of(layouts: &Bound<'_, PyDict>, length: usize) -> PyResult<Option<Self>> {
        let Some(found) = layouts.get_item(length)? else { return Ok(None) };
        let (before, behind, key_end, head, added, tag_code) = found.extract()?;
        Ok(Some(Self { before, behind, key_end, head, added, tag_code }))
    }

    /// Where the unique key stands in properties of this form.
    fn key_in(&self, properties: &[u8]) -> Option<(usize, usize)> {
        if !properties.starts_with(&self.before) || !properties.ends_with(&self.behind) {
            return None;
        }
        let key = properties.get(self.before.len()..self.key_end)?;
        let whole = !key.is_empty() && key.iter().all(u8::is_ascii_alphanumeric);
        whole.then_some((self.before.len(), self.key_end))
    }
}

/// A topic, and what of it has been used.
struct Target {
    object: Py<PyAny>,
    topic: Vec<u8>,
    queue_count: i32,
    magic: u32,
    by_id: Py<PyList>,
    layouts: Py<PyDict>,
    /// By length of properties: the place in `SendRun::layouts`, None where nothing was known.
    known_layouts: HashMap<usize, Option<usize>>,
    /// By queue id: the place in `SendRun::queues`.
    queues: HashMap<i32, usize>,
    messages: usize,
    bytes: usize,
}

/// What came over one connection at once.
struct Read {
    origin: Py<PyAny>,
    data: Py<PyBytes>,
    received: f64,
}

struct Message {
    read: usize,
    target: usize,
    layout: usize,
    queue: usize,
    frame: Frame,
    header: SendHeader,
    /// Of the properties in `SendRun::properties`.
    begin: usize,
    end: usize,
    /// Of the unique key, there.
    key: (usize, usize),
    size: usize,
}

#[derive(Clone, Copy)]
struct Frame {
    header: usize,
    body: usize,
    end: usize,
}

/// Sends that go into the log together.
#[pyclass]
#[derive(Default)]
pub struct SendRun {
    reads: Vec<Read>,
    targets: Vec<Target>,
    layouts: Vec<Layout>,
    queues: Vec<Py<PyAny>>,
    messages: Vec<Message>,
    properties: Vec<u8>,
    bytes: usize,
    /// The answers that `encode` wrote, by message; empty for one without.
    answers: Vec<u8>,
    answer_ends: Vec<usize>,
}

/// What a turn may take, as the caller says.
struct Limits<'a, 'py> {
    known: &'a Bound<'py, PyAny>,
    body_bytes: usize,
    unit_bytes: usize,
}

enum Taken {
    Yes,
    /// It is no ordinary send.
    Unusual,
    /// It would make the unit too large.
    Full,
}

#[pymethods]
impl SendRun {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// How many sends were taken.
    #[getter]
    fn count(&self) -> usize {
        self.messages.len()
    }

    /// The size of their records.
    #[getter]
    fn size(&self) -> usize {
        self.bytes
    }

    /// Take sends from the frame at `place` of `reads[number]` on, up to the first that is unusual or would make the unit
    /// larger than `unit_bytes`. Returns where that is, and whether it was the latter.
    fn take<'py>(
        &mut self,
        py: Python<'py>,
        reads: &Bound<'py, PyAny>,
        mut number: usize,
        mut place: usize,
        received: f64,
        known: &Bound<'py, PyAny>,
        body_bytes: usize,
        unit_bytes: usize,
    ) -> PyResult<(usize, usize, bool)> {
        let limits = Limits { known, body_bytes, unit_bytes };
        let first_target = self.targets.len(); // topics may have changed since those before it were found
        let total = reads.len()?;
        while number < total {
            let read = reads.get_item(number)?;
            let (origin, data, frames): (Bound<'_, PyAny>, Bound<'_, PyBytes>, Bound<'_, PyList>) = read.extract()?;
            if origin.getattr(intern!(py, "forwards"))?.is_truthy()? || !origin.getattr(intern!(py, "alias"))?.is_none()
            {
                break;
            }
            let taken_before = self.messages.len();
            self.reads.push(Read { origin: origin.clone().unbind(), data: data.clone().unbind(), received });
            let (mut awaited, mut outcome) = (0, Taken::Yes);
            while place < frames.len() {
                let (header, body, end, serialize_type): (usize, usize, usize, u8) =
                    frames.get_item(place)?.extract()?;
                if serialize_type != 0 {
                    outcome = Taken::Unusual;
                    break;
                }
                outcome = self.take_one(py, data.as_bytes(), Frame { header, body, end }, first_target, &limits)?;
                if !matches!(outcome, Taken::Yes) {
                    break;
                }
                place += 1;
                if self.messages.last().is_some_and(|message| message.header.flag & ONEWAY == 0) {
                    awaited += 1;
                }
            }
            if self.messages.len() == taken_before {
                self.reads.pop();
            }
            if awaited > 0 {
                let name = intern!(py, "in_flight");
                origin.setattr(name, origin.getattr(name)?.extract::<i64>()? + awaited)?;
            }
            match outcome {
                Taken::Yes => (number, place) = (number + 1, 0),
                Taken::Unusual => return Ok((number, place, false)),
                Taken::Full => return Ok((number, place, true)),
            }
        }
        Ok((number, place, false))
    }

    /// The topics, each with how many messages and bytes of records go to it.
    fn targets<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyAny>, usize, usize)> {
        let used = self.targets.iter().filter(|target| target.messages > 0);
        used.map(|target| (target.object.bind(py).clone(), target.messages, target.bytes)).collect()
    }

    /// The sends as they came, in their order: (origin, code, opaque, flag, header, body, received).
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let mut told = Vec::with_capacity(self.messages.len());
        for message in &self.messages {
            let read = &self.reads[message.read];
            let data = read.data.bind(py).as_bytes();
            let (frame, header) = (message.frame, &message.header);
            let parts = (
                read.origin.bind(py),
                310,
                header.opaque,
                header.flag,
                PyBytes::new(py, &data[frame.header..frame.body]),
                PyBytes::new(py, &data[frame.body..frame.end]),
                read.received,
            );
            told.push(parts.into_pyobject(py)?);
        }
        Ok(told)
    }

    /// The unit's records, of which the first byte will stand at `position`, and its runs: (queue, offset after the last,
    /// units). The queues' staged offsets go on, and the answers are written.
    fn encode<'py>(
        &mut self,
        py: Python<'py>,
        position: u64,
        now_ms: i64,
        store_host: [u8; 8],
        id_prefix: &[u8],
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<(Bound<'py, PyAny>, i64, Bound<'py, PyBytes>)>)> {
        let staged_offset = intern!(py, "staged_offset");
        let mut slots: Vec<(usize, i64, Vec<u8>)> = Vec::new();
        let mut slot_of: Vec<Option<usize>> = vec![None; self.queues.len()];
        let mut born_host = (usize::MAX, [0u8; 8]);
        let mut at = position;
        let mut answers = std::mem::take(&mut self.answers);
        let mut answer_ends = std::mem::take(&mut self.answer_ends);
        let mut records = Vec::with_capacity(self.bytes);
        for message in &self.messages {
            let read = &self.reads[message.read];
            if born_host.0 != message.read {
                born_host = (message.read, read.origin.bind(py).getattr(intern!(py, "born_host"))?.extract()?);
            }
            let slot = match slot_of[message.queue] {
                Some(slot) => slot,
                None => {
                    let first = self.queues[message.queue].bind(py).getattr(staged_offset)?.extract()?;
                    slots.push((message.queue, first, Vec::new()));
                    slot_of[message.queue] = Some(slots.len() - 1);
                    slots.len() - 1
                }
            };
            let (_, queue_offset, units) = &mut slots[slot];
            let stored =
                Stored { position: at, queue_offset: *queue_offset, born_host: born_host.1, now_ms, store_host };
            self.add_record(&mut records, message, read.data.bind(py).as_bytes(), &stored);
            units.extend_from_slice(&at.to_be_bytes());
            units.extend_from_slice(&(message.size as u32).to_be_bytes());
            units.extend_from_slice(&self.layouts[message.layout].tag_code.to_be_bytes());
            if message.header.flag & ONEWAY == 0 {
                let key = &self.properties[message.key.0..message.key.1];
                add_answer(&mut answers, &message.header, id_prefix, &stored, key);
            }
            answer_ends.push(answers.len());
            *queue_offset += 1;
            at += message.size as u64;
        }
        (self.answers, self.answer_ends) = (answers, answer_ends);
        let mut runs = Vec::with_capacity(slots.len());
        for (queue, end_offset, units) in slots {
            let queue = self.queues[queue].bind(py).clone();
            queue.setattr(staged_offset, end_offset)?;
            runs.push((queue, end_offset, PyBytes::new(py, &units)));
        }
        Ok((PyBytes::new(py, &records), runs))
    }

    /// After `encode`: each origin's answers in one list, in the order of the sends, and the origin of each send that wants
    /// none.
    fn answers<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Vec<(Bound<'py, PyAny>, Bound<'py, PyList>)>, Vec<Bound<'py, PyAny>>)> {
        let mut told: Vec<(Bound<'py, PyAny>, Bound<'py, PyList>)> = Vec::new();
        let (mut silent, mut begin, mut last) = (Vec::new(), 0, usize::MAX);
        for (message, end) in self.messages.iter().zip(&self.answer_ends) {
            let origin = self.reads[message.read].origin.bind(py);
            if *end == begin {
                silent.push(origin.clone());
                continue;
            }
            if last != message.read {
                last = message.read;
                if !told.last().is_some_and(|(before, _)| before.is(origin)) {
                    told.push((origin.clone(), PyList::empty(py)));
                }
            }
            if let Some((_, frames)) = told.last() {
                frames.append(PyBytes::new(py, &self.answers[begin..*end]))?;
            }
            begin = *end;
        }
        Ok((told, silent))
    }
}

/// What storing adds to a message.
struct Stored {
    position: u64,
    queue_offset: i64,
    born_host: [u8; 8],
    now_ms: i64,
    store_host: [u8; 8],
}

impl SendRun {
    fn take_one(
        &mut self,
        py: Python<'_>,
        data: &[u8],
        frame: Frame,
        first_target: usize,
        limits: &Limits<'_, '_>,
    ) -> PyResult<Taken> {
        let begin = self.properties.len();
        let taken = self.try_one(py, data, frame, first_target, limits);
        if !matches!(taken, Ok(Taken::Yes)) {
            self.properties.truncate(begin);
        }
        taken
    }

    fn try_one(
        &mut self,
        py: Python<'_>,
        data: &[u8],
        frame: Frame,
        first_target: usize,
        limits: &Limits<'_, '_>,
    ) -> PyResult<Taken> {
        let (Some(text), Some(body)) = (data.get(frame.header..frame.body), data.get(frame.body..frame.end)) else {
            return Ok(Taken::Unusual);
        };
        let begin = self.properties.len();
        let Some((header, topic)) = parse(text, &mut self.properties) else { return Ok(Taken::Unusual) };
        if body.len() > limits.body_bytes || header.sys_flag & SPECIAL_SYS_FLAGS != 0 {
            return Ok(Taken::Unusual);
        }
        let Some(target) = self.target(py, topic, first_target, limits.known)? else { return Ok(Taken::Unusual) };
        if !(0..self.targets[target].queue_count).contains(&header.queue_id) {
            return Ok(Taken::Unusual);
        }
        let Some(layout) = self.layout(py, target, self.properties.len() - begin)? else { return Ok(Taken::Unusual) };
        let found = &self.layouts[layout];
        let Some((key, key_end)) = found.key_in(&self.properties[begin..]) else { return Ok(Taken::Unusual) };
        let end = self.properties.len();
        let size = HEAD_BYTES + body.len() + found.head.len() + (end - begin) + found.added.len();
        if !self.messages.is_empty() && self.bytes + size > limits.unit_bytes {
            return Ok(Taken::Full);
        }
        let queue = self.queue(py, target, header.queue_id)?;
        let read = self.reads.len() - 1;
        let key = (begin + key, begin + key_end);
        self.messages.push(Message { read, target, layout, queue, frame, header, begin, end, key, size });
        self.bytes += size;
        self.targets[target].messages += 1;
        self.targets[target].bytes += size;
        Ok(Taken::Yes)
    }

    /// The place of a topic that takes ordinary sends.
    fn target(
        &mut self,
        py: Python<'_>,
        topic: &[u8],
        first: usize,
        known: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        if let Some(at) = self.targets[first..].iter().rposition(|target| target.topic == topic) {
            return Ok(Some(first + at));
        }
        let Ok(name) = std::str::from_utf8(topic) else { return Ok(None) };
        let object = known.call1((name,))?;
        if object.is_none() || object.getattr(intern!(py, "idempotent"))?.is_truthy()? {
            return Ok(None);
        }
        self.targets.push(Target {
            topic: topic.to_vec(),
            queue_count: object.getattr(intern!(py, "queue_count"))?.extract()?,
            magic: object.getattr(intern!(py, "magic"))?.extract()?,
            by_id: object.getattr(intern!(py, "by_id"))?.extract()?,
            layouts: object.getattr(intern!(py, "layouts"))?.extract()?,
            object: object.unbind(),
            known_layouts: HashMap::new(),
            queues: HashMap::new(),
            messages: 0,
            bytes: 0,
        });
        Ok(Some(self.targets.len() - 1))
    }

    fn layout(&mut self, py: Python<'_>, target: usize, length: usize) -> PyResult<Option<usize>> {
        if let Some(known) = self.targets[target].known_layouts.get(&length) {
            return Ok(*known);
        }
        let found = Layout::of(self.targets[target].layouts.bind(py), length)?.map(|layout| {
            self.layouts.push(layout);
            self.layouts.len() - 1
        });
        self.targets[target].known_layouts.insert(length, found);
        Ok(found)
    }

    fn queue(&mut self, py: Python<'_>, target: usize, queue_id: i32) -> PyResult<usize> {
        let found = &self.targets[target];
        if let Some(known) = found.queues.get(&queue_id) {
            return Ok(*known);
        }
        let mut queue = found.by_id.bind(py).get_item(queue_id as usize)?;
        if queue.is_none() {
            queue = found.object.bind(py).call_method1(intern!(py, "queue"), (queue_id,))?;
        }
        let same = self.queues.iter().position(|other| other.bind(py).is(&queue)); // of a topic that was found twice
        let place = same.unwrap_or(self.queues.len());
        if same.is_none() {
            self.queues.push(queue.unbind());
        }
        self.targets[target].queues.insert(queue_id, place);
        Ok(place)
    }

    fn add_record(&self, records: &mut Vec<u8>, message: &Message, data: &[u8], stored: &Stored) {
        let (header, layout) = (&message.header, &self.layouts[message.layout]);
        let body = &data[message.frame.body..message.frame.end];
        let crc = crc32fast::hash(body) & 0x7FFF_FFFF;
        records.extend_from_slice(&(message.size as u32).to_be_bytes());
        records.extend_from_slice(&self.targets[message.target].magic.to_be_bytes());
        records.extend_from_slice(&crc.to_be_bytes());
        records.extend_from_slice(&header.queue_id.to_be_bytes());
        records.extend_from_slice(&header.user_flag.to_be_bytes());
        records.extend_from_slice(&stored.queue_offset.to_be_bytes());
        records.extend_from_slice(&stored.position.to_be_bytes());
        records.extend_from_slice(&(header.sys_flag & KEPT_SYS_FLAGS).to_be_bytes());
        records.extend_from_slice(&header.born_ms.to_be_bytes());
        records.extend_from_slice(&stored.born_host);
        records.extend_from_slice(&stored.now_ms.to_be_bytes());
        records.extend_from_slice(&stored.store_host);
        records.extend_from_slice(&header.reconsume_times.to_be_bytes());
        records.extend_from_slice(&0i64.to_be_bytes());
        records.extend_from_slice(&(body.len() as u32).to_be_bytes());
        records.extend_from_slice(body);
        records.extend_from_slice(&layout.head);
        records.extend_from_slice(&self.properties[message.begin..message.end]);
        records.extend_from_slice(&layout.added);
    }
}

/// `stored_response_frame` of the twin.
fn add_answer(answers: &mut Vec<u8>, header: &SendHeader, id_prefix: &[u8], stored: &Stored, key: &[u8]) {
    let begin = answers.len();
    answers.extend_from_slice(&[0; 8]);
    answers.extend_from_slice(b"{\"code\":0,\"extFields\":{\"msgId\":\"");
    answers.extend_from_slice(id_prefix);
    let (position, queue_id, queue_offset) = (stored.position, header.queue_id, stored.queue_offset);
    // Writing to a vector cannot fail.
    let _ = write!(
        answers,
        "{position:016X}\",\"queueId\":\"{queue_id}\",\"queueOffset\":\"{queue_offset}\",\"transactionId\":\""
    );
    answers.extend_from_slice(key);
    let opaque = header.opaque;
    let _ = write!(
        answers,
        "\"}},\"flag\":1,\"language\":\"JAVA\",\"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}}"
    );
    let length = (answers.len() - begin - 8) as u32;
    answers[begin..begin + 4].copy_from_slice(&(length + 4).to_be_bytes());
    answers[begin + 4..begin + 8].copy_from_slice(&length.to_be_bytes());
}
