//! Guard between what is native and the interpreter: a panic ends the call, and nothing else.
//!
//! PyO3 turns a panic into `PanicException`, which is no `Exception`: it would pass everything in a node that handles
//! errors. No input is known that makes this module panic. If there is one, the call says what it says of input that is
//! not for it, and the twin in Python does the work; whoever asked by `on_panic` is told of the first.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(dledger_native, Panicked, PyRuntimeError, "A fault of the native part ended a call of it.");

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    /// What the last panic under guard said, and where.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();
static TELL: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
static IS_ASKED: AtomicBool = AtomicBool::new(false);
static ASKED: Mutex<String> = Mutex::new(String::new());

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keep what panics under guard say, rather than print it. Others are printed as usual.
pub fn install_hook() {
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if GUARDED.get() {
                SAID.set(panic.to_string().replace('\n', " "));
            } else {
                usual(panic);
            }
        }));
    });
}

/// Call this with (function, what was said) at the next panic, once. Takes the place of who asked before.
#[pyfunction]
pub fn on_panic(tell: Py<PyAny>) {
    let before = lock(&TELL).replace(tell);
    drop(before); // no object may end while the lock is held: what ends it is anybody's code
}

/// For tests: the next call of this function, or of this part of one, panics. Nothing but code of this process can ask for it.
#[pyfunction]
pub fn panic_at_next(function: String) {
    *lock(&ASKED) = function;
    IS_ASKED.store(true, Ordering::Relaxed);
}

pub fn panic_if_asked(function: &str) {
    if IS_ASKED.load(Ordering::Relaxed) && *lock(&ASKED) == function {
        IS_ASKED.store(false, Ordering::Relaxed);
        panic!("asked for by a test");
    }
}

/// What `work` gives; None if it panics, which is told.
pub fn guarded<T>(py: Python<'_>, function: &str, work: impl FnOnce() -> T) -> Option<T> {
    let before = GUARDED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        panic_if_asked(function);
        work()
    }));
    GUARDED.set(before);
    outcome.map_err(|panic| tell(py, function, panic)).ok()
}

/// The same of what can fail: `Panicked` if it panics.
pub fn guarded_result<T>(py: Python<'_>, function: &str, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let panicked = || Err(Panicked::new_err(format!("the native part panicked in {function}")));
    guarded(py, function, work).unwrap_or_else(panicked)
}

fn tell(py: Python<'_>, function: &str, panic: Box<dyn Any + Send>) {
    drop(panic);
    let said = SAID.take();
    let told = lock(&TELL).take();
    if let Some(Err(error)) = told.map(|tell| tell.call1(py, (function, said))) {
        error.write_unraisable(py, None);
    }
}
