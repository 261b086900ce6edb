//! Topics and queues that the sends of a turn go to, each looked up once.

use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::layout::Layout;
use crate::places::Places;

/// A topic, and what of it has been used.
pub struct Target {
    pub object: Py<PyAny>,
    pub queue_count: i32,
    pub magic: u32,
    by_id: Py<PyList>,
    layouts: Py<PyDict>,
    /// By length of properties: the place in `Targets::layouts`, None where nothing was known.
    known_layouts: HashMap<usize, Option<usize>>,
    /// By queue id: the place in `Targets::queues`.
    queues: HashMap<i32, usize>,
    pub sends: usize,
    pub bytes: usize,
}

/// What was looked up; everything is named by its place here.
#[derive(Default)]
pub struct Targets {
    pub all: Vec<Target>,
    pub layouts: Vec<Layout>,
    pub queues: Vec<Py<PyAny>>,
    /// By name, the place in `all` of each topic that was found since `begin`.
    topics: Places<Vec<u8>>,
    /// By address, the place in `queues`, which keeps the objects alive: a topic that was found twice has its queues once.
    addresses: Places<usize>,
}

impl Targets {
    /// Look up every topic anew from here on: those that were found may have changed.
    pub fn begin(&mut self) {
        self.topics.clear();
    }

    /// The place of a topic that takes ordinary sends.
    pub fn find(&mut self, py: Python<'_>, topic: &[u8], known: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        if let Some(place) = self.topics.of(topic) {
            return Ok(Some(place));
        }
        let Ok(name) = std::str::from_utf8(topic) else { return Ok(None) };
        let object = known.call1((name,))?;
        if object.is_none() || object.getattr(intern!(py, "idempotent"))?.is_truthy()? {
            return Ok(None);
        }
        self.all.push(Target {
            queue_count: object.getattr(intern!(py, "queue_count"))?.extract()?,
            magic: object.getattr(intern!(py, "magic"))?.extract()?,
            by_id: object.getattr(intern!(py, "by_id"))?.extract()?,
            layouts: object.getattr(intern!(py, "layouts"))?.extract()?,
            object: object.unbind(),
            known_layouts: HashMap::new(),
            queues: HashMap::new(),
            sends: 0,
            bytes: 0,
        });
        let place = self.all.len() - 1;
        self.topics.put(topic.to_vec(), place);
        Ok(Some(place))
    }

    /// The place of the layout of properties of this length; None where the twin has completed none.
    pub fn layout(&mut self, py: Python<'_>, target: usize, length: usize) -> PyResult<Option<usize>> {
        let target = &mut self.all[target];
        if let Some(known) = target.known_layouts.get(&length) {
            return Ok(*known);
        }
        let found = Layout::of(target.layouts.bind(py), length)?.map(|layout| {
            self.layouts.push(layout);
            self.layouts.len() - 1
        });
        target.known_layouts.insert(length, found);
        Ok(found)
    }

    /// The place of a queue of the topic.
    pub fn queue(&mut self, py: Python<'_>, target: usize, queue_id: i32) -> PyResult<usize> {
        let found = &self.all[target];
        if let Some(known) = found.queues.get(&queue_id) {
            return Ok(*known);
        }
        let mut queue = found.by_id.bind(py).get_item(queue_id as usize)?;
        if queue.is_none() {
            queue = found.object.bind(py).call_method1(intern!(py, "queue"), (queue_id,))?;
        }
        let address = queue.as_ptr() as usize;
        let place = match self.addresses.of(&address) {
            Some(place) => place,
            None => {
                self.queues.push(queue.unbind());
                self.addresses.put(address, self.queues.len() - 1);
                self.queues.len() - 1
            }
        };
        self.all[target].queues.insert(queue_id, place);
        Ok(place)
    }
}
