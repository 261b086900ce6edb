//! Reads of what the page cache has: `OsFile.pread_nowait` of `dledger/store/disk.py`, straight into the bytes that it
//! returns. The interpreter's lock is kept, for nothing here waits; a thread that let go of it would compete for it.

use std::io::Error;
use std::os::fd::RawFd;

use pyo3::exceptions::PyMemoryError;
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
    let (bytes, buffer) = uninitialized(py, size)?;
    match read_at_once(descriptor, buffer, size, offset) {
        Ok(count) => Ok((count == size).then_some(bytes)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::EOPNOTSUPP | libc::EINVAL) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// A bytes object that nobody else has yet, and its content, which is anything until it is written. To fill it with zeros
/// first, as `PyBytes::new_with` does, took a tenth of a read.
pub fn uninitialized(py: Python<'_>, size: usize) -> PyResult<(Bound<'_, PyBytes>, *mut libc::c_void)> {
    let length = ffi::Py_ssize_t::try_from(size).map_err(|_| PyMemoryError::new_err(()))?;
    // SAFETY: without a source this makes an object of `length` bytes; null, which the second call takes, is an error.
    unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        let bytes = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>();
        let content = ffi::PyBytes_AsString(bytes.as_ptr());
        Ok((bytes, content.cast()))
    }
}

pub fn read_at_once(descriptor: RawFd, buffer: *mut libc::c_void, size: usize, offset: i64) -> Result<usize, Error> {
    let piece = libc::iovec { iov_base: buffer, iov_len: size };
    // SAFETY: `buffer` has `size` bytes, which nothing else uses before the call returns.
    let count = unsafe { libc::preadv2(descriptor, &piece, 1, offset, libc::RWF_NOWAIT) };
    usize::try_from(count).map_err(|_| Error::last_os_error())
}
