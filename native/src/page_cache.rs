//! Reads of what the page cache has: `OsFile.pread_nowait` of `dledger/store/disk.py`, straight into the bytes that it
//! returns. The interpreter's lock is kept, for nothing here waits; a thread that let go of it would compete for it.

use std::io::Error;
use std::os::fd::RawFd;

use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// All `size` bytes at `offset` of a file; None if that would block, the file ends before, or its file system cannot tell.
#[pyfunction]
pub fn pread_nowait<'py>(
    py: Python<'py>,
    descriptor: RawFd,
    size: usize,
    offset: i64,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let mut bytes = Unfilled::new(py, size)?;
    match bytes.read(descriptor, size, offset) {
        Ok(_) => Ok(bytes.filled()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::EOPNOTSUPP | libc::EINVAL) => Ok(None),
            _ => Err(numbered(&error)),
        },
    }
}

/// An `OSError` with the number of an error: who reads tells by it that a sector is bad. PyO3's own conversion has the
/// words only.
pub fn numbered(error: &Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error().unwrap_or(libc::EIO), error.to_string()))
}

/// A bytes object that nobody has until it is full. To write zeros into it first, as `PyBytes::new_with` does, took a
/// tenth of a read.
pub struct Unfilled<'py> {
    bytes: Bound<'py, PyBytes>,
    size: usize,
    done: usize,
}

impl<'py> Unfilled<'py> {
    pub fn new(py: Python<'py>, size: usize) -> PyResult<Self> {
        let length = ffi::Py_ssize_t::try_from(size).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: without a source this makes an object of `length` bytes, or is null, which is an error. None of them is
        // an object of others, but for the empty one, into which nothing is written.
        let bytes = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
            Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>()
        };
        Ok(Self { bytes, size, done: 0 })
    }

    /// Read the next `size` bytes from a file; false if there is no room for them, or the page cache has not got them all.
    pub fn read(&mut self, descriptor: RawFd, size: usize, offset: i64) -> Result<bool, Error> {
        if size > self.size - self.done {
            return Ok(false);
        }
        // SAFETY: behind the `done` first there are `size` bytes, which nobody else sees before they are written.
        let count = unsafe {
            let place = ffi::PyBytes_AsString(self.bytes.as_ptr()).cast::<u8>().add(self.done);
            let piece = libc::iovec { iov_base: place.cast(), iov_len: size };
            libc::preadv2(descriptor, &piece, 1, offset, libc::RWF_NOWAIT)
        };
        let count = usize::try_from(count).map_err(|_| Error::last_os_error())?;
        if count == size {
            self.done += size;
        }
        Ok(count == size)
    }

    /// The object, None if it is not full.
    pub fn filled(self) -> Option<Bound<'py, PyBytes>> {
        (self.done == self.size).then_some(self.bytes)
    }
}
