//! The JSON header of an ordinary send or batch: as clients write it, without white space, each name once, numbers in their
//! shortest form. Whatever else may mean the same is not taken here; the decoder of the twin
//! (`dledger_remoting.hotpath.SendV2`) reads every form.

pub const ONEWAY: i32 = 2;
const RESPONSE: i32 = 1;
const SEND: i32 = 310;
const SEND_BEGINNING: &[u8] = b"{\"code\":310,";
const BATCH: i32 = 320;
const BATCH_BEGINNING: &[u8] = b"{\"code\":320,";
/// The fields a to h, of which none may be missing.
const REQUIRED: u32 = 0xFF;

/// What a send says of itself, but for topic and properties.
#[derive(Default)]
pub struct SendHeader {
    pub code: i32,
    pub is_batch: bool,
    pub is_from_go: bool,
    pub opaque: i32,
    pub flag: i32,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub user_flag: i32,
    pub reconsume_times: i32,
}

struct Text<'a> {
    rest: &'a [u8],
}

impl<'a> Text<'a> {
    fn skip(&mut self, what: u8) -> Option<()> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        (*first == what).then_some(())
    }

    fn next(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// A string's characters as they stand there, ASCII alone, and whether some are escaped.
    fn string(&mut self) -> Option<(&'a [u8], bool)> {
        self.skip(b'"')?;
        let (mut at, mut escaped) = (0, false);
        loop {
            match *self.rest.get(at)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    at += 2;
                }
                0..0x20 | 0x80.. => return None,
                _ => at += 1,
            }
        }
        let (found, rest) = self.rest.split_at(at);
        self.rest = &rest[1..];
        Some((found, escaped))
    }

    fn plain(&mut self) -> Option<&'a [u8]> {
        let (found, escaped) = self.string()?;
        (!escaped).then_some(found)
    }

    /// A number's characters, outside a string.
    fn digits(&mut self) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !matches!(byte, b'-' | b'0'..=b'9')).unwrap_or(self.rest.len());
        let (found, rest) = self.rest.split_at(end);
        self.rest = rest;
        found
    }

    /// Whether the object goes on with a comma; false at its end, which is skipped.
    fn goes_on(&mut self) -> Option<bool> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        match first {
            b',' => Some(true),
            b'}' => Some(false),
            _ => None,
        }
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    let positive = digits.strip_prefix(b"-").unwrap_or(digits);
    let shortest = match positive {
        [] => false,
        [b'0'] => positive.len() == digits.len(),
        [first, ..] => *first != b'0',
    };
    if !shortest || !positive.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn number32(digits: &[u8]) -> Option<i32> {
    number(digits)?.try_into().ok()
}

fn is_bool(text: &[u8]) -> Option<bool> {
    match text {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// Append what an escaped string stands for, if that is ASCII.
fn unescape(text: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'\\' {
            to.push(*first);
            continue;
        }
        let (kind, behind) = rest.split_first()?;
        rest = behind;
        to.push(match kind {
            b'"' | b'\\' | b'/' => *kind,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let digits = rest.get(..4)?;
                rest = &rest[4..];
                let [b'0', b'0', high @ b'0'..=b'7', low] = digits else { return None };
                (high - b'0') << 4 | char::from(*low).to_digit(16)? as u8
            }
            _ => return None,
        });
    }
    Some(())
}

/// The fields of a send and its topic; its properties are appended to `properties`, which holds anything after a None.
pub fn parse<'a>(header: &'a [u8], properties: &mut Vec<u8>) -> Option<(SendHeader, &'a [u8])> {
    let (code, rest) = match header.strip_prefix(SEND_BEGINNING) {
        Some(rest) => (SEND, rest),
        None => (BATCH, header.strip_prefix(BATCH_BEGINNING)?),
    };
    let mut text = Text { rest };
    let mut send = SendHeader { code, is_batch: code == BATCH, ..SendHeader::default() };
    let mut topic: &[u8] = b"";
    let mut seen = 0u32;
    let mut once = |place: u32| {
        let is_first = seen & 1 << place == 0;
        seen |= 1 << place;
        is_first.then_some(())
    };
    let mut required = 0;
    loop {
        let name = text.plain()?;
        text.skip(b':')?;
        match name {
            b"extFields" => {
                once(0)?;
                required = fields(&mut text, &mut send, &mut topic, properties)?;
            }
            b"flag" => {
                once(1)?;
                send.flag = number32(text.digits())?;
            }
            b"opaque" => {
                once(2)?;
                send.opaque = number32(text.digits())?;
            }
            b"version" => {
                once(3)?;
                number32(text.digits())?;
            }
            b"language" => {
                once(4)?;
                send.is_from_go = text.plain()? == b"GO";
            }
            b"serializeTypeCurrentRPC" => {
                once(5)?;
                text.plain()?;
            }
            _ => return None,
        }
        if !text.goes_on()? {
            break;
        }
    }
    let whole = text.rest.is_empty() && seen & 0b101 == 0b101 && required & REQUIRED == REQUIRED;
    (whole && send.flag & RESPONSE == 0).then_some((send, topic))
}

/// The fields with one-letter names; which of them there are, a bit for each letter.
fn fields<'a>(
    text: &mut Text<'a>,
    send: &mut SendHeader,
    topic: &mut &'a [u8],
    properties: &mut Vec<u8>,
) -> Option<u32> {
    let mut seen = 0u32;
    text.skip(b'{')?;
    loop {
        let [letter @ b'a'..=b'n'] = text.plain()? else { return None };
        let bit = 1u32 << (letter - b'a');
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        text.skip(b':')?;
        if text.next()? != b'"' {
            return None;
        }
        if *letter == b'i' {
            match text.string()? {
                (plain, false) => properties.extend_from_slice(plain),
                (escaped, true) => unescape(escaped, properties)?,
            }
        } else {
            let value = text.plain()?;
            match letter {
                b'a' | b'c' | b'n' => {}
                b'b' => *topic = value,
                b'e' => send.queue_id = number32(value)?,
                b'f' => send.sys_flag = number32(value)?,
                b'g' => send.born_ms = number(value)?,
                b'h' => send.user_flag = number32(value)?,
                b'j' => send.reconsume_times = number32(value)?,
                b'd' | b'l' => {
                    number32(value)?;
                }
                b'k' => {
                    is_bool(value)?;
                }
                _ => send.is_batch |= is_bool(value)?,
            }
        }
        if !text.goes_on()? {
            return Some(seen);
        }
    }
}
