//! The tensors of a model, wherever they are stored.

use super::config::{self, ConfigKeys};
use super::short::short;
pub use super::short::shown;
use crate::export::drawn::is_drawn;
use kerple_lm::tensors::{Dtype, TensorFile, ValueSink};
use kerple_lm::{Error, Result};
use kerple_run::ModelFamily;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Tensors by their names, read one at a time.
pub trait TensorReader {
    /// Names of all of them.
    fn names(&self) -> Vec<String>;

    /// The shape of one.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// The values of one, row by row, in single precision.
    ///
    /// # Errors
    /// A tensor that is not there, cannot be read, is of a type that holds no numbers of a model, or holds one that is not
    /// finite.
    fn read(&self, name: &str) -> Result<Vec<f32>>;

    /// The same, given to `take` in parts that are one after the other.
    ///
    /// # Errors
    /// As of [`TensorReader::read`], and the first of `take`.
    fn parts(&self, name: &str, take: &mut ValueSink<'_>) -> Result<()> {
        take(self.read(name)?)
    }

    /// The file of one, for messages.
    fn place(&self, name: &str) -> PathBuf;

    /// What the file calls one.
    fn stored_name<'a>(&'a self, name: &'a str) -> &'a str {
        name
    }
}

/// [`TensorReader::read`] of what is read in parts.
pub(super) fn read_parts(tensors: &dyn TensorReader, name: &str) -> Result<Vec<f32>> {
    let mut all = Vec::with_capacity(tensors.shape(name).map_or(0, |shape| shape.iter().product()));
    tensors.parts(name, &mut |part| {
        all.extend(part);
        Ok(())
    })?;
    Ok(all)
}

/// The files of a folder of transformers.
pub struct TransformersFolder {
    files: Vec<TensorFile>,
    /// The file of each tensor.
    of: BTreeMap<String, usize>,
    /// Likewise of what was drawn, which is no weight.
    drawn: BTreeMap<String, usize>,
}

/// One file with everything, and what names the files of many.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Weights as pickles.
const OLD: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// What to do about a file that is not whole.
const AGAIN: &str = "copy the file again: it is truncated or damaged";

impl TransformersFolder {
    /// Opens the file with all tensors, or else those that the index names. It notes when both
    /// exist, or weights in another format. Buffers that a family recomputes are skipped.
    ///
    /// # Errors
    /// No file of tensors; an index that names files outside the folder, or tensors that are not in their files; a tensor that is
    /// in two of them; a file that `transformers_weights` names.
    pub fn open(folder: &Path, family: ModelFamily, keys: &ConfigKeys) -> Result<TransformersFolder> {
        keys.expect("transformers_weights", &[WHOLE.into()])?;
        let there = |name: &str| {
            let path = folder.join(name);
            kerple_run::files::is_there(&path).map_err(Error::io(&path, "look for"))
        };
        let [whole, index] = [there(WHOLE)?, there(INDEX)?];
        let mut found = match (whole, index) {
            (true, _) => {
                let file = TensorFile::open(&folder.join(WHOLE), AGAIN)?;
                let of = file.names().into_iter().map(|name| (name, 0)).collect();
                TransformersFolder { files: vec![file], of, drawn: BTreeMap::new() }
            }
            (false, true) => TransformersFolder::of_index(folder, &folder.join(INDEX), keys)?,
            (false, false) => return Err(without_tensors(folder)),
        };
        let taken = if whole { WHOLE } else { INDEX };
        for other in [INDEX, OLD[0], OLD[1]] {
            if other != taken && there(other)? {
                keys.remark(format!("found both {taken} and {other}: using {taken}, as transformers does"));
            }
        }
        if family == ModelFamily::Kerple {
            found.drawn = found.of.extract_if(.., |name, _| is_drawn(name)).collect();
        }
        found.of.retain(|name, _| !is_buffer(family, name));
        found.remark_on_types(keys);
        Ok(found)
    }

    /// Says where the configuration names another type than the tensors have: they are read as they are.
    fn remark_on_types(&self, keys: &ConfigKeys) {
        // older files write `torch.float32`, and `auto` stands for the type of the tensors
        let said = ["dtype", "torch_dtype"].map(|key| {
            let said = keys.value(key).and_then(serde_json::Value::as_str);
            said.map(|said| said.strip_prefix("torch.").unwrap_or(said)).filter(|said| *said != "auto")
        });
        let all: BTreeSet<&str> =
            self.of.iter().filter_map(|(name, file)| torch_name(self.files[*file].info(name)?.0)).collect();
        let stored = all.iter().copied().collect::<Vec<_>>().join(" and ");
        for (key, said) in ["dtype", "torch_dtype"].into_iter().zip(said) {
            if let Some(said) = said.filter(|said| !all.is_empty() && !all.contains(said)) {
                keys.remark(format!(
                    "{key} is {}, but the tensors are {stored}: keeping the type of the tensors",
                    short(said)
                ));
            }
        }
        if let [Some(new), Some(old)] = said
            && new != old
        {
            let (new, old) = (short(new), short(old));
            keys.remark(format!("dtype is {new}, but torch_dtype is {old}: keeping the type of the tensors, {stored}"));
        }
    }

    fn of_index(folder: &Path, index: &Path, keys: &ConfigKeys) -> Result<TransformersFolder> {
        let damaged = |message: String| Error::damaged(index, message, "copy the folder again");
        let value = config::parse(index, &config::read_text(index, config::INDEX)?)?;
        let map =
            value["weight_map"].as_object().ok_or_else(|| damaged("the table `weight_map` is missing".to_owned()))?;
        let mut found = TransformersFolder { files: Vec::new(), of: BTreeMap::new(), drawn: BTreeMap::new() };
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        for (tensor, file) in map {
            let name = file.as_str().filter(|name| is_name(name));
            let name = name.ok_or_else(|| {
                let (tensor, file) = (short(tensor), short(&file.to_string()));
                damaged(format!("tensor `{tensor}` is assigned to {file}, which is not a file of this folder"))
            })?;
            let number = match numbers.get(name) {
                Some(number) => *number,
                None => {
                    found.files.push(TensorFile::open(&folder.join(name), AGAIN)?);
                    numbers.insert(name, found.files.len() - 1);
                    found.files.len() - 1
                }
            };
            if found.files[number].info(tensor).is_none() {
                let message = format!("tensor `{}` is assigned to {name}, but is missing there", short(tensor));
                return Err(damaged(message));
            }
            found.of.insert(tensor.clone(), number);
        }
        found.check_others(index, keys)?;
        Ok(found)
    }

    /// Refuses a tensor that is in another file too, and names those of which the index says nothing.
    fn check_others(&self, index: &Path, keys: &ConfigKeys) -> Result<()> {
        let mut unsaid = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            for name in file.names() {
                match self.of.get(&name) {
                    None => unsaid.push(name),
                    Some(own) if *own == number => {}
                    Some(own) => {
                        let places = [*own, number].map(|number| self.files[number].path().display().to_string());
                        let message =
                            format!("tensor `{}` is both in {} and in {}", short(&name), places[0], places[1]);
                        return Err(Error::damaged(index, message, "remove it from one of them"));
                    }
                }
            }
        }
        if !unsaid.is_empty() {
            keys.remark(format!(
                "{INDEX} does not list these tensors of its files, so they are ignored: {}",
                shown(&unsaid)
            ));
        }
        Ok(())
    }

    fn file(&self, name: &str) -> Option<&TensorFile> {
        self.of.get(name).or(self.drawn.get(name)).map(|number| &self.files[*number])
    }
}

/// The name of a file in the same folder.
pub fn is_name(name: &str) -> bool {
    /// Bytes that a disk takes.
    const LONGEST: usize = 255;
    (1..=LONGEST).contains(&name.len()) && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

fn without_tensors(folder: &Path) -> Error {
    let is_there = |name: &str| kerple_run::files::is_there(&folder.join(name)).unwrap_or(false);
    let old = OLD.into_iter().find(|name| is_there(name));
    match old {
        Some(old) => Error::refused(
            format!("{}: of Hugging Face weights, only safetensors are supported", folder.join(old).display()),
            "convert it once with transformers: model.save_pretrained(FOLDER, safe_serialization=True)",
        ),
        None => Error::refused(
            format!("{} has neither {WHOLE} nor {INDEX}", folder.display()),
            "give the folder that contains config.json and the weights",
        ),
    }
}

/// Masks and rates that older files hold and every reader computes anew.
fn is_buffer(family: ModelFamily, name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let attention = match family {
        ModelFamily::GptNeox => "attention",
        ModelFamily::Gpt2 => "attn",
        _ => "",
    };
    match parts[..] {
        [.., "rotary_emb", "inv_freq"] => true,
        [.., above, "bias" | "masked_bias"] => above == attention,
        _ => false,
    }
}

impl TensorReader for TransformersFolder {
    fn names(&self) -> Vec<String> {
        self.of.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.file(name)?.info(name).map(|(_, shape)| shape.to_vec())
    }

    fn read(&self, name: &str) -> Result<Vec<f32>> {
        read_parts(self, name)
    }

    fn parts(&self, name: &str, take: &mut ValueSink<'_>) -> Result<()> {
        let absent = || Error::damaged(&self.place(name), format!("tensor `{name}` is missing"), AGAIN);
        let file = self.file(name).ok_or_else(absent)?;
        let (dtype, _) = file.info(name).ok_or_else(absent)?;
        // before anything is read
        let convert = conversion(dtype).ok_or_else(|| {
            let message = format!("tensor `{name}` has type {dtype:?}; F64, F32, F16 and BF16 can be imported");
            Error::refused(format!("{}: {message}", file.path().display()), "save the model in one of these types")
        })?;
        let mut count = 0;
        let found = file.parts(name, |bytes| {
            let part = convert(bytes);
            check_finite(&part, count, name, file.path())?;
            count += part.len();
            take(part)
        })?;
        if found { Ok(()) } else { Err(absent()) }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.file(name).or(self.files.first()).map_or_else(PathBuf::new, |file| file.path().to_owned())
    }
}

/// What torch calls a type of tensors.
fn torch_name(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F64 => Some("float64"),
        Dtype::F32 => Some("float32"),
        Dtype::F16 => Some("float16"),
        Dtype::BF16 => Some("bfloat16"),
        _ => None,
    }
}

/// Single precision of little-endian bytes.
type ToF32 = fn(&[u8]) -> Vec<f32>;

fn conversion(dtype: Dtype) -> Option<ToF32> {
    match dtype {
        Dtype::F64 => Some(from_f64),
        Dtype::F32 => Some(from_f32),
        Dtype::F16 => Some(from_f16),
        Dtype::BF16 => Some(from_bf16),
        _ => None,
    }
}

pub fn from_f64(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| f64::from_le_bytes(*chunk) as f32).collect()
}

pub fn from_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

pub fn from_f16(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| half::f16::from_le_bytes(*chunk).to_f32()).collect()
}

pub fn from_bf16(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| half::bf16::from_le_bytes(*chunk).to_f32()).collect()
}

/// Refuses values that are not finite; the values belong to a tensor, from its value `first` on.
///
/// # Errors
/// The first such value, with its index.
pub fn check_finite(values: &[f32], first: usize, name: &str, path: &Path) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let message = format!("value {} of tensor `{}` is {}", first + at, short(name), values[at]);
            Err(Error::damaged(path, message, "the model is damaged or its training diverged; use another checkpoint"))
        }
    }
}
