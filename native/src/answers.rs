//! Answers to sends: the twin's `stored_response_frame`, and `send_response_frame` of a batch.

use std::io::Write;

use crate::send_header::SendHeader;

const BEGINNING: &[u8] = b"{\"code\":0,\"extFields\":{\"msgId\":\"";
const TRACE_SWITCH: &[u8] = b",\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"";

/// Add the answer to a send of one message, whose unique key is `key`.
pub fn add_answer(
    answers: &mut Vec<u8>,
    header: &SendHeader,
    id_prefix: &[u8],
    position: u64,
    offset: i64,
    key: &[u8],
) {
    let begin = begin_answer(answers);
    add_id(answers, id_prefix, position);
    add_place(answers, header, offset);
    answers.extend_from_slice(b",\"transactionId\":\"");
    answers.extend_from_slice(key);
    answers.push(b'"');
    end_answer(answers, header, begin);
}

/// Add the answer to a batch, of which the first message has the offset `offset`.
pub fn add_batch_answer(
    answers: &mut Vec<u8>,
    header: &SendHeader,
    id_prefix: &[u8],
    positions: impl Iterator<Item = u64>,
    offset: i64,
) {
    let begin = begin_answer(answers);
    for (number, position) in positions.enumerate() {
        if number > 0 {
            answers.push(b',');
        }
        add_id(answers, id_prefix, position);
    }
    add_place(answers, header, offset);
    if header.is_from_go {
        answers.extend_from_slice(TRACE_SWITCH);
    }
    end_answer(answers, header, begin);
}

fn begin_answer(answers: &mut Vec<u8>) -> usize {
    let begin = answers.len();
    answers.extend_from_slice(&[0; 8]);
    answers.extend_from_slice(BEGINNING);
    begin
}

/// The prefix, and the position in 16 digits.
fn add_id(answers: &mut Vec<u8>, id_prefix: &[u8], position: u64) {
    answers.extend_from_slice(id_prefix);
    answers.extend((0..16).rev().map(|digit| b"0123456789ABCDEF"[(position >> (4 * digit)) as usize & 0xF]));
}

// Writing to a vector cannot fail.

fn add_place(answers: &mut Vec<u8>, header: &SendHeader, offset: i64) {
    let queue_id = header.queue_id;
    let _ = write!(answers, "\",\"queueId\":\"{queue_id}\",\"queueOffset\":\"{offset}\"");
}

fn end_answer(answers: &mut Vec<u8>, header: &SendHeader, begin: usize) {
    let opaque = header.opaque;
    let _ = write!(
        answers,
        "}},\"flag\":1,\"language\":\"JAVA\",\"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}}"
    );
    let length = (answers.len() - begin - 8) as u32;
    answers[begin..begin + 4].copy_from_slice(&(length + 4).to_be_bytes());
    answers[begin + 4..begin + 8].copy_from_slice(&length.to_be_bytes());
}
