//! What a unit adds to each of its queues: offsets that are handed out, and the units of its consume queue.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::panic_if_asked;
use crate::targets::Targets;

/// A queue, its offset after the last record, the units.
pub type QueueRun<'py> = (Bound<'py, PyAny>, i64, Bound<'py, PyBytes>);

/// Of one queue.
pub struct Run {
    queue: usize,
    pub next_offset: i64,
    units: Vec<u8>,
}

impl Run {
    /// Add a record's unit; None if there is no offset behind it.
    pub fn add(&mut self, position: u64, size: usize, tag_code: i64) -> Option<()> {
        self.next_offset = self.next_offset.checked_add(1)?;
        self.units.extend_from_slice(&position.to_be_bytes());
        self.units.extend_from_slice(&(size as u32).to_be_bytes());
        self.units.extend_from_slice(&tag_code.to_be_bytes());
        Some(())
    }
}

/// In the order of their first records.
pub struct Runs {
    all: Vec<Run>,
    /// By the queue's place in `Targets::queues`.
    places: Vec<Option<usize>>,
}

impl Runs {
    pub fn new(targets: &Targets) -> Self {
        Self { all: Vec::new(), places: vec![None; targets.queues.len()] }
    }

    /// The run of a queue; the first one goes on from its staged offset.
    pub fn of(&mut self, py: Python<'_>, targets: &Targets, queue: usize) -> PyResult<&mut Run> {
        let place = match self.places[queue] {
            Some(place) => place,
            None => {
                let next_offset = targets.queues[queue].bind(py).getattr(intern!(py, "staged_offset"))?.extract()?;
                self.all.push(Run { queue, next_offset, units: Vec::new() });
                self.places[queue] = Some(self.all.len() - 1);
                self.all.len() - 1
            }
        };
        Ok(&mut self.all[place])
    }

    /// Tell all of them. The queues' staged offsets do not go on yet: if this fails at the last of them, the sends are
    /// handed back, and offsets used for nothing would be a gap that no replica can apply.
    pub fn end<'py>(self, py: Python<'py>, targets: &Targets) -> Vec<QueueRun<'py>> {
        let tell = |run: Run| {
            let units = PyBytes::new(py, &run.units);
            panic_if_asked("the end of encode");
            (targets.queues[run.queue].bind(py).clone(), run.next_offset, units)
        };
        self.all.into_iter().map(tell).collect()
    }
}
