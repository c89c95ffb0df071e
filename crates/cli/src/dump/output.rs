//! Where packets go: a pcapng file or pipe, or lines on a terminal.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use super::follow::Piece;
use super::packet::{self, PAYLOAD_MAX};
use super::pcapng::Writer;

enum Target {
    /// Before the beginning.
    Nowhere,
    Lines,
    Packets(Writer<BufWriter<Box<dyn Write>>>),
}

/// What has been written, and where.
pub(super) struct Output {
    target: Target,
    packets: u64,
    bytes: u64,
    lost: u64,
    by_kernel: u64,
    gaps: u64,
}

impl Output {
    pub(super) fn new() -> Output {
        Output {
            target: Target::Nowhere,
            packets: 0,
            bytes: 0,
            lost: 0,
            by_kernel: 0,
            gaps: 0,
        }
    }

    /// Begins the file: what programs say to each other is for its owner only.
    pub(super) fn begin(&mut self, path: Option<&Path>) -> anyhow::Result<()> {
        let stdout = path.is_none_or(|path| path == Path::new("-"));
        let file: Box<dyn Write> = match path.filter(|_| !stdout) {
            Some(path) => Box::new(create(path).with_context(|| path.display().to_string())?),
            None if path.is_none() && io::stdout().is_terminal() => {
                self.target = Target::Lines;
                return Ok(());
            }
            None => Box::new(io::stdout()),
        };
        let mut writer = Writer::new(BufWriter::new(file))?;
        // Whoever reads from a pipe learns at once what it will be.
        writer.flush()?;
        self.target = Target::Packets(writer);
        Ok(())
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Writes a piece, as `limit` packets at most.
    pub(super) fn write(
        &mut self,
        piece: &Piece,
        addresses: &[SocketAddr; 2],
        limit: u64,
    ) -> io::Result<()> {
        let from = addresses[piece.direction];
        let to = addresses[1 - piece.direction];
        let mut sequence = piece.sequence;
        let mut comment = comment(piece);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if limit > 0 {
            self.lost += u64::from(piece.lost);
            self.by_kernel += u64::from(piece.by_kernel);
            self.gaps += u64::from(piece.lost > 0);
        }
        for data in piece.data.chunks(PAYLOAD_MAX).take(limit) {
            let comment = comment.take();
            match &mut self.target {
                Target::Nowhere => {}
                Target::Lines => {
                    let length = data.len() as u32;
                    let next = sequence.wrapping_add(length);
                    let acknowledged = piece.acknowledged;
                    let mut out = io::stdout().lock();
                    if let Some(comment) = comment {
                        writeln!(out, "{comment}")?;
                    }
                    writeln!(
                        out,
                        "{} {from} > {to}: seq {sequence}:{next}, ack {acknowledged}, length {length}",
                        seconds(now_ns())
                    )?;
                }
                Target::Packets(writer) => {
                    let packet = packet::build(from, to, sequence, piece.acknowledged, data);
                    writer.packet(now_ns(), &packet, comment.as_deref())?;
                }
            }
            sequence = sequence.wrapping_add(data.len() as u32);
            self.packets += 1;
            self.bytes += data.len() as u64;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Packets(writer) => writer.flush(),
            _ => io::stdout().flush(),
        }
    }

    /// Ends the file, and says what there was. `untold`: bytes that were lost after the last packet.
    pub(super) fn finish(self, untold: u64) -> io::Result<()> {
        let (lost, gaps) = (self.lost + untold, self.gaps + u64::from(untold > 0));
        let summary = format!(
            "{} packets with {} bytes; {} bytes between them went by the kernel; \
             {lost} bytes in {gaps} gaps were gone before they could be copied",
            self.packets, self.bytes, self.by_kernel
        );
        if let Target::Packets(writer) = self.target {
            writer.finish(now_ns(), self.packets, gaps, &summary)?;
        }
        complain!("millrace: {summary}");
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        // One that was there has the rights that it had. Not every file system has rights.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// What a gap in the sequence numbers before a piece is.
fn comment(piece: &Piece) -> Option<String> {
    let lost = format!(
        "{} bytes before this were gone before they could be copied",
        piece.lost
    );
    let by_kernel = format!("{} bytes before this went by the kernel", piece.by_kernel);
    match (piece.lost, piece.by_kernel) {
        (0, 0) => None,
        (0, _) => Some(by_kernel),
        (_, 0) => Some(lost),
        _ => Some(format!("{lost}; {by_kernel}")),
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds since 1970 as `tcpdump -tt` writes them.
fn seconds(time_ns: u64) -> String {
    format!(
        "{}.{:06}",
        time_ns / 1_000_000_000,
        time_ns / 1000 % 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_explained() {
        let mut piece = Piece {
            direction: 0,
            sequence: 1,
            acknowledged: 1,
            data: vec![1],
            lost: 0,
            by_kernel: 0,
        };
        assert_eq!(comment(&piece), None);
        piece.lost = 5;
        assert!(comment(&piece).is_some_and(|text| text.starts_with("5 bytes")));
        piece.by_kernel = 7;
        assert!(comment(&piece).is_some_and(|text| text.contains("7 bytes before this went")));
    }

    #[test]
    fn a_file_is_its_owner_s_alone_also_if_it_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "before").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let file = create(&path).unwrap().metadata().unwrap();
        assert_eq!((file.permissions().mode() & 0o777, file.len()), (0o600, 0));
        create(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn the_count_of_packets_is_kept_to() {
        let addresses = ["127.0.0.1:1", "127.0.0.1:2"].map(|it| it.parse().unwrap());
        let piece = Piece {
            direction: 1,
            sequence: u32::MAX,
            acknowledged: 0,
            data: vec![0; 3 * PAYLOAD_MAX],
            lost: 0,
            by_kernel: 0,
        };
        let mut output = Output::new();
        output.write(&piece, &addresses, 2).unwrap();
        assert_eq!(output.packets(), 2);
        assert_eq!(output.bytes, 2 * PAYLOAD_MAX as u64);
    }
}
