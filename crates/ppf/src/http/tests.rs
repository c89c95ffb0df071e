use super::*;

/// A connection by which these bytes come, so many at a time.
struct Line {
    comes: Vec<u8>,
    step: usize,
    goes: Vec<u8>,
}

impl Read for Line {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.step.min(self.comes.len()).min(to.len());
        to[..count].copy_from_slice(&self.comes[..count]);
        self.comes.drain(..count);
        Ok(count)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.goes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn said(text: &str, step: usize) -> String {
    let mut line = Line {
        comes: text.as_bytes().to_vec(),
        step,
        goes: Vec::new(),
    };
    let _ = serve(&mut line, answered);
    String::from_utf8(line.goes).unwrap()
}

/// What was asked, or pieces.
fn answered(question: &Question) -> Said {
    if question.path == "/pieces" {
        let pieces = [vec![1; 3], Vec::new(), vec![13, 10, 0], vec![2; 100_000]];
        return Said::Pieces(PCAPNG, Box::new(pieces.into_iter()));
    }
    let status = match question.path.as_str() {
        "/none" => 404,
        "/busy" => 503,
        _ => 200,
    };
    let body = format!(
        "{} {} {:?} {}",
        question.method,
        question.path,
        question.parameter("limit"),
        String::from_utf8_lossy(&question.body)
    );
    Said::Whole(Answer {
        allow: if question.path == "/none" { "GET" } else { "" },
        ..Answer::new(status, JSON, body.into_bytes())
    })
}

#[test]
fn an_answer_in_pieces_is_had_piece_by_piece_and_its_end_is_known() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let serves = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            serve(&mut stream, answered).unwrap();
        }
        let (mut torn, _) = listener.accept().unwrap();
        let mut asked = [0; 4];
        torn.read_exact(&mut asked).unwrap();
        let header = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        torn.write_all(format!("{header}3\r\nabc\r\n5\r\nab").as_bytes())
            .unwrap();
    });
    let client = || Client::connect(&path).unwrap();
    let mut pieces = client().follow("/pieces").unwrap();
    for wanted in [vec![1; 3], vec![13, 10, 0], vec![2; 100_000]] {
        assert_eq!(pieces.poll_next().unwrap(), Some(wanted));
    }
    assert_eq!(pieces.poll_next().unwrap(), None);
    drop(pieces);
    let refused = client().follow("/none").unwrap_err();
    assert!(matches!(refused, AskError::Refused(404, _)), "{refused:?}");
    let mut pieces = client().follow("/torn").unwrap();
    assert_eq!(pieces.poll_next().unwrap(), Some(b"abc".to_vec()));
    assert!(pieces.poll_next().is_err());
    serves.join().unwrap();
    let said = said("GET /pieces HTTP/1.0\r\n\r\n", 1000);
    assert!(said.starts_with("HTTP/1.1 505 "), "{said}");
}

#[test]
fn questions_are_answered_one_after_another_however_they_come() {
    let text = "GET /a?limit=7 HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\ncontent-LENGTH: 5\r\n\r\nhello";
    for step in [1, 7, 1000] {
        let said = said(text, step);
        assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 2, "{said}");
        assert!(said.contains("GET /a Some(\"7\") ") && said.ends_with("POST /b None hello"));
        assert!(!said.contains("Allow:") && !said.contains("Retry-After:"));
    }
    let busy = said("GET /busy HTTP/1.1\r\nHost: x\r\n\r\n", 1000);
    assert!(busy.contains("\r\nRetry-After: 1\r\n"), "{busy}");
    let said = said(
        "PUT /none HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        1000,
    );
    assert!(said.contains("\r\nAllow: GET\r\n"), "{said}");
}

#[test]
fn what_is_not_understood_ends_the_connection_with_a_reason() {
    for (text, status) in [
        ("GET\r\n\r\n", 400),
        ("GET a HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/2\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nnothing\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n\r\n", 411),
        ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length : 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n Host: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n: b\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (
            "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
            413,
        ),
    ] {
        let said = said(&format!("{text}GET / HTTP/1.1\r\n\r\n"), 1000);
        let wanted = format!("HTTP/1.1 {status} ");
        assert!(
            said.starts_with(&wanted) && said.contains("Connection: close"),
            "{said}"
        );
        assert_eq!(said.matches("Content-Length: ").count(), 1, "{said}");
        assert_eq!(said.matches("Connection: ").count(), 1, "{said}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEADER_BYTES_MAX * 2));
    assert!(said(&long, 1000).starts_with("HTTP/1.1 431 "));
}

#[test]
fn who_waits_to_be_told_to_go_on_is_told() {
    let text = "PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    assert!(said(text, 1000).starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
}

/// One that says a byte, and takes a byte, now and then.
struct Dribble<'a> {
    says: std::slice::Iter<'a, u8>,
    took: usize,
}

const NOW_AND_THEN: Duration = Duration::from_millis(10);

impl Read for Dribble<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(NOW_AND_THEN);
        to[0] = *self.says.next().unwrap_or(&b'x');
        Ok(1)
    }
}

impl Write for Dribble<'_> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        std::thread::sleep(NOW_AND_THEN);
        self.took += 1;
        Ok(1)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_says_or_takes_a_little_now_and_then_is_left() {
    for (question, wants) in [
        (&b"GET / HTTP/1.1\r\na: "[..], 0),
        (b"GET / HTTP/1.0\r\n\r\n", 1),
    ] {
        let (says, took) = (question.iter(), 0);
        let mut dribble = Dribble { says, took };
        let left = serve_in_time(&mut dribble, 50 * NOW_AND_THEN, |_| {
            Said::Whole(Answer::new(200, TEXT, vec![1; 100_000]))
        });
        assert_eq!(left.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(dribble.took.min(1), wants);
    }
}
