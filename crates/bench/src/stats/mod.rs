//! What figures say.

pub mod generator;
pub mod percentiles;
pub mod sample;
