//! The command, as its users run it. One program, since each program of tests links everything again.

mod bench;
mod chapter;
mod common;
mod demo;
mod departing;
mod describe;
mod documents;
mod errors;
mod evaluation;
mod faults;
mod files;
mod folders;
mod habits;
mod hints;
mod honoured;
mod interchange;
#[cfg(feature = "fit")]
mod kernel_fit;
#[cfg(feature = "fit")]
mod kernel_search;
mod main_job;
mod music;
mod order;
mod packages;
mod places;
mod quickstart;
#[cfg(feature = "reproduce")]
mod reproduce;
mod serve;
#[cfg(feature = "reproduce")]
mod tampering;
mod tasks;
mod tutorial;
mod verify;
