//! `GET /files/download`: a whole file, a byte range, or a window of lines, in constant memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use protocol::execd::code;

use super::line_window::LineWindow;
use super::off_loop;
use super::path::{Asked, Parents, Resolve};
use crate::blocking;
use crate::environment::Paths;
use crate::error::{ApiError, Result};
use crate::http::{Answer, ByteSender, Query, empty, stream};

/// Bytes read at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Sends a file, or the part of it that is asked for.
///
/// # Errors
/// 404 for a missing file, 400 for what is no regular file or a bad window, 416 for a bad range.
pub async fn download(paths: &Paths, request: Request<Incoming>, query: Query, resolve: Resolve) -> Result<Answer> {
    let asked = Asked::new(paths, query.require("path")?, resolve)?;
    let headers = request.headers();
    let window = window(&query, headers.contains_key(header::RANGE))?;
    let shown = asked.shown.clone();
    let Opened { file, length, modified, endless } = off_loop(move || open(&asked)).await?;
    if let Some(window) = window {
        let (sender, answer) = stream("text/plain; charset=utf-8", None);
        tokio::task::spawn_local(send_filtered(file, Filter::Lines(window), sender));
        return Ok(answer);
    }
    if let Some(status) = precondition(headers, modified) {
        let mut answer = empty();
        *answer.status_mut() = status;
        set_modified(&mut answer, modified);
        return Ok(answer);
    }
    let range = match headers.get(header::RANGE) {
        Some(range) if range_applies(headers, modified) => match byte_range(range, length, &shown)? {
            Some(range) => Some(range),
            None => return Ok(unsatisfiable(length, &shown)),
        },
        _ => None,
    };
    let (start, end) = range.unwrap_or((0, length));
    let promised = (!endless).then_some(end - start);
    let (sender, mut answer) = stream("application/octet-stream", promised);
    let answer_headers = answer.headers_mut();
    answer_headers.insert(header::CONTENT_DISPOSITION, disposition(&shown));
    answer_headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if range.is_some() {
        answer_headers.insert(header::CONTENT_RANGE, content_range(&format!("{start}-{}/{length}", end - 1)));
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    set_modified(&mut answer, modified);
    match promised {
        Some(bytes) => tokio::task::spawn_local(send_range(file, start, bytes, PIECE_BYTES, sender)),
        None => tokio::task::spawn_local(send_filtered(file, Filter::None, sender)),
    };
    Ok(answer)
}

struct Opened {
    file: File,
    length: u64,
    modified: SystemTime,
    /// A file of /proc or /sys says that it is empty and is not: it is sent to its end.
    endless: bool,
}

fn open(asked: &Asked) -> Result<Opened> {
    use std::os::unix::fs::OpenOptionsExt;
    let place = asked.locate(Parents::Existing)?.pin()?;
    let found = place.stat_if_exists()?.ok_or_else(|| ApiError::not_found(&place.shown))?;
    if found.is_dir() {
        return Err(ApiError::file(format!(
            "{}: is a directory; list it, or pack it into an archive first",
            place.shown
        )));
    }
    let failed = |error| place.failed("open", &error);
    // Without O_NONBLOCK a pipe put there meanwhile would hold the worker.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&place.path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(ApiError::file(format!("{}: is not a regular file", place.shown)));
    }
    let endless = found.len() == 0 && file.read_at(&mut [0], 0).map_err(failed)? > 0;
    Ok(Opened { file, length: found.len(), modified: found.modified().map_err(failed)?, endless })
}

fn window(query: &Query, has_range: bool) -> Result<Option<LineWindow>> {
    let number = |name: &str| match query.get(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => {
            let parsed = value.parse::<u64>().ok().filter(|number| *number > 0);
            parsed.map(Some).ok_or_else(|| ApiError::body(format!("{name}: {value:?} is not a number from 1 on")))
        }
    };
    let (offset, limit) = (number("offset")?, number("limit")?);
    if offset.is_none() && limit.is_none() {
        return Ok(None);
    }
    if has_range {
        return Err(ApiError::body("offset and limit count lines and do not go with a Range of bytes"));
    }
    Ok(Some(LineWindow::new(offset.unwrap_or(1), limit.unwrap_or(u64::MAX))))
}

/// 304 or 412 by the file's time, in whole seconds as HTTP writes it.
fn precondition(headers: &HeaderMap, modified: SystemTime) -> Option<StatusCode> {
    let modified = whole_seconds(modified)?;
    let date = |name: HeaderName| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok();
    if date(header::IF_UNMODIFIED_SINCE).is_some_and(|date| modified > date) {
        return Some(StatusCode::PRECONDITION_FAILED);
    }
    // With If-None-Match the date is not looked at; we give no tags, so none can match.
    let unless_tagged = !headers.contains_key(header::IF_NONE_MATCH);
    let unchanged = date(header::IF_MODIFIED_SINCE).is_some_and(|date| modified <= date);
    (unless_tagged && unchanged).then_some(StatusCode::NOT_MODIFIED)
}

fn range_applies(headers: &HeaderMap, modified: SystemTime) -> bool {
    let Some(condition) = headers.get(header::IF_RANGE) else {
        return true;
    };
    let date = condition.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok());
    date.is_some() && date == whole_seconds(modified)
}

fn whole_seconds(time: SystemTime) -> Option<SystemTime> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs()))
}

fn set_modified(answer: &mut Answer, modified: SystemTime) {
    if let Some(modified) = whole_seconds(modified)
        && let Ok(value) = HeaderValue::try_from(httpdate::fmt_http_date(modified))
    {
        answer.headers_mut().insert(header::LAST_MODIFIED, value);
    }
}

/// The first satisfiable range as start and end; `None` when none is.
fn byte_range(range: &HeaderValue, length: u64, shown: &str) -> Result<Option<(u64, u64)>> {
    let malformed = || {
        let message = format!("{shown}: range {range:?} is malformed; write bytes=FIRST-LAST, FIRST- or -COUNT");
        ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, code::UNKNOWN, message)
    };
    let specs = range.to_str().ok().and_then(|text| text.strip_prefix("bytes=")).ok_or_else(malformed)?;
    let mut found = None;
    for spec in specs.split(',').map(str::trim).filter(|spec| !spec.is_empty()) {
        let (first, last) = spec.split_once('-').ok_or_else(malformed)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| malformed());
        let (start, end) = match (first.trim(), last.trim()) {
            ("", last) => (length.saturating_sub(number(last)?), length),
            (first, "") => (number(first)?, length),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first {
                    return Err(malformed());
                }
                (first, last.saturating_add(1).min(length))
            }
        };
        if start < end && found.is_none() {
            found = Some((start, end));
        }
    }
    Ok(found)
}

fn unsatisfiable(length: u64, shown: &str) -> Answer {
    let message = format!("{shown}: the range lies beyond the end of the file, {length} bytes");
    let mut answer = crate::http::refuse(ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, code::UNKNOWN, message));
    answer.headers_mut().insert(header::CONTENT_RANGE, content_range(&format!("*/{length}")));
    answer
}

fn content_range(range: &str) -> HeaderValue {
    HeaderValue::try_from(format!("bytes {range}")).expect("numbers and signs make a header value")
}

/// The file's name; a name that is not plain is percent-encoded, and given as UTF-8 beside it.
fn disposition(shown: &str) -> HeaderValue {
    let name = shown.rsplit('/').next().unwrap_or("");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" !#$&'()+,-.;=@[]^_`{}~".contains(&byte);
    let encoded: String = name
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let mut value = format!("attachment; filename=\"{encoded}\"");
    if !name.is_ascii() {
        let strict: String = encoded.replace(' ', "%20");
        value.push_str(&format!("; filename*=UTF-8''{strict}"));
    }
    HeaderValue::try_from(value).expect("percent-encoded text makes a header value")
}

/// Sends `left` bytes from `offset` on. A file that became shorter breaks the connection.
async fn send_range(file: File, offset: u64, left: u64, piece_bytes: usize, sender: ByteSender) {
    let (mut file, mut offset, mut left) = (file, offset, left);
    while left > 0 {
        let length = left.min(piece_bytes as u64) as usize;
        let read = blocking::run(move || {
            let mut piece = vec![0; length];
            let read = file.read_at(&mut piece, offset);
            (file, read.map(|read| (piece, read)))
        });
        let piece = match read.await {
            Ok((back, Ok((mut piece, read)))) if read > 0 => {
                file = back;
                piece.truncate(read);
                piece
            }
            Ok((_, Ok(_))) => {
                let _ = sender.send(Err(io::ErrorKind::UnexpectedEof.into())).await; // nobody reads any more
                return;
            }
            Ok((_, Err(error))) | Err(error) => {
                let _ = sender.send(Err(error)).await; // nobody reads any more
                return;
            }
        };
        offset += piece.len() as u64;
        left -= piece.len() as u64;
        if sender.send(Ok(Bytes::from(piece))).await.is_err() {
            return;
        }
    }
}

/// What a file passes through on its way.
enum Filter {
    None,
    Lines(LineWindow),
}

impl Filter {
    fn pass(&mut self, mut piece: Vec<u8>, length: usize) -> Vec<u8> {
        piece.truncate(length);
        let Self::Lines(window) = self else {
            return piece;
        };
        let mut out = Vec::new();
        if length == 0 {
            window.finish(&mut out);
        } else {
            window.feed(&piece, &mut out);
        }
        out
    }

    fn is_done(&self) -> bool {
        matches!(self, Self::Lines(window) if window.is_done())
    }
}

/// Sends a file to its end, wherever that turns out to be.
async fn send_filtered(file: File, filter: Filter, sender: ByteSender) {
    let (mut file, mut filter, mut offset) = (file, filter, 0u64);
    loop {
        let read = blocking::run(move || {
            let mut piece = vec![0; PIECE_BYTES];
            let read = file.read_at(&mut piece, offset).map(|length| (filter.pass(piece, length), length));
            (file, filter, read)
        });
        let error = match read.await {
            Ok((back_file, back_filter, Ok((out, length)))) => {
                (file, filter) = (back_file, back_filter);
                offset += length as u64;
                let last = length == 0 || filter.is_done();
                let sent = out.is_empty() || sender.send(Ok(Bytes::from(out))).await.is_ok();
                if last || !sent {
                    return;
                }
                continue;
            }
            Ok((_, _, Err(error))) | Err(error) => error,
        };
        let _ = sender.send(Err(error)).await; // nobody reads any more
        return;
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::{byte_range, disposition};

    #[test]
    fn fuzz_ranges() {
        let examples: [&[u8]; 5] =
            [b"bytes=0-1", b"bytes=5-", b"bytes=-3", b"bytes=9-9, 1-2 ,", b"bytes=0-18446744073709551615"];
        fuzz::run("ranges", &examples, |input| {
            let Ok(value) = HeaderValue::from_bytes(input) else { return };
            for length in [0, 1, 10, u64::MAX] {
                if let Ok(Some((start, end))) = byte_range(&value, length, "f") {
                    assert!(start < end && end <= length, "{start}-{end} of {length}");
                }
            }
            let _ = disposition(&String::from_utf8_lossy(input));
        });
    }
}
