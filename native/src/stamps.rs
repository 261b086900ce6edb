//! Stamps of units in the files of consume queues: `stamped` of the broker's `views/stamps.py`, which says what they are.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::guarded;
use crate::select::UNIT_BYTES;

/// The place of the stamp in a unit.
const STAMP: std::ops::Range<usize> = 12..16;
/// The polynomial of `crc32`, reflected.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Table of `crc32`: the change of the state for each value of a byte.
const FORWARD: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
            bit += 1;
        }
        table[byte] = state;
        byte += 1;
    }
    table
};

/// The byte whose entry of `FORWARD` has this upper byte: each has another one.
const BACKWARD: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[(FORWARD[byte] >> 24) as usize] = byte as u8;
        byte += 1;
    }
    table
};

fn forward(state: u32, byte: u8) -> u32 {
    FORWARD[usize::from(state.to_le_bytes()[0] ^ byte)] ^ state >> 8
}

/// The state from which a byte leads to this one.
fn backward(state: u32, byte: u8) -> u32 {
    let place = BACKWARD[usize::from(state.to_be_bytes()[0])];
    (state ^ FORWARD[usize::from(place)]) << 8 | u32::from(place ^ byte)
}

/// Give a unit the stamp with which `crc32` leads from one value to another.
fn stamp(unit: &mut [u8], before: u32, after: u32) {
    let state = unit[..STAMP.start].iter().fold(!before, |state, &byte| forward(state, byte));
    let wanted = unit[STAMP.end..].iter().rev().fold(!after, |state, &byte| backward(state, byte));
    let wanted = (0..4).fold(wanted, |state, _| backward(state, 0));
    unit[STAMP].copy_from_slice(&(state ^ wanted).to_le_bytes());
}

/// Runs of units with stamps; each comes with the state in front of it. None of what is no units.
#[pyfunction]
pub fn stamp_units<'py>(py: Python<'py>, runs: Vec<(Bound<'py, PyBytes>, u32)>) -> Option<Vec<Bound<'py, PyBytes>>> {
    let all = guarded(py, "stamp_units", || {
        runs.iter()
            .map(|(units, before)| {
                let mut stamped = units.as_bytes().to_vec();
                if stamped.len() % UNIT_BYTES != 0 {
                    return None;
                }
                let mut state = *before;
                for unit in stamped.chunks_exact_mut(UNIT_BYTES) {
                    let after = state.wrapping_add(1);
                    stamp(unit, state, after);
                    state = after;
                }
                Some(PyBytes::new(py, &stamped))
            })
            .collect()
    });
    all.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_leads_from_state_to_state() {
        for before in [0, 7, u32::MAX] {
            let mut unit: Vec<u8> = (0..20).map(|byte| byte * 11).collect();
            stamp(&mut unit, before, before.wrapping_add(1));
            let mut hasher = crc32fast::Hasher::new_with_initial(before);
            hasher.update(&unit);
            assert_eq!(hasher.finalize(), before.wrapping_add(1));
        }
    }
}
