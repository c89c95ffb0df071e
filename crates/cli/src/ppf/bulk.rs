//! `millrace ppf bearer load`: as many bearers as a file has, added or changed, in pieces.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write, stdin};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_ppf::{Added, Refusal};
use serde_json::Value;

use super::{LoadArguments, words};

pub(super) const FORMATS: &str = "Formats:
  JSON lines   {\"core\":{\"user\":\"10.45.0.7\"},\"radio\":{\"address\":\"198.51.100.20\",\"teid\":816}}
  CSV          a first line with names, in any order: core.address, core.teid, core.user, radio.address, radio.teid, radio.user, gates
               (core, radio, none, or core+radio), and the other keys of `millrace ppf bearer add`; fields may be empty

With --change a line may have an id beside these: the number of a bearer, which is to be as the line says from now on.
Each bearer is added, or changed, if it can be, and the lines of those that cannot are told: then the exit status is 1.";

/// Bearers of a piece: packets wait for some of it only.
const PIECE: usize = 10_000;
/// Who waits for longer is told how far it is.
const PATIENCE: Duration = Duration::from_secs(2);
const TOLD_EVERY: Duration = Duration::from_millis(500);
/// Of so many refusals the reason is told.
const REFUSALS_MAX: usize = 20;

/// What was asked for so far.
struct Loading<'a> {
    /// Asked anew for each piece: a file may come slowly, and nobody holds a line for somebody silent.
    control: Option<&'a Path>,
    changes: bool,
    piece: Vec<u8>,
    /// By line of the piece, the line of the file.
    lines: Vec<u64>,
    /// Of each row since the last piece, whether it is in this one; otherwise it was refused here.
    rows: Vec<bool>,
    total: Added,
    began: Instant,
    told: Option<Instant>,
}

/// Adds all bearers of a file, or changes those that have a number there.
pub(super) fn load(control: Option<&Path>, arguments: &LoadArguments) -> anyhow::Result<u8> {
    let (path, changes) = (arguments.file.as_path(), arguments.change);
    let shown = path.display();
    let file: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(stdin().lock()),
        false => Box::new(File::open(path).with_context(|| format!("cannot read {shown}"))?),
    };
    let is_csv = path.extension().is_some_and(|end| end == "csv");
    let mut columns: Option<Vec<String>> = None;
    let mut loading = Loading {
        control,
        changes,
        piece: Vec::new(),
        lines: Vec::new(),
        rows: Vec::new(),
        total: Added::default(),
        began: Instant::now(),
        told: None,
    };
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.with_context(|| format!("cannot read {shown}"))?;
        if line.trim().is_empty() {
            continue;
        }
        if !is_csv {
            loading.push(number, line.as_bytes())?;
            continue;
        }
        match &columns {
            None => columns = Some(heading(&line).with_context(|| format!("{shown}, line 1"))?),
            Some(columns) => match parse_row(columns, &line, changes) {
                Ok(row) => loading.push(number, row.to_string().as_bytes())?,
                Err(error) => loading.refuse(number, &format!("{error:#}")),
            },
        }
    }
    loading.finish(arguments.json)
}

impl Loading<'_> {
    fn push(&mut self, number: u64, line: &[u8]) -> anyhow::Result<()> {
        self.piece.extend_from_slice(line);
        self.piece.push(b'\n');
        self.lines.push(number);
        self.rows.push(true);
        if self.lines.len() == PIECE {
            self.send()?;
        }
        Ok(())
    }

    fn refuse(&mut self, line: u64, why: &str) {
        self.rows.push(false);
        self.total.refused += 1;
        self.total.refusals.push(Refusal {
            line,
            error: why.to_owned(),
        });
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let added = match self.lines.is_empty() {
            true => Vec::new(),
            false => self.ask()?,
        };
        let mut added = added.into_iter();
        let ids = self.rows.drain(..);
        let ids = ids.map(|is_sent| is_sent.then(|| added.next().flatten()).flatten());
        self.total.ids.extend(ids);
        self.tell();
        Ok(())
    }

    /// Has the function do the piece; returns the number of each line, if it was done.
    fn ask(&mut self) -> anyhow::Result<Vec<Option<u32>>> {
        let kind = "application/x-ndjson";
        let ask = || {
            let method = if self.changes { "PUT" } else { "POST" };
            let said =
                super::client(self.control)?.ask(method, "/v1/bearers", kind, &self.piece)?;
            super::parsed(&said)
        };
        let added: Added = ask().with_context(|| format!("after {}", self.done()))?;
        self.total.added += added.added;
        self.total.changed += added.changed;
        self.total.refused += added.refused;
        for refusal in added.refusals {
            let place = usize::try_from(refusal.line).unwrap_or(0).saturating_sub(1);
            let line = self.lines.get(place).copied().unwrap_or(refusal.line);
            let error = refusal.error;
            self.total.refusals.push(Refusal { line, error });
        }
        self.piece.clear();
        self.lines.clear();
        Ok(added.ids)
    }

    fn done(&self) -> String {
        let Added { added, changed, .. } = self.total;
        match self.changes {
            true => format!("{changed} bearers changed, {added} added"),
            false => format!("{added} bearers added"),
        }
    }

    /// Says how far it is, to people who have waited for some time.
    fn tell(&mut self) {
        let now = Instant::now();
        let is_due = self.told.is_none_or(|told| now - told >= TOLD_EVERY);
        if now - self.began >= PATIENCE && is_due && std::io::stderr().is_terminal() {
            self.told = Some(now);
            let _ = write!(std::io::stderr(), "\r{}", self.done());
        }
    }

    fn finish(mut self, json: bool) -> anyhow::Result<u8> {
        self.send()?;
        if self.told.is_some() {
            complain!("");
        }
        let total = &self.total;
        if json {
            super::print(format!("{}\n", serde_json::to_string(total)?).as_bytes())?;
        } else {
            super::print(format!("{}\n", self.done()).as_bytes())?;
            for refusal in total.refusals.iter().take(REFUSALS_MAX) {
                complain!("line {}: {}", refusal.line, refusal.error);
            }
        }
        if total.refused > 0 {
            complain!("millrace: {} bearers were refused", total.refused);
        }
        Ok(u8::from(total.refused > 0))
    }
}

/// Names of columns, which are keys of a bearer.
fn heading(line: &str) -> anyhow::Result<Vec<String>> {
    let mut columns = Vec::new();
    for name in line.split(',').map(|name| name.trim().to_owned()) {
        ensure!(!name.is_empty(), "a column has no name");
        ensure!(!columns.contains(&name), "{name} is there twice");
        columns.push(name);
    }
    Ok(columns)
}

/// A row as a line of JSON; where bearers are changed, with the number that it may have.
fn parse_row(columns: &[String], line: &str, changes: bool) -> anyhow::Result<Value> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    ensure!(
        fields.len() == columns.len(),
        "{} fields, and not {}",
        fields.len(),
        columns.len()
    );
    let mut said = serde_json::Map::new();
    for (name, field) in columns.iter().zip(fields) {
        if !field.is_empty() {
            words::put(&mut said, name, field)?;
        }
    }
    let id = changes.then(|| said.remove("id")).flatten();
    let mut row = serde_json::to_value(words::spec(said)?)?;
    if let Some(id) = id {
        row["id"] = id;
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_ppf::{BearerSpec, FarEnd, Flows};

    #[test]
    fn a_row_is_a_bearer() {
        let columns = heading(
            "radio.teid, radio.address,core.user,core.teid,core.address,gates,to_radio.flow",
        )
        .unwrap();
        let row = parse_row(&columns, "7,192.0.2.1,10.0.0.1,,,core+radio,9", false).unwrap();
        let spec = BearerSpec::parse(row.to_string().as_bytes()).unwrap();
        assert_eq!(spec.core, FarEnd::User([10, 0, 0, 1].into()));
        assert_eq!(spec.radio, FarEnd::Tunnel([192, 0, 2, 1].into(), 7));
        assert_eq!(spec.to_radio.unwrap().flow, Flows::Set(9));
        for (row, why) in [
            ("7,192.0.2.1,10.0.0.1,,", "5 fields"),
            ("7,192.0.2.1,10.0.0.1,8,,,", "a far end"),
            ("x,192.0.2.1,10.0.0.1,,,,", "\"x\""),
            ("7,192.0.2.1,10.0.0.1,,,left,", "core,radio or none"),
        ] {
            let error = format!("{:#}", parse_row(&columns, row, false).unwrap_err());
            assert!(error.contains(why), "{row}: {error}");
        }
        assert!(heading("core.user,").is_err() && heading("gates,gates").is_err());
        let error = parse_row(
            &["core.user".to_owned(), "colour".to_owned()],
            "10.0.0.1,7",
            true,
        )
        .unwrap_err();
        assert!(error.to_string().contains("radio=ADDRESS/TEID"), "{error}");
        let columns = heading("id,core,radio").unwrap();
        for id in ["513", ""] {
            let line = format!("{id},192.0.2.1/7,192.0.2.2/8");
            let row = parse_row(&columns, &line, true).unwrap();
            assert_eq!(row.get("id").map(Value::to_string).unwrap_or_default(), id);
            assert_eq!(parse_row(&columns, &line, false).is_err(), !id.is_empty());
        }
    }
}
