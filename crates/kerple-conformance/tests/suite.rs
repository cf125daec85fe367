//! The conformance suite itself. One program, since each program of tests links everything again.

mod measure;
mod program;
mod reference;
