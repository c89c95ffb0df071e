//! Atomics by one name, so that loom can replace them.

#[cfg(loom)]
pub(crate) use model::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::fence;

pub(crate) use std::sync::atomic::Ordering;

#[cfg(loom)]
pub mod model;
