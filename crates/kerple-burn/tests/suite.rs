//! Layers and operations for Burn. One program, since each program of tests links everything again.

mod blocks;
mod common;
mod custom_ops;
mod documents;
mod feature_gates;
mod householder;
mod learned_positions;
mod linear;
mod path_bias;
mod positional_encoding;
mod relative_bias;
mod score_mods;
