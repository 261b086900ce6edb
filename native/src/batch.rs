//! Messages in the body of a batch. Format: the table in `dledger_remoting/batch.py`.

const HEAD_BYTES: usize = 20;
const PROPERTIES_LENGTH_BYTES: usize = 2;

/// A message of a batch; `body` and `properties` are its parts of the data, `end` is behind it.
pub struct BatchMessage {
    pub user_flag: i32,
    pub body: (usize, usize),
    pub properties: (usize, usize),
    pub end: usize,
}

fn length_at(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(i32::from_be_bytes(bytes)).ok()
}

/// The message that begins at `begin`; None if it is cut off, or a length contradicts another.
pub fn message_at(data: &[u8], begin: usize) -> Option<BatchMessage> {
    let end = begin.checked_add(length_at(data, begin)?)?;
    let message = data.get(begin..end)?;
    let flag = message.get(12..16)?.try_into().ok()?;
    let body_end = HEAD_BYTES.checked_add(length_at(message, 16)?)?;
    let properties = body_end.checked_add(PROPERTIES_LENGTH_BYTES)?;
    let length = message.get(body_end..properties)?;
    if properties + (usize::from(length[0]) << 8 | usize::from(length[1])) != message.len() {
        return None;
    }
    Some(BatchMessage {
        user_flag: i32::from_be_bytes(flag),
        body: (begin + HEAD_BYTES, begin + body_end),
        properties: (begin + properties, end),
        end,
    })
}
