//! What takes the place of music in a build without the feature `music-lra`: a type without values.

pub use self::AbsentSampler as MusicSampler;
use crate::args::SampleArgs;
use crate::command_error::{CommandError, CommandResult};
use kerple_data::Tokenizer;

pub enum AbsentSampler {}

impl AbsentSampler {
    pub fn of(_: &Tokenizer) -> Option<AbsentSampler> {
        None
    }

    pub fn temperature_and_top_p(&self) -> (f64, f64) {
        match *self {}
    }

    pub fn prompt(&self, _: &SampleArgs, _: &Tokenizer) -> Result<Vec<u32>, CommandError> {
        match *self {}
    }

    pub fn allows(&self, _: u32) -> bool {
        match *self {}
    }

    pub fn take(&mut self, _: u32) {
        match *self {}
    }

    pub fn save(&self, _: &SampleArgs, _: &[u32]) -> CommandResult {
        match *self {}
    }
}
