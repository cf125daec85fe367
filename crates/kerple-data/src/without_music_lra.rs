//! What takes the place of music and the Long Range Arena in a build without the feature `music-lra`.
//!
//! The types have no values, so that code which handles them compiles and is never entered. What a
//! user asks for by name is refused with the name of the feature.

use crate::error::{Error, Result};

/// Tokenizers of [`crate::music`], by their names.
pub(crate) const TOKENIZERS: [&str; 2] = ["remi", "groove"];

/// Tasks of [`crate::lra`], by their names.
pub(crate) const TASKS: [&str; 5] = ["listops", "lra_text", "lra_retrieval", "lra_image", "pathfinder"];

pub(crate) const HINT: &str = "build with `cargo build --features music-lra`; the released command has it";

/// The message about a task or a tokenizer, `what`, that this build lacks.
pub(crate) fn message(what: &str, name: &str) -> String {
    format!("the {what} `{name}` needs the feature `music-lra`, which this build does not have")
}

/// Refuses a tokenizer for music.
pub(crate) fn check_tokenizer(name: &str) -> Result<()> {
    if TOKENIZERS.contains(&name) { Err(Error::refused(message("tokenizer", name), HINT)) } else { Ok(()) }
}

pub(crate) mod music {
    pub(crate) use self::AbsentMusic as MusicDocument;
    pub use self::{AbsentRepresentation as Representation, AbsentRules as Rules, AbsentVocabulary as Vocabulary};
    use crate::error::Result;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AbsentRepresentation {}

    impl AbsentRepresentation {
        pub const ALL: [Representation; 0] = [];

        pub fn named(_: &str) -> Option<Representation> {
            None
        }

        pub fn name(self) -> &'static str {
            match self {}
        }

        pub fn vocabulary(self) -> &'static Vocabulary {
            match self {}
        }
    }

    pub enum AbsentVocabulary {}

    impl AbsentVocabulary {
        pub fn words(&self) -> &[String] {
            match *self {}
        }

        pub fn end(&self) -> u32 {
            match *self {}
        }

        pub fn parse(&self, _: &str) -> Result<Vec<u32>> {
            match *self {}
        }

        pub fn spell(&self, _: &[u32]) -> String {
            match *self {}
        }

        pub fn rules(&self) -> Rules {
            match *self {}
        }
    }

    /// Rules of music, of which there are none in this build.
    #[derive(Clone, Debug)]
    pub enum AbsentRules {}

    impl AbsentRules {
        /// Whether an event may come next.
        pub fn allows(&self, _: u32) -> bool {
            match *self {}
        }

        /// Takes the next event.
        pub fn take(&mut self, _: u32) {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(crate) enum AbsentMusic {}

    impl AbsentMusic {
        pub(crate) fn repaired(&self) -> Option<&String> {
            match *self {}
        }

        pub(crate) fn text(&self) -> &str {
            match *self {}
        }

        pub(crate) fn copy(&self, _: u64) -> Result<String> {
            match *self {}
        }
    }
}

#[cfg(all(test, feature = "music-lra"))]
mod tests {
    #[test]
    fn the_names_are_those_of_the_feature() {
        assert_eq!(super::TASKS, crate::lra::LraTask::NAMES);
        assert_eq!(super::TOKENIZERS, crate::music::Representation::ALL.map(crate::music::Representation::name));
    }
}

#[cfg(all(test, not(feature = "music-lra")))]
mod tests {
    use crate::tasks::TaskConfig;
    use crate::tokenizer::Tokenizer;
    use crate::{PrepareOptions, Sources, prepare};
    use std::path::Path;

    #[test]
    fn what_the_feature_has_is_refused_by_its_name() {
        #[derive(Debug, serde::Deserialize)]
        struct DataTable {
            #[allow(dead_code, reason = "it is refused")]
            task: TaskConfig,
        }
        for name in super::TASKS {
            for text in [format!("task = \"{name}\""), format!("task = {{ kind = \"{name}\" }}")] {
                let error = toml::from_str::<DataTable>(&text).unwrap_err().to_string();
                assert!(error.contains(&super::message("task", name)), "{error}");
            }
        }
        let folder = tempfile::tempdir().unwrap();
        for name in super::TOKENIZERS {
            let options = PrepareOptions::new(Sources::paths(&[folder.path()]), &folder.path().join("out"));
            let error = prepare(&PrepareOptions { tokenizer: name.to_owned(), ..options }, &mut |_| {}).unwrap_err();
            assert_eq!(error.to_string(), super::message("tokenizer", name));
            let definition = format!("{{\n  \"kind\": \"{name}\",\n  \"words\": []\n}}\n");
            let error = Tokenizer::from_definition(Path::new("tokenizer.json"), definition, None).unwrap_err();
            assert_eq!(error.to_string(), super::message("tokenizer", name));
        }
    }
}
