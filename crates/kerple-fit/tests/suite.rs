//! Fits of curves. One program, since each program of tests links everything again.

mod properties;
mod search;
mod sources;
