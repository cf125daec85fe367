//! Fits of curves. One program, since each program of tests links everything again.

mod layers;
mod phases;
mod profiles;
mod properties;
mod search;
mod sources;
