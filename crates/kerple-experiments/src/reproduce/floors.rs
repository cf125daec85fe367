//! The floors of tasks, written once next to the manifest while the files of the tasks are
//! available.

use super::Reproduction;
use crate::error::Result;
use crate::floors::{FLOORS_FILE, Floor};

impl Reproduction {
    /// Writes what right answers of the tasks with classes are worth, once.
    ///
    /// # Errors
    /// Files of tasks that cannot be read, a file that cannot be written.
    pub(super) fn write_floors(&self) -> Result<()> {
        let file = self.out.join(FLOORS_FILE);
        if kerple_run::look(&file)?.is_some() {
            return Ok(());
        }
        let mut floors = Vec::new();
        for corpus in &self.experiment.corpora {
            let Some(task) = &corpus.task else { continue };
            let train = self.experiment.config(&[], corpus, self.data_config(&corpus.name))?.train;
            let examples = task.open(self.task_path(corpus).as_deref())?;
            floors.extend(Floor::of(&corpus.name, &*examples, train.train_len)?);
        }
        if floors.is_empty() { Ok(()) } else { Ok(kerple_run::write_json(&file, &floors)?) }
    }
}
