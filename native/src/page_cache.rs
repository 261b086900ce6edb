//! Reads of what the page cache has: `OsFile.pread_nowait` of `dledger/store/disk.py`, straight into the bytes that it
//! returns. The interpreter's lock is kept, for nothing here waits; a thread that let go of it would compete for it.

use std::io::Error;
use std::os::fd::RawFd;

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
    let mut outcome = Ok(0);
    let bytes = PyBytes::new_with(py, size, |buffer| {
        outcome = read_at_once(descriptor, buffer, offset);
        Ok(())
    })?;
    match outcome {
        Ok(count) => Ok((count == size).then_some(bytes)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::EOPNOTSUPP | libc::EINVAL) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

fn read_at_once(descriptor: RawFd, buffer: &mut [u8], offset: i64) -> Result<usize, Error> {
    let piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `piece` is the whole of `buffer`, which nothing else uses before the call returns.
    let count = unsafe { libc::preadv2(descriptor, &piece, 1, offset, libc::RWF_NOWAIT) };
    usize::try_from(count).map_err(|_| Error::last_os_error())
}
