//! The location of a run's text. The plan identifies the text by its content, so its location may
//! change.

use crate::checkpoint::present;
use crate::config::DataConfig;
use crate::corpus::DataSource;
use crate::error::{Error, Result};
use crate::plan::Plan;
use kerple_run::DATA_PATH_FILE;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Where the text was when the run was last trained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPath {
    /// As seen from the run folder, so that both can be moved together.
    pub from_run: Option<PathBuf>,
    /// From the root.
    pub absolute: Option<PathBuf>,
}

impl DataPath {
    /// The place of `path`, for a run in `run`. What cannot be written as text is left out.
    pub fn of(path: &Path, run: &Path) -> DataPath {
        let written = |path: PathBuf| path.to_str().is_some().then_some(path);
        let (path, run) = (std::path::absolute(path).ok(), std::path::absolute(run).ok());
        let from_run = path.as_ref().zip(run).and_then(|(path, run)| relative(path, &run));
        DataPath { from_run: from_run.and_then(written), absolute: path.and_then(written) }
    }

    pub(super) fn write(&self, run: &Path) -> Result<()> {
        kerple_run::write_json(&run.join(DATA_PATH_FILE), self)
    }

    /// What the run says, or nothing where it says nothing.
    pub(super) fn read(run: &Path) -> Result<DataPath> {
        let path = run.join(DATA_PATH_FILE);
        if present(&path)? { Ok(kerple_run::read_json(&path)?) } else { Ok(DataPath::default()) }
    }

    /// Whether nothing at all is where the text was, as in a copy without it.
    pub(super) fn is_empty(&self, run: &Path, plan: &Plan) -> bool {
        let there = |path: &Path, end: &str| {
            let mut file = path.as_os_str().to_owned();
            file.push(end);
            // what cannot be seen may be there
            Path::new(&file).try_exists().unwrap_or(true)
        };
        !self.candidates(run, plan).iter().any(|path| ["", ".idx", ".bin"].iter().any(|end| there(path, end)))
    }

    /// Possible locations of the text: next to the run, at its previous path, or at the run file's
    /// path, as seen from here.
    fn candidates(&self, run: &Path, plan: &Plan) -> Vec<PathBuf> {
        let beside = self.from_run.as_ref().map(|path| run.join(path));
        let mut places: Vec<PathBuf> = Vec::new();
        for place in [beside, self.absolute.clone(), Some(plan.data.path.clone())].into_iter().flatten() {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Opens the text of the plan, wherever it is.
    pub(super) fn open(&self, run: &Path, plan: &Plan) -> Result<(PathBuf, DataSource)> {
        let mut looked = Vec::new();
        for path in self.candidates(run, plan) {
            match DataSource::open(&DataConfig { path: path.clone(), ..plan.data.clone() }) {
                Ok(source) if source.facts().content == plan.data_info.content => return Ok((path, source)),
                Ok(_) => looked.push(format!("{}: other text", path.display())),
                Err(error) => looked.push(error.to_string()),
            }
        }
        Err(Error::refused(
            format!("the text of the run was not found\n  {}", looked.join("\n  ")),
            "give its path: kerple eval RUN --data PATH, or kerple train with --set data.path=PATH",
        ))
    }
}

/// `to` as seen from the folder `from`, both absolute; `None` where they have no root in common.
fn relative(to: &Path, from: &Path) -> Option<PathBuf> {
    let (to, from): (Vec<Component>, Vec<Component>) = (to.components().collect(), from.components().collect());
    let common = to.iter().zip(&from).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(Component::ParentDir, from.len() - common);
    (common > 0).then(|| up.chain(to[common..].iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_seen_from_the_run() {
        let seen = |to: &str, from: &str| relative(Path::new(to), Path::new(from)).unwrap();
        assert_eq!(seen("/a/data", "/a/runs/x"), Path::new("../../data"));
        assert_eq!(seen("/a/runs/x/data", "/a/runs/x"), Path::new("data"));
        assert_eq!(seen("/b", "/a"), Path::new("../b"));
    }
}
