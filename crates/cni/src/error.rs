//! What the runtime is told when something cannot be done: section 5 of the specification, "Error".

use std::fmt;

use serde_json::json;

/// Numbers that the specification gives a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The version is not one that this plugin speaks.
    Version = 1,
    /// The container is not known, or has nothing of ours.
    UnknownContainer = 3,
    /// The environment is not as it must be.
    Environment = 4,
    /// Something cannot be read or written.
    Io = 5,
    /// The configuration is no JSON of the right kind.
    Decode = 6,
    /// The configuration cannot be.
    Config = 7,
    /// It may work later: the switch does not answer.
    Later = 11,
    /// STATUS: no pod can be added.
    NotReady = 50,
    /// Of our own: the switch does not do what it is asked to.
    Switch = 100,
    /// The network is not as it was made.
    Differs = 101,
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) code: u32,
    pub(crate) message: String,
    pub(crate) details: String,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>, details: impl fmt::Display) -> Error {
        Error {
            code: code as u32,
            message: message.into(),
            details: details.to_string(),
        }
    }

    pub(crate) fn to_json(&self, version: &str) -> String {
        json!({
            "cniVersion": version,
            "code": self.code,
            "msg": self.message,
            "details": self.details,
        })
        .to_string()
    }
}
