//! `multipart/form-data`, read as it arrives: memory does not grow with the parts.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

/// Bytes of a part's headers.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Bytes of a boundary; the standard allows 70.
const MAX_BOUNDARY_BYTES: usize = 256;

/// A body that is not what it says.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Broken {
    /// The body ended inside a part.
    #[error("the multipart body ends before its closing boundary")]
    Truncated,
    /// The headers of a part are too long or have no end.
    #[error("the headers of a part are longer than {MAX_HEAD_BYTES} bytes")]
    LongHead,
    /// A part does not say its name.
    #[error("a part has no name in its Content-Disposition")]
    NoName,
    /// A boundary is followed by something else than a line end.
    #[error("a boundary is not followed by a line end")]
    BadBoundary,
}

/// The boundary of a content type; `None` when it is not multipart.
pub fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary").filter(|boundary| !boundary.is_empty() && boundary.len() <= MAX_BOUNDARY_BYTES)
}

/// Reads parts from a source of pieces; `None` from the source is the end of the body.
pub struct Multipart<S> {
    source: S,
    buffer: BytesMut,
    delimiter: memmem::Finder<'static>,
}

impl<S: FnMut() -> Option<Bytes>> Multipart<S> {
    /// Begins to read.
    pub fn new(boundary: &str, source: S) -> Self {
        let delimiter = format!("\r\n--{boundary}");
        let delimiter = memmem::Finder::new(delimiter.as_bytes()).into_owned();
        // The first boundary has no line end before it.
        Self { source, buffer: BytesMut::from(&b"\r\n"[..]), delimiter }
    }

    /// Skips to the first boundary.
    ///
    /// # Errors
    /// When there is none.
    pub fn skip_preamble(&mut self) -> Result<(), Broken> {
        self.data(&mut |_| ())
    }

    /// Goes to the next part and returns its name; `None` after the last. The part before must be read.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn next_part(&mut self) -> Result<Option<String>, Broken> {
        while self.buffer.len() < 2 {
            self.fill()?;
        }
        if self.buffer.starts_with(b"--") {
            return Ok(None);
        }
        let line_end = self.find(b"\r\n")?;
        if !self.buffer[..line_end].iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(Broken::BadBoundary);
        }
        // The line end of the boundary may be the first half of the empty line after no headers.
        self.buffer.advance(line_end);
        let head_end = self.find(b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&self.buffer.split_to(head_end)).into_owned();
        self.buffer.advance(4);
        name_of(&head).map(Some).ok_or(Broken::NoName)
    }

    /// Gives the part's content to `sink`, piece by piece.
    ///
    /// # Errors
    /// When the body ends first.
    pub fn data(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<(), Broken> {
        let delimiter_length = self.delimiter.needle().len();
        loop {
            if let Some(at) = self.delimiter.find(&self.buffer) {
                sink(&self.buffer[..at]);
                self.buffer.advance(at + delimiter_length);
                return Ok(());
            }
            // The last bytes may be the beginning of a boundary.
            let safe = (self.buffer.len() + 1).saturating_sub(delimiter_length);
            if safe > 0 {
                sink(&self.buffer[..safe]);
                self.buffer.advance(safe);
            }
            self.fill()?;
        }
    }

    fn find(&mut self, needle: &[u8]) -> Result<usize, Broken> {
        loop {
            if let Some(at) = memmem::find(&self.buffer, needle) {
                return Ok(at);
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(Broken::LongHead);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), Broken> {
        let piece = (self.source)().ok_or(Broken::Truncated)?;
        self.buffer.extend_from_slice(&piece);
        Ok(())
    }
}

fn name_of(head: &str) -> Option<String> {
    head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| parameter(value, "name"))?
    })
}

/// One parameter of a header; quoted values may hold `;` and escaped quotes.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    let mut letters = value.chars().peekable();
    loop {
        while letters.next_if(|letter| letter.is_whitespace() || *letter == ';').is_some() {}
        letters.peek()?;
        let mut name = String::new();
        while let Some(letter) = letters.next_if(|letter| !matches!(letter, '=' | ';')) {
            name.push(letter);
        }
        let mut found = String::new();
        if letters.next_if_eq(&'=').is_some() {
            if letters.next_if_eq(&'"').is_some() {
                while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
                    found.extend(if letter == '\\' { letters.next() } else { Some(letter) });
                }
            } else {
                while let Some(letter) = letters.next_if(|letter| *letter != ';') {
                    found.push(letter);
                }
                found = found.trim().to_owned();
            }
        }
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Broken, Multipart, boundary};

    const BODY: &str = "--B\r\nContent-Disposition: form-data; filename=\"a;b\\\".txt\"; name=\"metadata\"\r\n\r\n{}\r\n\
        --B  \r\ncontent-disposition: form-data; name=file\r\nX: y\r\n\r\nline\r\n--\r\n-B\r\r\n\r\n--B--\r\n";

    fn parts(body: &str, piece: usize) -> Result<Vec<(String, Vec<u8>)>, Broken> {
        let mut pieces = body.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect::<Vec<_>>().into_iter();
        let mut multipart = Multipart::new("B", || pieces.next());
        multipart.skip_preamble()?;
        let mut found = Vec::new();
        while let Some(name) = multipart.next_part()? {
            let mut content = Vec::new();
            multipart.data(&mut |piece| content.extend_from_slice(piece))?;
            found.push((name, content));
        }
        Ok(found)
    }

    #[test]
    fn any_cut_gives_the_same_parts() {
        let expected =
            vec![("metadata".to_owned(), b"{}".to_vec()), ("file".to_owned(), b"line\r\n--\r\n-B\r\r\n".to_vec())];
        for piece in 1..BODY.len() {
            assert_eq!(parts(BODY, piece).expect("a good body"), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        for end in 0..BODY.len() - 4 {
            assert!(parts(&BODY[..end], 7).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn boundaries_are_read_quoted_or_not() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(boundary("Multipart/Form-Data; charset=x; Boundary=\"a b\"").as_deref(), Some("a b"));
        assert_eq!(boundary("application/json; boundary=abc"), None);
        assert_eq!(boundary("multipart/form-data"), None);
    }

    #[test]
    fn fuzz_multipart() {
        let examples: [&[u8]; 3] = [
            b"--B\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"m\"\r\n\r\n{}\r\n--B\r\n\
              Content-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--B--\r\n",
            b"preamble\r\n--B \r\n\r\n\r\n--B--",
            b"--B\r\nContent-Disposition: form-data; name=\"a\\\"b;c\"\r\n\r\n\r\n--Bx\r\n--B--",
        ];
        fuzz::run("multipart", &examples, |input| {
            for piece in [1, 7, input.len().max(1)] {
                let mut pieces = input.chunks(piece).map(bytes::Bytes::copy_from_slice);
                let mut multipart = super::Multipart::new("B", || pieces.next());
                let mut bytes = 0;
                let mut read = || -> Result<(), super::Broken> {
                    multipart.skip_preamble()?;
                    while multipart.next_part()?.is_some() {
                        multipart.data(&mut |data| bytes += data.len())?;
                    }
                    Ok(())
                };
                let _ = read(); // a broken body is an error, never a panic or a loop
                assert!(bytes <= input.len(), "content from nowhere");
            }
            let _ = super::boundary(&String::from_utf8_lossy(input));
        });
    }
}
