//! Weight files: memory holds one tensor at a time, and the drawn tensors.

use super::drawn::DrawnTensor;
use super::{ExportFolder, ExportOptions};
use crate::ModelFamily;
use crate::layout::{LayoutEntry, entries, outline};
use half::{bf16, f16};
use kerple_core::encoding::FormPositions;
use kerple_core::forms::Absolute;
use kerple_lm::plan::Plan;
use kerple_lm::tensors::TensorFile;
use kerple_lm::{Error, Result};
use safetensors::tensor::{Dtype, View};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;

/// Type of stored weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportPrecision {
    /// As they are.
    #[default]
    F32,
    /// Rounded to the nearest, ties to even.
    Bf16,
    /// The same; values beyond its range are refused.
    F16,
}

impl ExportPrecision {
    /// Its name in torch.
    pub fn torch(self) -> &'static str {
        match self {
            ExportPrecision::F32 => "float32",
            ExportPrecision::Bf16 => "bfloat16",
            ExportPrecision::F16 => "float16",
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            ExportPrecision::F32 => Dtype::F32,
            ExportPrecision::Bf16 => Dtype::BF16,
            ExportPrecision::F16 => Dtype::F16,
        }
    }

    fn bytes(self) -> usize {
        if self == ExportPrecision::F32 { 4 } else { 2 }
    }

    /// Little endian; the first value that is not finite in this type, if there is one.
    fn cast(self, values: &[f32]) -> (Vec<u8>, Option<f32>) {
        let (bytes, finite): (Vec<u8>, fn(f32) -> bool) = match self {
            ExportPrecision::F32 => (values.iter().flat_map(|value| value.to_le_bytes()).collect(), f32::is_finite),
            ExportPrecision::Bf16 => {
                (values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(), |value| {
                    bf16::from_f32(value).is_finite()
                })
            }
            ExportPrecision::F16 => {
                (values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(), |value| {
                    f16::from_f32(value).is_finite()
                })
            }
        };
        (bytes, values.iter().copied().find(|value| !finite(*value)))
    }
}

/// Where a tensor's values come from.
enum TensorSource {
    /// Tensor `number` of an entry.
    Entry { entry: usize, number: usize },
    /// They are here.
    Made(Vec<f32>),
}

struct ExportTensor {
    name: String,
    shape: Vec<usize>,
    source: TensorSource,
    /// What stays as it is in models of less precision: what encodings learn, and what was drawn.
    exact: bool,
}

/// All tensors of a model, sorted by name.
pub(super) struct ExportTensors<'a> {
    entries: Vec<LayoutEntry>,
    all: Vec<ExportTensor>,
    file: &'a TensorFile,
}

impl<'a> ExportTensors<'a> {
    /// Those of a plan's decoder, with what was drawn for it.
    pub(super) fn new(
        family: ModelFamily,
        plan: &Plan,
        file: &'a TensorFile,
        drawn: Vec<DrawnTensor>,
        options: &ExportOptions,
    ) -> ExportTensors<'a> {
        let entries = entries(family, plan);
        let of_entries = entries.iter().enumerate().flat_map(|(entry, known)| {
            let exact = family == ModelFamily::Kerple && known.ours.starts_with("encoding.");
            let tensor = move |(number, theirs): (usize, &crate::layout::SourceTensor)| ExportTensor {
                name: theirs.name.clone(),
                shape: theirs.shape.clone(),
                source: TensorSource::Entry { entry, number },
                exact,
            };
            known.theirs.iter().enumerate().map(tensor).collect::<Vec<ExportTensor>>()
        });
        let mut all: Vec<ExportTensor> = of_entries.collect();
        if family == ModelFamily::Inkling {
            let head = outline(family).head;
            // rows of tokens that are not predicted are there, and read by nobody
            all.iter_mut().filter(|tensor| tensor.name == head).for_each(|head| head.shape[0] = plan.model.vocab_size);
            let one = |name| ExportTensor { name, shape: vec![1], source: TensorSource::Made(vec![1.0]), exact: false };
            all.extend(super::inkling::scales(plan).map(one));
        }
        all.extend(drawn.into_iter().map(|drawn| ExportTensor {
            name: drawn.name_in_files(),
            shape: drawn.shape,
            source: TensorSource::Made(drawn.values),
            exact: family == ModelFamily::Kerple,
        }));
        if family == ModelFamily::Gpt2 {
            all.extend(fixed_rows(plan, options));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        ExportTensors { entries, all, file }
    }

    fn values(&self, tensor: &ExportTensor) -> Result<Vec<f32>> {
        match &tensor.source {
            TensorSource::Made(values) => Ok(values.clone()),
            TensorSource::Entry { entry, number } => {
                let entry = &self.entries[*entry];
                let mut values = entry.take(*number, &read(self.file, &entry.ours, entry.len())?);
                values.resize(tensor.shape.iter().product(), 0.0);
                Ok(values)
            }
        }
    }

    /// What to say of tensors that are larger than a file is to be.
    pub(super) fn beyond_shards(&self, options: &ExportOptions) -> Option<String> {
        let most = options.max_shard_size;
        let beyond: Vec<&ExportTensor> = self.all.iter().filter(|tensor| size(tensor, options) > most).collect();
        let largest = beyond.iter().max_by_key(|tensor| size(tensor, options))?;
        Some(format!(
            "--max-shard-size {most}: a tensor is never split, and larger than that are {}; the largest is {} of {} bytes",
            beyond.len(),
            largest.name,
            size(largest, options)
        ))
    }

    /// Writes all files and returns the bytes of the tensors.
    pub(super) fn write(&self, folder: &ExportFolder, options: &ExportOptions) -> Result<u64> {
        let size = |tensor: &ExportTensor| size(tensor, options);
        let mut shards: Vec<Vec<&ExportTensor>> = vec![Vec::new()];
        let mut held = 0;
        for tensor in &self.all {
            if held > 0 && held + size(tensor) > options.max_shard_size {
                shards.push(Vec::new());
                held = 0;
            }
            held += size(tensor);
            shards.last_mut().expect("there is one").push(tensor);
        }
        let total: u64 = self.all.iter().map(size).sum();
        let count = shards.len();
        let mut map = Map::new();
        for (number, shard) in shards.iter().enumerate() {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
            };
            self.write_file(folder, &name, shard, options)?;
            map.extend(shard.iter().map(|tensor| (tensor.name.clone(), Value::from(name.as_str()))));
        }
        if count > 1 {
            let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
            folder.write_json("model.safetensors.index.json", &index)?;
        }
        Ok(total)
    }

    fn write_file(
        &self,
        folder: &ExportFolder,
        name: &str,
        shard: &[&ExportTensor],
        options: &ExportOptions,
    ) -> Result<()> {
        let (path, failed) = (folder.path(name), RefCell::new(None));
        let views = shard.iter().copied().map(|tensor| {
            let view = LazyTensor { tensors: self, tensor, precision: precision(tensor, options), failed: &failed };
            (tensor.name.clone(), view)
        });
        // transformers 4 reads no file without this
        let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let written = safetensors::serialize_to_file(views, Some(about), &path);
        if let Some(error) = failed.take() {
            return Err(error);
        }
        written.map_err(|error| Error::io(&path, "write")(std::io::Error::other(error.to_string())))?;
        let sync = std::fs::File::open(&path).and_then(|file| file.sync_all());
        sync.map_err(Error::io(&path, "sync"))
    }
}

fn precision(tensor: &ExportTensor, options: &ExportOptions) -> ExportPrecision {
    if tensor.exact { ExportPrecision::F32 } else { options.precision }
}

/// Bytes that it takes in a file.
fn size(tensor: &ExportTensor, options: &ExportOptions) -> u64 {
    tensor.shape.iter().product::<usize>() as u64 * precision(tensor, options).bytes() as u64
}

/// The values of one of our tensors.
pub(super) fn read(file: &TensorFile, name: &str, len: usize) -> Result<Vec<f32>> {
    let fits = file.info(name).is_some_and(|(_, shape)| shape.iter().product::<usize>() == len);
    let mut values = vec![0.0; if fits { len } else { 0 }];
    if fits && file.read_f32(name, &mut values)? {
        return Ok(values);
    }
    let message = format!("the checkpoint has no tensor `{name}` of {len} values");
    Err(Error::damaged(file.path(), message, "this checkpoint belongs to another model"))
}

/// The rows of fixed positions that GPT-2 stores.
fn fixed_rows(plan: &Plan, options: &ExportOptions) -> Option<ExportTensor> {
    let rows = options.positions?;
    match plan.encoding.absolute(&plan.geometry(), FormPositions::from(0..rows))? {
        Absolute::Fixed(values) => Some(ExportTensor {
            name: "transformer.wpe.weight".to_owned(),
            shape: vec![rows, plan.model.d_model],
            source: TensorSource::Made(values.into_iter().map(|value| value as f32).collect()),
            exact: false,
        }),
        Absolute::Learned { .. } => None,
    }
}

/// A tensor that is read when it is written.
struct LazyTensor<'a> {
    tensors: &'a ExportTensors<'a>,
    tensor: &'a ExportTensor,
    precision: ExportPrecision,
    failed: &'a RefCell<Option<Error>>,
}

impl View for LazyTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.precision.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let fail = |error: Error| {
            self.failed.borrow_mut().get_or_insert(error);
            vec![0; self.data_len()]
        };
        if self.failed.borrow().is_some() {
            return vec![0; self.data_len()].into();
        }
        let bytes = match self.tensors.values(self.tensor) {
            Err(error) => fail(error),
            Ok(values) => match self.precision.cast(&values) {
                (bytes, None) => bytes,
                (_, Some(value)) => {
                    let (name, dtype) = (&self.tensor.name, self.precision.torch());
                    let message = format!("tensor `{name}` contains {value}, which is not finite as {dtype}");
                    fail(Error::refused(message, "leave out --dtype, or use bf16, which has the range of f32"))
                }
            },
        };
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.tensor.shape.iter().product::<usize>() * self.precision.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_even_and_to_nothing_infinite() {
        assert_eq!(ExportPrecision::F32.cast(&[1.5, -0.0]), ([1.5f32, -0.0].map(f32::to_le_bytes).concat(), None));
        // 1 + 2^-8 lies between two numbers of 8 bits, 1 + 3 2^-8 too
        let (bytes, bad) = ExportPrecision::Bf16.cast(&[1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8)]);
        assert_eq!((bytes, bad), ([0x3f80u16, 0x3f82].map(u16::to_le_bytes).concat(), None));
        assert_eq!(ExportPrecision::F16.cast(&[1.0, 65504.0, 70_000.0]).1, Some(70_000.0));
        assert_eq!(ExportPrecision::Bf16.cast(&[f32::MAX]).1, Some(f32::MAX));
    }
}
