//! What the asking process and another one say to each other beside the messages that are measured.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One end of a conversation in lines.
#[derive(Debug)]
pub(crate) struct Line {
    hear: BufReader<UnixStream>,
    say: UnixStream,
}

/// A word of the procedure, in its order: the others have opened their ends, everybody meets, everybody has met, everybody goes; then come
/// the others' counts, where they count; and everybody ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Ready,
    Meet,
    Met,
    Go,
    End,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Word::Ready => "ready",
            Word::Meet => "meet",
            Word::Met => "met",
            Word::Go => "go",
            Word::End => "end",
        }
    }
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> Result<Line> {
        Ok(Line {
            hear: BufReader::new(stream.try_clone()?),
            say: stream,
        })
    }

    /// A line, and the end for somebody else.
    pub(crate) fn pair() -> Result<(Line, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Line::new(ours)?, theirs.into()))
    }

    fn tell(&mut self, text: &str) -> Result<()> {
        let told = self.say.write_all(format!("{text}\n").as_bytes());
        told.context("the other process is gone")
    }

    fn hear(&mut self) -> Result<String> {
        let mut text = String::new();
        self.hear.read_line(&mut text)?;
        let text = text.trim_end();
        ensure!(!text.is_empty(), "the other process is gone");
        if let Some(why) = text.strip_prefix("failed: ") {
            bail!("the other process: {why}");
        }
        Ok(text.to_owned())
    }

    pub(crate) fn say(&mut self, word: Word) -> Result<()> {
        self.tell(word.text())
    }

    pub(crate) fn expect(&mut self, word: Word) -> Result<()> {
        let heard = self.hear()?;
        ensure!(
            heard == word.text(),
            "{} was to be heard, not {heard}",
            word.text()
        );
        Ok(())
    }

    pub(crate) fn send(&mut self, value: &impl Serialize) -> Result<()> {
        self.tell(&serde_json::to_string(value)?)
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        Ok(serde_json::from_str(&self.hear()?)?)
    }

    /// Why this process cannot go on.
    pub(crate) fn fail(&mut self, why: &anyhow::Error) {
        // It may be because nobody is there.
        let _ = self.tell(&format!(
            "failed: {}",
            format!("{why:#}").replace('\n', " ")
        ));
    }
}
