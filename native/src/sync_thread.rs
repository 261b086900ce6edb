//! A thread that syncs files and never asks for the interpreter's lock.
//!
//! A Python thread that comes back from `fdatasync` competes for the lock with the event loop that it has to tell, and
//! takes it from the loop. This one tells by an eventfd, which the loop watches beside its sockets.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::catch_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::page_cache::numbered;

/// What the thread is at.
enum Work {
    None,
    Wanted(Vec<RawFd>),
    Running,
    /// The errno of the first file that failed, 0 if none did.
    Ended(i32),
}

struct State {
    work: Work,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    told: OwnedFd,
}

impl Shared {
    /// Nothing panics while it holds the lock, so a poisoned one holds nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        block_signals();
        while let Some(files) = self.next() {
            // A thread that ended would have the node wait for ever; a sync that is not known to be done has failed.
            let outcome = catch_unwind(|| sync_all(&files)).unwrap_or(libc::EIO);
            self.lock().work = Work::Ended(outcome);
            self.tell();
        }
    }

    /// Wait for what is to be synced; None once the thread is to end. What was submitted before that is still done.
    fn next(&self) -> Option<Vec<RawFd>> {
        let mut state = self.lock();
        loop {
            if let Work::Wanted(files) = &mut state.work {
                let files = std::mem::take(files);
                state.work = Work::Running;
                return Some(files);
            }
            if state.closing {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn tell(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of a value that lives on, written to a descriptor that this struct owns. It cannot fail:
        // the counter is read before the next sync may begin.
        unsafe { libc::write(self.told.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }
}

/// Signals are for threads of the interpreter, which has system calls begin again after them.
fn block_signals() {
    // SAFETY: the set is filled before it is used, and the old one is not asked for.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Sync file after file up to the first that fails; its errno, or 0.
fn sync_all(files: &[RawFd]) -> i32 {
    for file in files {
        loop {
            // SAFETY: no memory is passed. Who submitted the descriptor keeps it open until the outcome is taken.
            if unsafe { libc::fdatasync(*file) } == 0 {
                break;
            }
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            if errno != libc::EINTR {
                return errno;
            }
        }
    }
    0
}

/// One sync at a time: `submit` descriptors, wait until `fileno` is readable, `take` the outcome.
#[pyclass(frozen)]
pub struct SyncThread {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that has the thread: a child that is forked from it has this object only.
    process: u32,
}

#[pymethods]
impl SyncThread {
    #[new]
    fn new() -> PyResult<Self> {
        // SAFETY: no memory is passed; the result is owned below if it is a descriptor.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(numbered(&std::io::Error::last_os_error()));
        }
        // SAFETY: just opened, and nobody else's.
        let told = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let state = Mutex::new(State { work: Work::None, closing: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new(), told });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("dledger-sync".into())
            .spawn(move || serving.serve())
            .map_err(|error| PyOSError::new_err(format!("starting the sync thread failed: {error}")))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    /// The descriptor that is readable while an outcome waits to be taken; it lives as long as this object.
    fn fileno(&self) -> RawFd {
        self.shared.told.as_raw_fd()
    }

    /// Begin to sync these descriptors, in this order. They must stay open until the outcome is taken.
    ///
    /// Raises RuntimeError while an outcome is awaited, after `close`, and in a child that was forked.
    fn submit(&self, descriptors: Vec<RawFd>) -> PyResult<()> {
        self.check_process()?;
        let mut state = self.shared.lock();
        if state.closing {
            return Err(PyRuntimeError::new_err("the sync thread is closed"));
        }
        if !matches!(state.work, Work::None) {
            return Err(PyRuntimeError::new_err("a sync is under way"));
        }
        state.work = Work::Wanted(descriptors);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// The errno of the sync that ended, 0 if it succeeded; None if none has ended since the last call.
    ///
    /// Raises RuntimeError in a child that was forked.
    fn take(&self) -> PyResult<Option<i32>> {
        self.check_process()?;
        let mut state = self.shared.lock();
        let Work::Ended(outcome) = state.work else { return Ok(None) };
        state.work = Work::None;
        drop(state);
        let mut count = 0u64;
        // SAFETY: eight bytes into a value that lives on, from a descriptor that this object owns. If the thread has
        // not told yet, what it tells later wakes the loop once for nothing.
        unsafe { libc::read(self.shared.told.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        Ok(Some(outcome))
    }

    /// Wait for what was submitted, and end the thread; its outcome can still be taken. Blocks so long.
    ///
    /// Raises RuntimeError in a child that was forked.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| {
            if let Some(thread) = self.end() {
                let _ = thread.join(); // it does not panic
            }
        });
        Ok(())
    }
}

impl SyncThread {
    /// A forked child has no such thread, and its copy of the lock may be held for ever: nothing there may wait for either.
    fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this sync thread belongs to process {}; process {} was forked from it and cannot use it",
            self.process,
            std::process::id()
        )))
    }

    /// Tell the thread to end once it has done what was submitted.
    fn end(&self) -> Option<JoinHandle<()>> {
        self.shared.lock().closing = true;
        self.shared.changed.notify_one();
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for SyncThread {
    /// Does not wait for the thread: the interpreter's lock is held here, and the disk may hang.
    fn drop(&mut self) {
        if std::process::id() == self.process {
            drop(self.end());
        }
    }
}
