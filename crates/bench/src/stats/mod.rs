//! What figures say: how two roads compare, how sure that is, and what they do not say.
//!
//! [`verdict::judge`] is what others call: it compares the pairs of every cell of a report and gives a verdict each. Below it, in reading
//! order: `sample` (medians), `paired` (the ratio of two roads: its estimate and interval in `shift`, its test in `flips`), `discovery`
//! (many cells at once), `verdict` (what is claimed, at which error rate). Beside it: `percentiles`, and `bimodal` for warnings.

pub mod bimodal;
#[cfg(test)]
mod calibration;
pub mod discovery;
pub mod flips;
pub mod generator;
mod normal;
pub mod paired;
pub mod percentiles;
pub mod sample;
pub mod shift;
#[cfg(test)]
mod synthetic;
pub mod verdict;

pub use bimodal::{BIMODAL, is_bimodal};
pub use paired::{PAIRS_FOR_A_VERDICT, Pair, Paired, Settings, paired};
pub use percentiles::Percentiles;
pub use shift::Interval;
pub use verdict::{Judged, Question, Verdict, is_decided, judge};
