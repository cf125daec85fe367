//! Models of other programs. One program, since each program of tests links everything again.

mod common;
mod import;
mod inkling;
mod pairs;
mod round;
