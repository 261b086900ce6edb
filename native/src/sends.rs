//! The sends of a turn of the event loop: taken from frames, written as one unit of records, and answered.
//!
//! Ordinary sends alone: code 310 or 320 in JSON as clients write it, one message or a batch, with unique keys, to a topic
//! that remembers no identities; the properties of each message look like those of one that the twin has completed
//! (`Layout`). The first frame that is anything else ends a call, and is the twin's: `features/sending/send.py` and `unit.py`
//! of the broker, which also knows the rules behind all that is done here.

use std::io::{self, Write};

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::answers::{add_answer, add_batch_answer};
use crate::batch::message_at;
use crate::guard::{guarded, guarded_result};
use crate::runs::{QueueRun, Runs};
use crate::send_header::{parse, SendHeader, ONEWAY};
use crate::targets::Targets;

const HEAD_BYTES: usize = 88;
const SPECIAL_SYS_FLAGS: i32 = 0xCC;
const KEPT_SYS_FLAGS: i32 = 0x703;

/// What came over one connection at once.
struct Read {
    origin: Py<PyAny>,
    data: Py<PyBytes>,
    received: f64,
}

/// A send that was taken, of one message or, as a batch, of several.
struct Send {
    read: usize,
    target: usize,
    queue: usize,
    frame: Frame,
    header: SendHeader,
    /// Behind its last message in `SendRun::messages`.
    messages_end: usize,
}

struct Message {
    layout: usize,
    user_flag: i32,
    /// Of what came with it.
    body: (usize, usize),
    /// Of `SendRun::properties`.
    properties: (usize, usize),
    /// Of its record.
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
    targets: Targets,
    sends: Vec<Send>,
    messages: Vec<Message>,
    properties: Vec<u8>,
    bytes: usize,
    /// The answers that `encode` wrote, by send; empty for one without.
    answers: Vec<u8>,
    answer_ends: Vec<usize>,
}

/// What a turn may take, as the caller says.
struct Limits<'a, 'py> {
    known: &'a Bound<'py, PyAny>,
    body_bytes: usize,
    unit_bytes: usize,
}

/// An origin, and the frames that answer its sends.
type Answers<'py> = (Bound<'py, PyAny>, Bound<'py, PyList>);

/// Records, and what they add to each queue.
type Encoded<'py> = (Bound<'py, PyBytes>, Vec<QueueRun<'py>>);

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
        self.sends.len()
    }

    /// How many messages they have.
    #[getter]
    fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The size of their records.
    #[getter]
    fn size(&self) -> usize {
        self.bytes
    }

    #[expect(clippy::too_many_arguments, reason = "the caller names each")]
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
        guarded_result(py, "take", move || {
            let limits = Limits { known, body_bytes, unit_bytes };
            self.targets.begin(); // topics may have changed since they were found
            let total = reads.len()?;
            while number < total {
                let read = reads.get_item(number)?;
                let (origin, data, frames): (Bound<'_, PyAny>, Bound<'_, PyBytes>, Bound<'_, PyList>) =
                    read.extract()?;
                if origin.getattr(intern!(py, "forwards"))?.is_truthy()?
                    || !origin.getattr(intern!(py, "alias"))?.is_none()
                {
                    break;
                }
                let taken_before = self.sends.len();
                self.reads.push(Read { origin: origin.clone().unbind(), data: data.clone().unbind(), received });
                let mut outcome = Taken::Yes;
                while place < frames.len() {
                    let (header, body, end, serialize_type): (usize, usize, usize, u8) =
                        frames.get_item(place)?.extract()?;
                    if serialize_type != 0 {
                        outcome = Taken::Unusual;
                        break;
                    }
                    outcome = self.take_one(py, data.as_bytes(), Frame { header, body, end }, &limits)?;
                    if !matches!(outcome, Taken::Yes) {
                        break;
                    }
                    place += 1;
                }
                let taken = self.sends.len() - taken_before;
                if taken == 0 {
                    self.reads.pop();
                } else {
                    let name = intern!(py, "in_flight");
                    origin.setattr(name, origin.getattr(name)?.extract::<isize>()?.saturating_add_unsigned(taken))?;
                }
                match outcome {
                    Taken::Yes => (number, place) = (number + 1, 0),
                    Taken::Unusual => return Ok((number, place, false)),
                    Taken::Full => return Ok((number, place, true)),
                }
            }
            Ok((number, place, false))
        })
    }

    /// The topics, each with how many sends and bytes of records go to it.
    fn targets<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyAny>, usize, usize)>> {
        guarded_result(py, "targets", || {
            let used = self.targets.all.iter().filter(|target| target.sends > 0);
            Ok(used.map(|target| (target.object.bind(py).clone(), target.sends, target.bytes)).collect())
        })
    }

    /// The sends as they came, in their order: (origin, code, opaque, flag, header, body, received).
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        guarded_result(py, "requests", move || {
            let mut told = Vec::with_capacity(self.sends.len());
            for send in &self.sends {
                let read = &self.reads[send.read];
                let data = read.data.bind(py).as_bytes();
                let (frame, header) = (send.frame, &send.header);
                let parts = (
                    read.origin.bind(py),
                    header.code,
                    header.opaque,
                    header.flag,
                    PyBytes::new(py, &data[frame.header..frame.body]),
                    PyBytes::new(py, &data[frame.body..frame.end]),
                    read.received,
                );
                told.push(parts.into_pyobject(py)?);
            }
            Ok(told)
        })
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
    ) -> PyResult<Encoded<'py>> {
        guarded_result(py, "encode", || self.encode_all(py, position, now_ms, store_host, id_prefix))
    }

    /// After `encode`: each origin's answers in one list, in the order of the sends, and the origin of each send that wants
    /// none.
    fn answers<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Answers<'py>>, Vec<Bound<'py, PyAny>>)> {
        guarded_result(py, "answers", || self.all_answers(py))
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
    fn encode_all<'py>(
        &mut self,
        py: Python<'py>,
        position: u64,
        now_ms: i64,
        store_host: [u8; 8],
        id_prefix: &[u8],
    ) -> PyResult<Encoded<'py>> {
        let mut runs = Runs::new(&self.targets);
        let mut answers = std::mem::take(&mut self.answers);
        let mut answer_ends = std::mem::take(&mut self.answer_ends);
        let records = PyBytes::new_with(py, self.bytes, |mut records| {
            let mut stored = Stored { position, queue_offset: 0, born_host: [0; 8], now_ms, store_host };
            let (mut read_number, mut begin) = (usize::MAX, 0);
            for send in &self.sends {
                let read = &self.reads[send.read];
                if read_number != send.read {
                    read_number = send.read;
                    stored.born_host = read.origin.bind(py).getattr(intern!(py, "born_host"))?.extract()?;
                }
                let run = runs.of(py, &self.targets, send.queue)?;
                let messages = &self.messages[begin..send.messages_end];
                let first = (stored.position, run.next_offset);
                for message in messages {
                    stored.queue_offset = run.next_offset;
                    self.add_record(&mut records, send, message, read.data.bind(py).as_bytes(), &stored)?;
                    let added = run.add(stored.position, message.size, self.targets.layouts[message.layout].tag_code);
                    let behind = stored.position.checked_add(message.size as u64);
                    let (Some(()), Some(behind)) = (added, behind) else {
                        return Err(PyOverflowError::new_err("a message has no offset or position"));
                    };
                    stored.position = behind;
                }
                if send.header.flag & ONEWAY == 0 {
                    self.answer(&mut answers, send, messages, id_prefix, first);
                }
                answer_ends.push(answers.len());
                begin = send.messages_end;
            }
            Ok(())
        })?;
        (self.answers, self.answer_ends) = (answers, answer_ends);
        Ok((records, runs.end(py, &self.targets)))
    }

    fn all_answers<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Answers<'py>>, Vec<Bound<'py, PyAny>>)> {
        let mut told: Vec<Answers<'py>> = Vec::new();
        let (mut silent, mut begin, mut last) = (Vec::new(), 0, usize::MAX);
        for (send, end) in self.sends.iter().zip(&self.answer_ends) {
            let origin = self.reads[send.read].origin.bind(py);
            if *end == begin {
                silent.push(origin.clone());
                continue;
            }
            if last != send.read {
                last = send.read;
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

    fn take_one(&mut self, py: Python<'_>, data: &[u8], frame: Frame, limits: &Limits<'_, '_>) -> PyResult<Taken> {
        let begin = (self.properties.len(), self.messages.len(), self.sends.len());
        let taken = guarded(py, "send", || self.try_one(py, data, frame, limits)).unwrap_or(Ok(Taken::Unusual));
        if !matches!(taken, Ok(Taken::Yes)) {
            self.properties.truncate(begin.0);
            self.messages.truncate(begin.1);
            self.sends.truncate(begin.2);
        }
        taken
    }

    fn try_one(&mut self, py: Python<'_>, data: &[u8], frame: Frame, limits: &Limits<'_, '_>) -> PyResult<Taken> {
        let (Some(text), Some(body)) = (data.get(frame.header..frame.body), data.get(frame.body..frame.end)) else {
            return Ok(Taken::Unusual);
        };
        if !self.sends.is_empty() && self.bytes.saturating_add(body.len()) > limits.unit_bytes {
            return Ok(Taken::Full); // records are larger than what came: it is read once, for the next unit
        }
        let begin = self.properties.len();
        let Some((header, topic)) = parse(text, &mut self.properties) else { return Ok(Taken::Unusual) };
        if body.len() > limits.body_bytes || header.sys_flag & SPECIAL_SYS_FLAGS != 0 {
            return Ok(Taken::Unusual);
        }
        let Some(target) = self.targets.find(py, topic, limits.known)? else { return Ok(Taken::Unusual) };
        if !(0..self.targets.all[target].queue_count).contains(&header.queue_id) {
            return Ok(Taken::Unusual);
        }
        let first = self.messages.len();
        let whole = if header.is_batch {
            self.properties.truncate(begin); // of all of it: the twin passes over them, too
            self.add_batch(py, target, &data[..frame.end], frame.body)?
        } else {
            let body = (frame.body, frame.end);
            self.add_message(py, target, header.user_flag, body, begin)?
        };
        if !whole || self.messages.len() == first {
            return Ok(Taken::Unusual);
        }
        let size: usize = self.messages[first..].iter().map(|message| message.size).sum();
        if !self.sends.is_empty() && self.bytes + size > limits.unit_bytes {
            return Ok(Taken::Full);
        }
        let queue = self.targets.queue(py, target, header.queue_id)?;
        let read = self.reads.len() - 1;
        self.sends.push(Send { read, target, queue, frame, header, messages_end: self.messages.len() });
        self.bytes += size;
        self.targets.all[target].sends += 1;
        self.targets.all[target].bytes += size;
        Ok(Taken::Yes)
    }

    /// Add the messages of a batch from `at` to the end; whether it is sound, and all of them are usual.
    fn add_batch(&mut self, py: Python<'_>, target: usize, data: &[u8], mut at: usize) -> PyResult<bool> {
        while at < data.len() {
            let Some(message) = message_at(data, at) else { return Ok(false) };
            let begin = self.properties.len();
            self.properties.extend_from_slice(&data[message.properties.0..message.properties.1]);
            if !self.add_message(py, target, message.user_flag, message.body, begin)? {
                return Ok(false);
            }
            at = message.end;
        }
        Ok(true)
    }

    /// Add a message with the properties from `begin` on, if they are usual.
    fn add_message(
        &mut self,
        py: Python<'_>,
        target: usize,
        user_flag: i32,
        body: (usize, usize),
        begin: usize,
    ) -> PyResult<bool> {
        let properties = (begin, self.properties.len());
        let Some(layout) = self.targets.layout(py, target, properties.1 - begin)? else { return Ok(false) };
        let found = &self.targets.layouts[layout];
        if found.key_in(&self.properties[begin..]).is_none() {
            return Ok(false);
        }
        let tail = found.head.len() + (properties.1 - begin) + found.added.len();
        let size = HEAD_BYTES + (body.1 - body.0) + tail;
        self.messages.push(Message { layout, user_flag, body, properties, size });
        Ok(true)
    }

    /// Write a record to the front of `to`.
    fn add_record(
        &self,
        to: &mut &mut [u8],
        send: &Send,
        message: &Message,
        data: &[u8],
        stored: &Stored,
    ) -> io::Result<()> {
        let (header, layout) = (&send.header, &self.targets.layouts[message.layout]);
        let body = &data[message.body.0..message.body.1];
        let crc = crc32fast::hash(body) & 0x7FFF_FFFF;
        to.write_all(&(message.size as u32).to_be_bytes())?;
        to.write_all(&self.targets.all[send.target].magic.to_be_bytes())?;
        to.write_all(&crc.to_be_bytes())?;
        to.write_all(&header.queue_id.to_be_bytes())?;
        to.write_all(&message.user_flag.to_be_bytes())?;
        to.write_all(&stored.queue_offset.to_be_bytes())?;
        to.write_all(&stored.position.to_be_bytes())?;
        to.write_all(&(header.sys_flag & KEPT_SYS_FLAGS).to_be_bytes())?;
        to.write_all(&header.born_ms.to_be_bytes())?;
        to.write_all(&stored.born_host)?;
        to.write_all(&stored.now_ms.to_be_bytes())?;
        to.write_all(&stored.store_host)?;
        to.write_all(&header.reconsume_times.to_be_bytes())?;
        to.write_all(&0i64.to_be_bytes())?;
        to.write_all(&(body.len() as u32).to_be_bytes())?;
        to.write_all(body)?;
        to.write_all(&layout.head)?;
        to.write_all(&self.properties[message.properties.0..message.properties.1])?;
        to.write_all(&layout.added)
    }

    /// Add the answer to a send whose first message stands at `first`: position, queue offset.
    fn answer(&self, to: &mut Vec<u8>, send: &Send, messages: &[Message], id_prefix: &[u8], first: (u64, i64)) {
        let (position, offset) = first;
        if send.header.is_batch {
            let behind = messages.iter().scan(position, |at, message| {
                let begin = *at;
                *at += message.size as u64;
                Some(begin)
            });
            add_batch_answer(to, &send.header, id_prefix, behind, offset);
            return;
        }
        for message in messages {
            let properties = &self.properties[message.properties.0..message.properties.1];
            let key = self.targets.layouts[message.layout].key_in(properties).unwrap_or_default();
            add_answer(to, &send.header, id_prefix, position, offset, key);
        }
    }
}
