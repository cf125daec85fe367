//! Runs whose first weights are not drawn at random: they begin with a checkpoint of step 0 without
//! optimizer state.

use super::{RunFolder, SpecialTokens};
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::tensors::TensorFile;
use kerple_burn::parameters;
use kerple_data::Tokenizer;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// How the name of a run ends while it is made.
const STATE: &str = "run";

/// What a run begins with.
pub struct InitialRun<'a> {
    /// Puts the weights, as [`crate::model::Decoder`] names them, into a file, and returns its SHA-256.
    pub weights: &'a mut dyn FnMut(&Path) -> Result<String>,
    /// The plan of a run that begins with weights of this SHA-256.
    pub plan: &'a dyn Fn(&str) -> Result<Plan>,
    /// Its tokenizer, where it has one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Its special tokens.
    pub special: SpecialTokens,
}

impl RunFolder {
    /// Makes the run, whole or not at all, where nothing or an empty folder is.
    ///
    /// # Errors
    /// A folder with something in it; the first error of what it begins with; what the file system refuses.
    pub fn create(&self, with: InitialRun) -> Result<Plan> {
        let place = self.path();
        let taken = fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_some());
        if taken || kerple_run::files::is_file(place).map_err(Error::io(place, "look for"))? {
            let message = format!("{} already exists and is not empty", place.display());
            return Err(Error::refused(message, "choose another --out folder, or remove this one"));
        }
        self.check_place()?;
        let (folder, name) = whereabouts(place)?;
        fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
        for (_, left) in kerple_run::files::abandoned(&folder, STATE) {
            _ = fs::remove_dir_all(left);
        }
        let aside = kerple_run::files::aside(&folder, &name, STATE);
        let make = || {
            fs::create_dir_all(&aside).map_err(Error::io(&aside, "create"))?;
            let plan = RunFolder::new(&aside).fill(with)?;
            fs::rename(&aside, place).map_err(Error::io(place, "rename to"))?;
            kerple_run::files::sync_folder(&folder).map_err(Error::io(&folder, "sync"))?;
            Ok(plan)
        };
        make().inspect_err(|_| _ = fs::remove_dir_all(&aside))
    }

    fn fill(&self, InitialRun { weights, plan, tokenizer, special }: InitialRun) -> Result<Plan> {
        let mut made = None;
        let first = checkpoint::create_initial(self.path(), weights, |sha256| {
            Ok(made.insert(plan(sha256)?).trajectory_hash())
        })?;
        let plan = made.expect("the trajectory was requested");
        self.write_tokens(tokenizer, &special)?;
        self.add_first_kernels(&plan, &first)?;
        self.write_plan(&plan)?;
        Ok(plan)
    }

    /// The tables that its first weights make, for pictures.
    fn add_first_kernels(&self, plan: &Plan, weights: &TensorFile) -> Result<()> {
        let encoding = crate::model::encoding(plan, &crate::device());
        let (encoding, filled) = parameters::load(encoding, |name, values| fill(weights, name, values));
        filled?;
        super::snapshot(&encoding, 0).map_or(Ok(()), |snapshot| self.add_kernels(snapshot))
    }
}

fn fill(file: &TensorFile, name: &str, values: &mut [f32]) -> Result<()> {
    checkpoint::fill(file, &format!("encoding.{name}"), values)
}

/// The folder of a place and its name there.
fn whereabouts(place: &Path) -> Result<(PathBuf, OsString)> {
    let absolute = std::path::absolute(place).map_err(Error::io(place, "look for"))?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(folder), Some(name)) => Ok((folder.to_owned(), name.to_owned())),
        _ => Err(Error::refused(
            format!("{} is not a valid folder name", place.display()),
            "choose another --out folder",
        )),
    }
}
