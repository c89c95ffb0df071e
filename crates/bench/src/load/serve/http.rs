//! Answers GET with one body, in HTTP/1.1.

use memchr::memmem::Finder;

use super::{Service, Taken};
use crate::load::content::Contents;
use crate::load::http::{REQUEST_ID, value_of};

const END: &[u8] = b"\r\n\r\n";
const OTHER: &[u8] =
    b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 0\r\nConnection: close\r\n";

pub(super) struct Http {
    /// The answer's head without the fields that differ.
    head: Vec<u8>,
    body: Vec<u8>,
    end: Finder<'static>,
}

impl Http {
    pub(super) fn new(bytes: usize) -> Http {
        Http {
            head: format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n").into_bytes(),
            body: Contents::new(0, bytes).get(0).to_vec(),
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
        out.extend_from_slice(&self.head);
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
        out.extend_from_slice(&self.body);
        close
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
        let mut out = Vec::new();
        assert!(http.serve(b"PUT / HTTP/1.1\r\n\r\n", &mut out).close);
        assert!(out.starts_with(b"HTTP/1.1 405"));
    }
}
