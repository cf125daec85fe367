//! Models, training and evaluation. One program, since each program of tests links everything again.

mod common;
mod composed;
mod config;
mod decode;
mod documents;
mod encoder;
mod generate;
mod key_tokens;
mod layers;
mod linear;
mod model;
mod ranks;
mod resuming;
mod self_extend;
mod stop_rule;
mod tasks;
mod train_state;
mod training;
