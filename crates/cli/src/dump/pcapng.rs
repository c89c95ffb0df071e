//! Writes pcapng (draft-ietf-opsawg-pcapng): one section, one interface of raw IP packets, times in nanoseconds.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// `LINKTYPE_RAW`: packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
const PACKETS_RECEIVED: u16 = 4;
const PACKETS_DROPPED: u16 = 5;

/// A pcapng file that is being written.
#[derive(Debug)]
pub(super) struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Begins the file.
    pub(super) fn new(mut out: W) -> io::Result<Writer<W>> {
        let mut body = Vec::new();
        body.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        // Version 1.0, and a length that is not known beforehand.
        body.extend(1u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(u64::MAX.to_ne_bytes());
        let application = concat!("millrace dump ", env!("CARGO_PKG_VERSION"));
        option(&mut body, USER_APPLICATION, application.as_bytes());
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut out, SECTION_HEADER, &body)?;

        let mut body = Vec::new();
        body.extend(LINKTYPE_RAW.to_ne_bytes());
        body.extend([0; 2]);
        // No limit of a packet's length.
        body.extend(0u32.to_ne_bytes());
        option(&mut body, INTERFACE_NAME, b"millrace");
        option(&mut body, TIME_RESOLUTION, &[9]);
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut out, INTERFACE_DESCRIPTION, &body)?;
        Ok(Writer { out })
    }

    /// One packet, seen at `time_ns` since 1970.
    pub(super) fn packet(
        &mut self,
        time_ns: u64,
        packet: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()> {
        let length = u32::try_from(packet.len()).map_err(io::Error::other)?;
        let mut body = Vec::with_capacity(packet.len() + 64);
        body.extend(0u32.to_ne_bytes());
        time(&mut body, time_ns);
        body.extend(length.to_ne_bytes());
        body.extend(length.to_ne_bytes());
        body.extend(packet);
        pad(&mut body);
        if let Some(comment) = comment {
            option(&mut body, COMMENT, comment.as_bytes());
            option(&mut body, END_OF_OPTIONS, &[]);
        }
        block(&mut self.out, ENHANCED_PACKET, &body)
    }

    /// Ends the file with what came and what was lost.
    pub(super) fn finish(
        mut self,
        time_ns: u64,
        packets: u64,
        gaps: u64,
        comment: &str,
    ) -> io::Result<W> {
        let mut body = Vec::new();
        body.extend(0u32.to_ne_bytes());
        time(&mut body, time_ns);
        option(&mut body, COMMENT, comment.as_bytes());
        option(&mut body, PACKETS_RECEIVED, &packets.to_ne_bytes());
        option(&mut body, PACKETS_DROPPED, &gaps.to_ne_bytes());
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut self.out, INTERFACE_STATISTICS, &body)?;
        self.out.flush()?;
        Ok(self.out)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 12).map_err(io::Error::other)?;
    out.write_all(&kind.to_ne_bytes())?;
    out.write_all(&length.to_ne_bytes())?;
    out.write_all(body)?;
    out.write_all(&length.to_ne_bytes())
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    pad(body);
}

/// The upper half comes first, whatever the byte order.
fn time(body: &mut Vec<u8>, time_ns: u64) {
    body.extend(((time_ns >> 32) as u32).to_ne_bytes());
    body.extend((time_ns as u32).to_ne_bytes());
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_framed_padded_and_in_order() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.packet(5 << 32 | 7, b"12345", None).unwrap();
        writer.packet(0, b"1234", Some("why")).unwrap();
        let file = writer.finish(9, 2, 1, "done").unwrap();
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < file.len() {
            let length = word(at + 4) as usize;
            assert_eq!((length % 4, word(at + length - 4) as usize), (0, length));
            kinds.push((word(at), at));
            at += length;
        }
        let names: Vec<u32> = kinds.iter().map(|kind| kind.0).collect();
        assert_eq!(names, [SECTION_HEADER, 1, 6, 6, 5]);
        let packet = kinds[2].1;
        let fields: Vec<u32> = (2..7).map(|index| word(packet + index * 4)).collect();
        assert_eq!(fields, [0, 5, 7, 5, 5]);
        assert_eq!(&file[packet + 28..packet + 36], b"12345\0\0\0");
    }
}
