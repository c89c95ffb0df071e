//! Every road measured side by side.
//!
//! A *road* is a way for the bytes of two programs (loopback, a bridge, an overlay, Millrace on one of these); a *scenario* is a pair of
//! programs and what is varied about them; a *cell* is a scenario with one set of parameters on one road; a *trial* is one run of a cell.
//! This is no library for others: the `millrace` command shows it as `millrace bench` and `millrace load`.
//!
//! Reading order: `roads`, `builds`, `scenario` and `suites` (what is measured, as data), `begin`, `groups`, `run`, `lab` and `trial`
//! (how), `account` (the kernel's, of its processors), `line` (how far these are apart), `disturbance` (what makes a trial void),
//! `closing` (what is told at the end), `readers` (what tools print), `carried` (where the bytes went), `results` (what is kept of a run,
//! and the file's schema), `stats` and `compare` (what figures say), `report` (what people look at), `load`, `packets` and `events` (our
//! own load generators and servers).

#![deny(unsafe_code)]

mod account;
mod begin;
pub mod builds;
pub mod carried;
mod closing;
pub mod compare;
mod disturbance;
pub mod events;
pub mod figures;
mod groups;
pub mod isolate;
mod lab;
mod line;
pub mod load;
pub mod machine;
pub mod markdown;
pub mod packets;
pub mod process;
mod processors;
pub mod programs;
pub mod readers;
pub mod report;
pub mod results;
pub mod roads;
pub mod run;
pub mod scenario;
pub mod sockmap;
pub mod stats;
pub mod suites;
#[allow(unsafe_code, reason = "system calls that nobody else offers")]
pub mod sys;
mod trial;

pub use lab::Pinning;
