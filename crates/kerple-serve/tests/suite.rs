//! The server. One program, since each program of tests links everything again.

mod common;
mod completions;
mod connections;
mod http;
