//! Names of encodings on the command line.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use kerple_core::encoding::METHODS;
use std::ffi::OsStr;

/// Takes any text, as the command knows more names than kinds, and lets shells complete the kinds.
#[derive(Clone)]
pub struct EncodingName;

impl TypedValueParser for EncodingName {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(METHODS.into_iter().map(PossibleValue::new)))
    }
}
