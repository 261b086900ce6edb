//! What a node does faster outside the interpreter.
//!
//! Everything here has a twin in Python, which is the reference: `dledger.native_part` chooses between them, and
//! `tests/native` compares them on arbitrary input.

use pyo3::prelude::*;

mod answers;
mod batch;
mod guard;
mod layout;
mod page_cache;
mod places;
mod pulls;
mod records;
mod runs;
mod select;
mod send_header;
mod sends;
mod stamps;
mod sync_thread;
mod targets;

/// Number of what this module offers. `dledger.native_part` takes the number that it was written for, and no other one.
const INTERFACE: u32 = 11;
/// The sources that it was built from, see `build.rs`. `install.py` looks for this text in wheels, and
/// `dledger.native_part` passes over a module that was built from other sources.
const SOURCES: &str = concat!("dledger_native sources ", env!("SOURCES_CRC"));

#[pymodule]
fn dledger_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    guard::install_hook();
    module.add("INTERFACE", INTERFACE)?;
    module.add("SOURCES", SOURCES)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Panicked", module.py().get_type::<guard::Panicked>())?;
    module.add_class::<sync_thread::SyncThread>()?;
    module.add_class::<sends::SendRun>()?;
    module.add_function(wrap_pyfunction!(guard::on_panic, module)?)?;
    module.add_function(wrap_pyfunction!(guard::panic_at_next, module)?)?;
    module.add_function(wrap_pyfunction!(page_cache::pread_nowait, module)?)?;
    module.add_function(wrap_pyfunction!(pulls::read_pulls, module)?)?;
    module.add_function(wrap_pyfunction!(records::scan_runs, module)?)?;
    module.add_function(wrap_pyfunction!(select::select_units, module)?)?;
    module.add_function(wrap_pyfunction!(stamps::stamp_units, module)?)?;
    module.add_function(wrap_pyfunction!(records::scan_keys, module)?)
}
