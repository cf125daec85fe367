//! Reports of small made-up runs: what is in them, and that nothing missing or broken is hidden.

mod answers;
mod contents;
mod files;
mod learning;
mod made_up;
mod meeting;
mod odd;
