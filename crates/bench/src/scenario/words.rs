//! Words that are filled in:
//!
//! | word | what it is |
//! |---|---|
//! | `{bind}`, `{host}`, `{port}`, `{path}` | where the server listens, where the client finds it; the path is a Unix socket's |
//! | `{listen}`, `{address}` | the same, for either kind of socket, as `millrace load` has them |
//! | `{port_behind}` | of a program behind the server |
//! | `{transport}` | how messages go: such a scenario takes the roads that have one, and no others |
//! | `{device}` | as the server's command: the road's device, which forwards packets; such a scenario takes roads that have one |
//! | `{from}`, `{to}` | the generator's ports at such a device, as `millrace load packets` has them |
//! | `{receiver}` | as a client's command: of a road whose device sends by itself, who takes its packets, by `{from}` |
//! | `{device_number}` | a file with the device's process number |
//! | what a device's road has in `words` | as that says: `{generator}`, options of the generator for it; a parameter goes before |
//! | `{dir}` | a directory of the server's own, with the scenario's files |
//! | `{processor}`, `{client_processor}` | the numbers of the server's processor, and of the client's |
//! | `{seconds}`, `{whole_seconds}`, `{count}` | the length of a trial, and operations that take as long |
//! | `{step_seconds}` | a tenth of that, for clients that make many runs in a trial |
//! | `{width}` | how narrow the range becomes in which a client searches a rate |
//! | `{record}` | options of `millrace load`: a trial's length, and its files |
//! | `{counts}` | a file in which `millrace load serve` counts its wake-ups |
//! | `{histogram}` | a file for a histogram of latencies, which is kept with the results |
//! | `{wrk_script}` | a script by which wrk prints what `result-line` reads |
//! | `{millrace}`, `{peers}`, `{softrss}` | this program; `millrace-peers` and `millrace-softrss`, beside it or in PATH |

use std::collections::BTreeMap;

/// The server's command where it is the road's device.
pub(super) const DEVICE: &str = "{device}";

/// The client's command where it is the road's, which takes what the device sends.
pub(super) const RECEIVER: &str = "{receiver}";

/// Words of the suite's own, which no parameter can be called.
pub(super) const WORDS: &[&str] = &[
    "bind",
    "host",
    "port",
    "path",
    "listen",
    "address",
    "port_behind",
    "transport",
    "device",
    "from",
    "to",
    "device_number",
    "receiver",
    "dir",
    "processor",
    "client_processor",
    "counts",
    "seconds",
    "whole_seconds",
    "step_seconds",
    "width",
    "count",
    "record",
    "histogram",
    "wrk_script",
    "millrace",
    "peers",
    "softrss",
];

/// Fills in the words in braces that are known; others stay as they are, so that files may have braces of their own.
#[must_use]
pub fn fill(template: &str, words: &BTreeMap<String, String>) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let word = after
            .split_once('}')
            .and_then(|(word, behind)| Some((words.get(word)?, behind)));
        match word {
            Some((value, behind)) => {
                text.push_str(value);
                rest = behind;
            }
            None => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}
