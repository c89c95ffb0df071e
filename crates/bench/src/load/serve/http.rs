//! Answers GET in HTTP/1.1: of a path that is a number, with a body of so many bytes; of any other, with the one that was chosen.

use std::io::Write;

use memchr::memmem::Finder;

use super::{Service, Taken};
use crate::load::content::Contents;
use crate::load::http::{REQUEST_ID, value_of};

/// A longer body cannot be asked for by its path.
const LONGEST: usize = 1 << 20;
const END: &[u8] = b"\r\n\r\n";
const OTHER: &[u8] =
    b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 0\r\nConnection: close\r\n";

pub(super) struct Http {
    /// Length of the body, where the path tells none.
    bytes: usize,
    /// What bodies are the beginnings of.
    body: Vec<u8>,
    end: Finder<'static>,
}

impl Http {
    pub(super) fn new(bytes: usize) -> Http {
        Http {
            bytes,
            body: Contents::new(0, bytes.max(LONGEST)).get(0).to_vec(),
            end: Finder::new(END),
        }
    }

    /// Answers one request, of which this is the head; `true` when the connection ends after it.
    fn answer(&self, request: &[u8], out: &mut Vec<u8>) -> bool {
        let mut lines = request
            .split(|&byte| byte == b'\n')
            .map(<[u8]>::trim_ascii_end);
        let first = lines.next().unwrap_or_default();
        if !first.starts_with(b"GET ") {
            out.extend_from_slice(OTHER);
            out.extend_from_slice(b"\r\n");
            return true;
        }
        let mut close = first.ends_with(b"HTTP/1.0");
        let body = self.body(first);
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: ");
        // Writing to memory does not fail.
        let _ = write!(out, "{}\r\n", body.len());
        for line in lines {
            if let Some(value) = value_of(b"Connection", line) {
                close = value.eq_ignore_ascii_case(b"close");
            } else if let Some(value) = value_of(REQUEST_ID, line) {
                out.extend_from_slice(REQUEST_ID);
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
        if close {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
        close
    }

    /// The body that a request's first line asks for: `GET /512 HTTP/1.1`.
    fn body(&self, first: &[u8]) -> &[u8] {
        let path = first.split(|&byte| byte == b' ').nth(1);
        let number = path.and_then(|path| path.strip_prefix(b"/"));
        let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
        let bytes = number.filter(|bytes| *bytes <= LONGEST);
        &self.body[..bytes.unwrap_or(self.bytes)]
    }
}

impl Service for Http {
    fn serve(&mut self, input: &[u8], out: &mut Vec<u8>) -> Taken {
        let mut taken = Taken::default();
        while let Some(end) = self.end.find(&input[taken.bytes..]) {
            let request = &input[taken.bytes..][..end];
            taken.bytes += end + END.len();
            taken.requests += 1;
            if self.answer(request, out) {
                taken.close = true;
                break;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_when_they_are_whole_and_others_refused() {
        let mut http = Http::new(3);
        let mut out = Vec::new();
        let two =
            b"GET / HTTP/1.1\r\nx-request-id: 7\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n";
        let taken = http.serve(&two[..two.len() - 1], &mut out);
        assert_eq!((taken.requests, taken.close), (1, false));
        let taken = http.serve(&two[taken.bytes..], &mut out);
        assert_eq!((taken.requests, taken.close), (1, true));
        let text = String::from_utf8_lossy(&out);
        assert_eq!(text.matches("200 OK\r\nContent-Length: 3\r\n").count(), 2);
        assert_eq!(text.matches("X-Request-Id: 7\r\n").count(), 1);
        for (path, bytes) in [("/0", 0), ("/512", 512), ("/9999999999", 3), ("/x1", 3)] {
            let mut out = Vec::new();
            http.serve(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes(), &mut out);
            let text = String::from_utf8_lossy(&out);
            assert!(
                text.contains(&format!("Content-Length: {bytes}\r\n")),
                "{path}"
            );
            assert_eq!(
                out.len() - text.find("\r\n\r\n").unwrap() - 4,
                bytes,
                "{path}"
            );
        }
        let mut out = Vec::new();
        assert!(http.serve(b"PUT / HTTP/1.1\r\n\r\n", &mut out).close);
        assert!(out.starts_with(b"HTTP/1.1 405"));
    }
}
