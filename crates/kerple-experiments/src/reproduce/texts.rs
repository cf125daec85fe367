//! Checks that prepared texts are the requested ones: a result is never shown for other data than
//! its own.

use super::{CorpusConfig, Reproduction};
use crate::error::{Error, Result};
use kerple_data::{Inventory, Sources};
use std::path::PathBuf;

impl Reproduction {
    /// The file that records the texts of a corpus.
    fn inventory_file(&self, corpus: &CorpusConfig) -> PathBuf {
        self.data_of(&corpus.name).with_added_extension("texts.json")
    }

    /// The texts of `--data`; `None` where built-in ones replace them.
    fn given(&self, corpus: &CorpusConfig) -> Option<Sources> {
        let data = self.data.as_ref().filter(|_| !self.is_made_up(corpus));
        data.map(|data| Sources::paths(&[data.join(&corpus.texts)]))
    }

    /// Records the texts of a corpus before it is prepared.
    ///
    /// # Errors
    /// Texts that are not there.
    pub(super) fn keep_inventory(&self, corpus: &CorpusConfig) -> Result<()> {
        let texts = self.given(corpus).map(|texts| texts.inventory(&Inventory::default())).transpose()?;
        self.write_inventory(corpus, &texts.unwrap_or_default())
    }

    fn write_inventory(&self, corpus: &CorpusConfig, inventory: &Inventory) -> Result<()> {
        let file = self.inventory_file(corpus);
        let above = file.parent().expect("a file is in a folder");
        std::fs::create_dir_all(above).map_err(Error::io_while("creating", above))?;
        kerple_run::write_json(&file, inventory)
    }

    /// Refuses texts other than those that a corpus was prepared from. Without `--data` the corpus stands for itself, unless there
    /// are built-in texts that would be asked for so.
    ///
    /// # Errors
    /// The first difference; texts that are not there.
    pub(super) fn expect_same_texts(&self, corpus: &CorpusConfig) -> Result<()> {
        let file = self.inventory_file(corpus);
        let known = match kerple_run::look(&file)? {
            Some(_) => kerple_run::read_json(&file)?,
            None => Inventory::default(),
        };
        let Some(texts) = self.given(corpus) else {
            let has_built_in = self.is_made_up(corpus) || corpus.peps.is_some();
            return if !known.is_empty() && has_built_in {
                Err(self.other_texts(corpus, "the built-in texts"))
            } else {
                Ok(())
            };
        };
        let now = texts.inventory(&known)?;
        match known.difference(&now) {
            Some(difference) => Err(self.other_texts(corpus, &format!("{}: {difference}", texts.labels().join(", ")))),
            None if known == now => Ok(()),
            None => self.write_inventory(corpus, &now),
        }
    }

    fn other_texts(&self, corpus: &CorpusConfig, asked: &str) -> Error {
        let prepared = self.data_of(&corpus.name);
        Error::refused(
            format!("{} was prepared from other texts than {asked}", prepared.display()),
            "give the same --data as when it was prepared, or choose another --out folder; --pages-only \
                makes the pages without texts",
        )
    }
}
