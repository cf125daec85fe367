//! What takes the place of MIDI files in a build without the feature `music-lra`.

pub(super) use self::AbsentArchive as MidiArchive;
use super::SourceDocument;
use crate::error::Result;
use crate::music::Representation;
use std::cell::RefCell;
use std::io::BufRead;
use std::path::Path;
use std::rc::Rc;

pub(super) fn is_midi(_: &str) -> bool {
    false
}

pub(super) fn file(_: &Path, representation: Representation) -> Result<SourceDocument> {
    match representation {}
}

pub(super) enum AbsentArchive {}

impl AbsentArchive {
    pub(super) fn new(
        _: &Path,
        _: Box<dyn BufRead>,
        representation: Representation,
        _: Rc<RefCell<Vec<String>>>,
    ) -> AbsentArchive {
        match representation {}
    }
}

impl Iterator for AbsentArchive {
    type Item = Result<SourceDocument>;

    fn next(&mut self) -> Option<Result<SourceDocument>> {
        match *self {}
    }
}
