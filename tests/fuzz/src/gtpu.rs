//! GTP-U: what can be parsed is what is written again, and every part lies inside.

use millrace_ppf::Fragment;
use millrace_wire::gtpu::extension::Content;
use millrace_wire::gtpu::path::{self, ErrorIndication, TunnelStatus};
use millrace_wire::gtpu::{Extension, Header, Message, emit_extension};

/// Parses `bytes` as a message, as what stands in one, and as an outer packet.
pub fn run(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        again(&message);
    }
    if let Some((&kind, content)) = bytes.split_first() {
        content_again(&Extension { kind, content });
    }
    elements(bytes);
    if let Ok(Some(fragment)) = Fragment::parse(bytes) {
        let (whole, part) = (bytes.as_ptr_range(), fragment.payload.as_ptr_range());
        assert!(whole.start <= part.start && part.end <= whole.end && !fragment.payload.is_empty());
        assert!(fragment.at + fragment.payload.len() <= 65_535);
    }
}

/// Writes a message from its parts.
fn again(message: &Message<'_>) {
    let mut behind = Vec::new();
    let mut extensions = message.extensions.peekable();
    let first = extensions.peek().map_or(0, |first| first.kind);
    while let Some(extension) = extensions.next() {
        content_again(&extension);
        let next = extensions.peek().map_or(0, |next| next.kind);
        let mut room = [0; 1020];
        let count = emit_extension(extension.content, next, &mut room).expect("it was one");
        behind.extend_from_slice(&room[..count]);
    }
    behind.extend_from_slice(message.body);
    let header = Header {
        kind: message.kind,
        teid: message.teid,
        sequence: message.sequence,
        extension: first,
    };
    let mut room = [0; 12];
    // A header without options may have had four bytes of them, and so may be shorter, but never longer.
    let count = header
        .emit_numbered(message.npdu, behind.len(), &mut room)
        .expect("it was one");
    let written = [&room[..count], &behind].concat();
    assert_eq!(Message::parse(&written), Ok(*message));
}

fn content_again(extension: &Extension<'_>) {
    let Some(content) = Content::parse(extension) else {
        return;
    };
    if let Content::Unknown(kind) = content {
        assert_eq!(kind, extension.kind);
        return;
    }
    let mut room = vec![0; extension.content.len() + 64];
    let count = content.emit(&mut room).expect("it was parsed");
    let written = Extension {
        kind: content.kind(),
        content: &room[..count],
    };
    assert_eq!(Content::parse(&written), Some(content));
}

fn elements(body: &[u8]) {
    let mut room = [0; 300];
    if let Ok(lost) = ErrorIndication::parse(body) {
        let count = lost.emit(&mut room).expect("there is room");
        assert_eq!(ErrorIndication::parse(&room[..count]), Ok(lost));
    }
    if let Ok(kinds) = path::parse_supported_extensions(body) {
        let count = path::emit_supported_extensions(kinds, &mut room).expect("there is room");
        assert_eq!(path::parse_supported_extensions(&room[..count]), Ok(kinds));
    }
    if let Ok(status) = TunnelStatus::parse(body) {
        assert_eq!(TunnelStatus::parse(&status.emit()), Ok(status));
    }
}
