//! `data.task` of a run file.

use super::chains::VariableTracking;
use super::chomsky::Chomsky;
use super::counts::{CommonWords, FrequentWords};
use super::fuzzy_recall::FuzzyRecall;
use super::group::GroupProduct;
use super::memory::{FlipFlop, SelectiveCopy};
use super::mqrar::Mqrar;
use super::needles::{NiahCodes, NiahSingle, NiahWords};
use super::recall::{Passkey, Recall};
use super::{Examples, TaskInfo};
use crate::error::Result;
#[cfg(feature = "music-lra")]
use crate::lra::LraTask;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

#[cfg(feature = "music-lra")]
const LRA_NAMES: &[&str] = &LraTask::NAMES;
#[cfg(not(feature = "music-lra"))]
const LRA_NAMES: &[&str] = &[];

#[cfg(feature = "music-lra")]
fn lra_named(name: &str) -> Option<TaskConfig> {
    LraTask::named(name).map(TaskConfig::Lra)
}

#[cfg(not(feature = "music-lra"))]
fn lra_named(_: &str) -> Option<TaskConfig> {
    None
}

/// Tasks with a name and keys of their own, beside those that come in families.
macro_rules! tasks {
    ($($(#[$doc:meta])* $name:literal $task:ident),+ $(,)?) => {
        /// Which task: its name, `task = "even_pairs"`, or its name and its keys, `task = { kind = "passkey", digits = 5 }`.
        #[derive(Clone, Debug, PartialEq)]
        pub enum TaskConfig {
            /// A formal language.
            Chomsky(Chomsky),
            $($(#[$doc])* $task($task),)+
            /// A task of the Long Range Arena.
            #[cfg(feature = "music-lra")]
            Lra(LraTask),
        }

        impl TaskConfig {
            /// Every name.
            pub fn names() -> impl Iterator<Item = &'static str> {
                Chomsky::ALL.into_iter().map(Chomsky::name).chain([$($name),+]).chain(LRA_NAMES.iter().copied())
            }

            /// The task of this name with the default keys.
            pub fn named(name: &str) -> Option<TaskConfig> {
                match name {
                    $($name => Some(TaskConfig::$task($task::default())),)+
                    name => Chomsky::named(name).map(TaskConfig::Chomsky).or_else(|| lra_named(name)),
                }
            }

            /// Its name, and its keys where it has some.
            fn written(&self) -> (&'static str, Option<Value>) {
                match self {
                    TaskConfig::Chomsky(task) => (task.name(), None),
                    $(TaskConfig::$task(keys) => {
                        ($name, Some(serde_json::to_value(keys).expect("keys are plain data")))
                    })+
                    #[cfg(feature = "music-lra")]
                    TaskConfig::Lra(task) => (task.name(), Some(task.keys())),
                }
            }

            /// The same task with the keys of a run file.
            fn with_keys(&self, keys: Map<String, Value>) -> serde_json::Result<TaskConfig> {
                Ok(match self {
                    TaskConfig::Chomsky(task) => match keys.keys().next() {
                        None => TaskConfig::Chomsky(*task),
                        Some(key) => {
                            let message = format!("unknown field `{key}`: the task {} has no keys", task.name());
                            return Err(serde_json::Error::custom(message));
                        }
                    },
                    $(TaskConfig::$task(_) => TaskConfig::$task(serde_json::from_value(keys.into())?),)+
                    #[cfg(feature = "music-lra")]
                    TaskConfig::Lra(task) => TaskConfig::Lra(task.with_keys(keys)?),
                })
            }

            /// The examples, where they are drawn.
            fn drawn(&self) -> Option<Box<dyn Examples>> {
                Some(match self {
                    TaskConfig::Chomsky(task) => Box::new(*task),
                    $(TaskConfig::$task(task) => Box::new(*task),)+
                    #[cfg(feature = "music-lra")]
                    TaskConfig::Lra(_) => return None,
                })
            }
        }
    };
}

tasks! {
    /// A number hidden in noise.
    "passkey" Passkey,
    /// Multi-query associative recall.
    "recall" Recall,
    /// A needle in periodic noise.
    "niah_single" NiahSingle,
    /// Needles among needles, words with values.
    "niah_words" NiahWords,
    /// Needles among needles, codes with codes.
    "niah_codes" NiahCodes,
    /// Recall of the value before the last ones.
    "mqrar" Mqrar,
    /// One bit of memory.
    "flipflop" FlipFlop,
    /// Copying of the tokens that are not blank.
    "selective_copy" SelectiveCopy,
    /// Products in a finite group.
    "group" GroupProduct,
    /// Names that are set to each other.
    "vt" VariableTracking,
    /// The most frequent words.
    "fwe" FrequentWords,
    /// Words that are more frequent than the others.
    "cwe" CommonWords,
    /// Recall of runs of symbols.
    "fuzzy_recall" FuzzyRecall,
}

impl TaskConfig {
    /// Its name in run files.
    pub fn name(&self) -> &'static str {
        self.written().0
    }

    /// Whether its sequences are two texts with [`PAIR_SEPARATOR`](super::PAIR_SEPARATOR) between them.
    pub fn is_pair(&self) -> bool {
        self.name() == "lra_retrieval"
    }

    /// Whether its examples can be read from files; those of other tasks are always drawn.
    pub fn reads_files(&self) -> bool {
        self.drawn().is_none()
    }

    /// Whether its examples without files replace published ones, instead of being generated as
    /// published.
    pub fn is_made_up_without_files(&self) -> bool {
        match self {
            #[cfg(feature = "music-lra")]
            TaskConfig::Lra(task) => task.is_made_up_without_files(),
            _ => false,
        }
    }

    /// Refuses keys out of range.
    ///
    /// # Errors
    /// The key, the value and the limit.
    pub fn check(&self) -> Result<()> {
        self.drawn().map_or(Ok(()), |examples| examples.check())
    }

    /// The facts of its examples that are known before data is read.
    pub fn facts(&self) -> TaskInfo {
        match self {
            #[cfg(feature = "music-lra")]
            TaskConfig::Lra(task) => task.facts(),
            task => task.drawn().expect("all others are drawn").facts(),
        }
    }

    /// Targets of a sequence of `length` tokens.
    pub fn answers(&self, length: usize) -> usize {
        // a sequence with a class has one
        self.drawn().map_or(1, |examples| examples.answers(length))
    }

    /// Its examples, from the files at `path` where the task has data.
    ///
    /// # Errors
    /// Keys out of range, files that are missing or damaged.
    pub fn open(&self, path: Option<&Path>) -> Result<Box<dyn Examples>> {
        self.open_until(path, &AtomicBool::new(false))
    }

    /// As [`TaskConfig::open`], until `stop` is set: large sets of files take minutes.
    ///
    /// # Errors
    /// As [`TaskConfig::open`]; [`crate::Error::Stopped`].
    pub fn open_until(&self, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
        self.check()?;
        match self {
            #[cfg(feature = "music-lra")]
            TaskConfig::Lra(task) => task.open(path, stop),
            task => Ok(task.drawn().expect("all others are drawn")),
        }
    }
}

impl Serialize for TaskConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let (name, keys) = self.written();
        let Some(keys) = keys else { return serializer.serialize_str(name) };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", name)?;
        for (key, value) in keys.as_object().into_iter().flatten() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct TaskVisitor;

impl<'de> Visitor<'de> for TaskVisitor {
    type Value = TaskConfig;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the name of a task, or a table with its `kind` and keys")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> std::result::Result<TaskConfig, E> {
        #[cfg(not(feature = "music-lra"))]
        if crate::without_music_lra::TASKS.contains(&name) {
            let message = crate::without_music_lra::message("task", name);
            return Err(E::custom(format!("{message}; {}", crate::without_music_lra::HINT)));
        }
        TaskConfig::named(name).ok_or_else(|| {
            let names: Vec<&str> = TaskConfig::names().collect();
            E::custom(format!("unknown task `{name}`; the tasks are {}", names.join(", ")))
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<TaskConfig, A::Error> {
        let mut keys = Map::deserialize(MapAccessDeserializer::new(map))?;
        // what neither format has: TOML no null, JSON no nan
        if let Some((key, _)) = keys.iter().find(|(_, value)| value.is_null()) {
            return Err(A::Error::custom(format!("`{key}` is not a finite number")));
        }
        let kind = keys.remove("kind");
        let Some(kind) = kind.as_ref().and_then(|kind| kind.as_str()) else {
            return Err(A::Error::custom("a task needs a `kind`, e.g. task = { kind = \"passkey\" }"));
        };
        self.visit_str(kind)?.with_keys(keys).map_err(A::Error::custom)
    }
}

impl<'de> Deserialize<'de> for TaskConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<TaskConfig, D::Error> {
        deserializer.deserialize_any(TaskVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Data {
        task: TaskConfig,
    }

    fn read(text: &str) -> std::result::Result<TaskConfig, toml::de::Error> {
        toml::from_str::<Data>(text).map(|data| data.task)
    }

    #[test]
    fn tasks_are_written_as_they_are_read() {
        let keys = Passkey { digits: 3, ..Passkey::default() };
        assert_eq!(read("task = { kind = \"passkey\", digits = 3 }").unwrap(), TaskConfig::Passkey(keys));
        for name in TaskConfig::names() {
            let task = read(&format!("task = \"{name}\"")).unwrap();
            assert_eq!(read(&format!("task = {{ kind = \"{name}\" }}")).unwrap(), task);
            assert_eq!(read(&toml::to_string(&Data { task: task.clone() }).unwrap()).unwrap(), task, "{name}");
            assert_eq!(task.facts().name, name);
            // some are about data
            assert!(task.open(None).is_ok() || ["lra_text", "lra_image"].contains(&name));
        }
    }

    #[test]
    fn what_is_no_task_is_refused_with_what_there_is() {
        let message = |text: &str| read(text).unwrap_err().to_string();
        assert!(message("task = \"even pairs\"").contains("the tasks are even_pairs, modular_arithmetic"));
        assert!(message("task = { kind = \"even_pairs\", digits = 3 }").contains("even_pairs has no keys"));
        assert!(message("task = { kind = \"passkey\", pairs = 3 }").contains("unknown field `pairs`"));
        assert!(message("task = { digits = 3 }").contains("`kind`"));
        assert!(message("task = 7").contains("the name of a task"));
    }
}
