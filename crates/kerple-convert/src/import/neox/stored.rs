//! The tensors of a step under the names of kerple's own family, merged over ranks.

use super::merge::{self, RankMerge};
use super::settings::NeoxSettings;
use crate::import::tensors::{self, TensorReader};
use kerple_core::encoding::{Geometry, Method, alibi};
use kerple_lm::{Error, Result};
use pytorch_reader::{DType, PytorchReader, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One tensor of all ranks, in their order, each with its file.
type RankTensors = Vec<(Tensor, PathBuf)>;

/// The tensors of a step.
pub struct NeoxTensors {
    folder: PathBuf,
    ranks: usize,
    parallel: bool,
    pos_emb: String,
    width: usize,
    heads: usize,
    /// By our names.
    all: BTreeMap<String, RankTensors>,
    /// Values of the encoding: their copies in all layers, each with the number of its layer.
    copies: BTreeMap<String, Vec<(usize, RankTensors)>>,
}

/// What to do about a file that is not whole.
const AGAIN: &str = "copy the checkpoint again: the file is truncated, damaged or of another kind";

/// Refuses a link to a file outside of the folder.
///
/// # Errors
/// The link's target.
pub fn check_inside(folder: &Path, path: &Path) -> Result<()> {
    let [inside, real] = [folder, path].map(|path| path.canonicalize().map_err(Error::io(path, "look for")));
    let (inside, real) = (inside?, real?);
    if real.starts_with(&inside) {
        return Ok(());
    }
    let message = format!("the file is a link to {}, outside the checkpoint", real.display());
    Err(Error::damaged(path, message, "put the file itself into the folder"))
}

/// A number of a layer or a rank.
fn number(text: &str) -> Option<usize> {
    text.parse::<u16>().ok().map(usize::from)
}

/// A file of tensors with a number of a layer and of a rank.
fn numbers(name: &str) -> Option<(usize, usize)> {
    let rest = name.strip_prefix("layer_")?.strip_suffix("-model_states.pt")?;
    let (layer, rank) = rest.split_once("-model_")?;
    Some((number(layer)?, number(rank)?))
}

fn open(folder: &Path, path: &Path, key: Option<&str>) -> Result<BTreeMap<String, Tensor>> {
    check_inside(folder, path)?;
    // what is no regular file is told before it is waited for
    let bytes = kerple_run::files::open(path).and_then(|file| file.metadata()).map_err(Error::io(path, "open"))?.len();
    let reader = match key {
        Some(key) => PytorchReader::with_top_level_key(path, key),
        None => PytorchReader::new(path),
    };
    let reader = reader.map_err(|error| Error::damaged(path, error.to_string(), AGAIN))?;
    let tensors: BTreeMap<String, Tensor> = reader.into_tensors().into_iter().collect();
    // a few numbers can be said to stand for any shape
    match tensors.iter().find(|(_, tensor)| tensor.byte_len() as u64 > bytes) {
        Some((name, tensor)) => {
            let (shape, wanted) = (tensor.shape(), tensor.byte_len());
            let message = format!("tensor `{name}` of shape {shape:?} needs {wanted} bytes; the file has {bytes}");
            Err(Error::damaged(path, message, AGAIN))
        }
        None => Ok(tensors),
    }
}

/// The tensors of one layer in a file of one rank.
struct LayerFile {
    layer: usize,
    rank: usize,
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

/// Every file of tensors of a step.
fn files(folder: &Path) -> Result<Vec<LayerFile>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        names.push(entry.map_err(Error::io(folder, "list"))?.path());
    }
    names.sort();
    let mut found = Vec::new();
    for path in &names {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some((layer, rank)) = numbers(name) {
            found.push(LayerFile { layer, rank, path: path.clone(), tensors: open(folder, path, None)? });
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    // without pipeline stages everything is in one file a rank
    for path in &names {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rank = name.strip_prefix("mp_rank_").and_then(|rest| rest.strip_suffix("_model_states.pt"));
        let Some(rank) = rank.and_then(number) else { continue };
        let mut layers: BTreeMap<usize, BTreeMap<String, Tensor>> = BTreeMap::new();
        for (name, tensor) in open(folder, path, Some("module"))? {
            let split = name.strip_prefix("sequential.").and_then(|rest| rest.split_once('.'));
            let Some((layer, rest)) = split.and_then(|(layer, rest)| Some((number(layer)?, rest))) else {
                return Err(Error::damaged(path, format!("tensor `{name}` is not in a layer of `sequential`"), AGAIN));
            };
            layers.entry(layer).or_default().insert(rest.to_owned(), tensor);
        }
        found.extend(layers.into_iter().map(|(layer, tensors)| LayerFile { layer, rank, path: path.clone(), tensors }));
    }
    if found.is_empty() {
        Err(Error::refused(
            format!("{} contains no tensors: it has no files layer_NN-model_RR-model_states.pt", folder.display()),
            "give the folder of a step, or of a run with a file `latest`",
        ))
    } else {
        Ok(found)
    }
}

/// Our name of a tensor of a layer, in a model of so many blocks. `None`: a buffer that is computed anew.
fn name_of(layer: usize, name: &str, blocks: usize) -> Option<String> {
    if name.ends_with("inv_freq") {
        return None;
    }
    let renamed = name.replace("mlp.linear1.", "mlp.dense_h_to_4h.").replace("mlp.linear2.", "mlp.dense_4h_to_h.");
    Some(match (layer, renamed.as_str()) {
        (0, "word_embeddings.weight") => "model.embed_tokens.weight".to_owned(),
        (0, "position_embeddings.weight") => "model.encoding.positions".to_owned(),
        (layer, name) if (2..2 + blocks).contains(&layer) => format!("model.layers.{}.{name}", layer - 2),
        (layer, "norm.weight" | "norm.bias") if layer == blocks + 3 => {
            format!("model.final_layer_norm.{}", &renamed[5..])
        }
        (layer, "final_linear.weight") if layer == blocks + 4 => "lm_head.weight".to_owned(),
        // there is no place for it, and its name says where it was
        (layer, name) => format!("layer {layer}: {name}"),
    })
}

/// What tensors of each kind of positions are called by us.
fn learned(pos_emb: &str) -> &'static [(&'static str, &'static str)] {
    match pos_emb {
        "kerple_log" => &[("bias_p", "r1"), ("bias_a", "r2")],
        "kerple_power_ap_" => &[("bias_a", "r1"), ("bias_p", "r2")],
        "kerple_power_ap_ap" => &[("bias_a", "r1"), ("bias_p", "r2"), ("wei_a", "r3"), ("wei_p", "r4")],
        "kerple_power__ap" => &[("wei_a", "r1"), ("wei_p", "r2")],
        "rpe" => &[("weight", "weight"), ("relative_attention_bias.weight", "weight")],
        _ => &[],
    }
}

impl NeoxTensors {
    /// Opens all files and finds the parts of every tensor; reads no values.
    ///
    /// # Errors
    /// Files that are missing or damaged, ranks that do not fit each other.
    pub fn open(folder: &Path, settings: &NeoxSettings) -> Result<NeoxTensors> {
        let blocks = settings.size("num-layers")?;
        let found = files(folder)?;
        let ranks = 1 + found.iter().map(|file| file.rank).max().unwrap_or(0);
        if let Some(said) = settings.ranks()?.filter(|said| *said != ranks) {
            let message =
                format!("the tensors come from {ranks} tensor-parallel ranks, but model-parallel-size is {said}");
            return Err(Error::damaged(folder, message, "give the whole checkpoint, with the files of all ranks"));
        }
        let mut by_name: BTreeMap<String, BTreeMap<usize, (Tensor, PathBuf)>> = BTreeMap::new();
        for LayerFile { layer, rank, path, tensors } in found {
            for (name, tensor) in tensors {
                if let Some(name) = name_of(layer, &name, blocks) {
                    by_name.entry(name).or_default().insert(rank, (tensor, path.clone()));
                }
            }
        }
        let mut stored = NeoxTensors {
            folder: folder.to_owned(),
            ranks,
            parallel: settings.is_parallel()?,
            pos_emb: settings.pos_emb().to_owned(),
            width: settings.size("hidden-size")?,
            heads: settings.size("num-attention-heads")?,
            all: BTreeMap::new(),
            copies: BTreeMap::new(),
        };
        for (name, parts) in by_name {
            if parts.len() != ranks {
                let missing = (0..ranks).find(|rank| !parts.contains_key(rank)).unwrap_or(0);
                let message = format!("tensor `{name}` is missing in the files of rank {missing}");
                return Err(Error::damaged(folder, message, "give the whole checkpoint, with the files of all ranks"));
            }
            stored.add(name, parts.into_values().collect())?;
        }
        Ok(stored)
    }

    fn add(&mut self, name: String, parts: RankTensors) -> Result<()> {
        let own = name.split_once(".attention.rpe.").or(name.split_once(".attention.alibi_embed."));
        let Some((layer, own)) = own else {
            self.all.insert(name, parts);
            return Ok(());
        };
        if let ("alibi", "slopes") | ("kerple_power_original", "bias_a") = (self.pos_emb.as_str(), own) {
            return self.check_slopes(&name, &parts);
        }
        match learned(&self.pos_emb).iter().find(|(theirs, _)| *theirs == own) {
            Some((_, ours)) => {
                let layer = layer.rsplit('.').next().and_then(|layer| layer.parse().ok()).unwrap_or(0);
                self.copies.entry(format!("model.encoding.{ours}")).or_default().push((layer, parts));
                Ok(())
            }
            None => {
                let message = format!("tensor `{name}` does not belong to pos-emb = {}", self.pos_emb);
                Err(Error::damaged(&parts[0].1, message, "the settings belong to another run"))
            }
        }
    }

    /// Slopes are not learned: those of the files must be those that we compute.
    fn check_slopes(&self, name: &str, parts: &RankTensors) -> Result<()> {
        let (found, ours) = (self.whole(name, parts)?, alibi::slopes(self.heads));
        let unit = unit(parts[0].0.dtype()).max(1e-6);
        let close = |(found, ours): (&f32, &f64)| (f64::from(*found) - ours).abs() <= unit * ours;
        if found.len() == ours.len() && found.iter().zip(&ours).all(close) {
            return Ok(());
        }
        let message = format!("the slopes in tensor `{name}` are not ALiBi's for {} heads", self.heads);
        Err(Error::damaged(&parts[0].1, message, "only ALiBi's own slopes can be imported"))
    }

    /// Tensor-parallel ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Rows of the embedding and the inner width of the feed-forward layers.
    ///
    /// # Errors
    /// Tensors that are missing or of another width.
    pub fn sizes(&self, width: usize) -> Result<[usize; 2]> {
        let of = |name: &str| match self.shape(name) {
            Some(shape) if shape.len() == 2 && shape[1] == width => Ok(shape[0]),
            found => {
                let message =
                    format!("tensor `{name}` has shape {:?}, but hidden-size is {width}", found.unwrap_or_default());
                Err(Error::damaged(&self.place(name), message, AGAIN))
            }
        };
        Ok([of("model.embed_tokens.weight")?, of("model.layers.0.mlp.dense_h_to_4h.weight")?])
    }

    /// Rows of learned positions.
    ///
    /// # Errors
    /// When there are none.
    pub fn positions(&self) -> Result<usize> {
        let shape = self.shape("model.encoding.positions");
        shape.and_then(|shape| shape.first().copied()).ok_or_else(|| {
            let message = "pos-emb is learned, but layer 0 has no tensor `position_embeddings.weight`";
            Error::damaged(&self.folder, message, AGAIN)
        })
    }

    /// Parameters of the encoding outside the range in which attention uses them.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn outside(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (name, copies) in &self.copies {
            if let Some([low, high]) = self.range(name) {
                let values = self.whole(name, &copies[0].1)?;
                if values.iter().any(|value| !(low..=high).contains(&f64::from(*value))) {
                    found.push(name.trim_start_matches("model.encoding.").to_owned());
                }
            }
        }
        Ok(found)
    }

    /// Smallest and largest value of a parameter of the encoding.
    fn range(&self, name: &str) -> Option<[f64; 2]> {
        let kind = match self.pos_emb.as_str() {
            "kerple_log" => "kerple_log",
            "kerple_power_ap_" => "kerple_power",
            "kerple_power_ap_ap" => "kerple_bias_weight",
            "kerple_power__ap" => "kerple_weight",
            _ => return None,
        };
        let parameters = Method::named(kind)?.positional().parameters(&Geometry::new(self.heads, 2, 2));
        let own = name.strip_prefix("model.encoding.")?;
        parameters.iter().find(|parameter| parameter.name == own).map(|parameter| [parameter.low, parameter.high])
    }

    fn parts(&self, name: &str) -> Option<&RankTensors> {
        self.all.get(name).or_else(|| self.copies.get(name)?.first().map(|(_, parts)| parts))
    }

    /// How the parts of a tensor become the whole.
    fn merge(&self, name: &str, parts: &RankTensors) -> RankMerge {
        let rule = match name.strip_prefix("model.encoding.") {
            Some("positions") => RankMerge::One,
            Some("weight") => RankMerge::Columns,
            Some(_) => RankMerge::Rows,
            None => merge::of(name, self.parallel),
        };
        match (rule, parts[0].0.shape()) {
            _ if self.ranks == 1 => RankMerge::One,
            // the width is split, or the vocabulary
            (RankMerge::Head, [_, columns]) if columns * self.ranks == self.width => RankMerge::Columns,
            (RankMerge::Head, _) => RankMerge::Rows,
            (rule, _) => rule,
        }
    }

    /// The values of all ranks.
    fn whole(&self, name: &str, parts: &RankTensors) -> Result<Vec<f32>> {
        let merge = self.merge(name, parts);
        let shapes: Vec<Vec<usize>> = parts.iter().map(|(tensor, _)| tensor.shape().to_vec()).collect();
        if merge::shape(merge, &shapes).is_none() {
            let message = format!("the parts of tensor `{name}` do not fit together: {shapes:?}");
            return Err(Error::damaged(&parts[0].1, message, "the files belong to different checkpoints"));
        }
        let used = if merge == RankMerge::One { &parts[..1] } else { &parts[..] };
        let values = used.iter().map(|(tensor, path)| read(tensor, name, path)).collect::<Result<Vec<_>>>()?;
        let columns: Vec<usize> = shapes.iter().map(|shape| shape.last().copied().unwrap_or(1)).collect();
        Ok(merge::values(merge, values, &columns))
    }
}

/// The largest relative error of rounding to a type.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-23),
    }
}

fn read(tensor: &Tensor, name: &str, path: &Path) -> Result<Vec<f32>> {
    let convert = match tensor.dtype() {
        DType::F64 => tensors::from_f64,
        DType::F32 => tensors::from_f32,
        DType::F16 => tensors::from_f16,
        DType::BF16 => tensors::from_bf16,
        other => {
            let message = format!("{}: tensor `{name}` has type {other:?}", path.display());
            return Err(Error::refused(message, "only floating-point tensors can be imported"));
        }
    };
    let bytes = tensor.read().map_err(|error| Error::damaged(path, format!("tensor `{name}`: {error}"), AGAIN))?;
    let values = convert(&bytes);
    tensors::check_finite(&values, 0, name, path)?;
    Ok(values)
}

impl TensorReader for NeoxTensors {
    fn names(&self) -> Vec<String> {
        self.all.keys().chain(self.copies.keys()).cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let parts = self.parts(name)?;
        let shapes: Vec<Vec<usize>> = parts.iter().map(|(tensor, _)| tensor.shape().to_vec()).collect();
        let whole = merge::shape(self.merge(name, parts), &shapes)?;
        // kernels are stored as [H, 1, 1]
        let is_kernel = self.copies.contains_key(name) && whole.len() == 3 && whole[1..] == [1, 1];
        Some(if is_kernel { whole[..1].to_vec() } else { whole })
    }

    fn read(&self, name: &str) -> Result<Vec<f32>> {
        let Some(copies) = self.copies.get(name) else {
            let parts = self.all.get(name);
            let absent = || Error::damaged(&self.folder, format!("tensor `{name}` is missing"), AGAIN);
            return self.whole(name, parts.ok_or_else(absent)?);
        };
        let (first, parts) = &copies[0];
        let values = self.whole(name, parts)?;
        for (layer, copy) in &copies[1..] {
            let (other, unit) = (self.whole(name, copy)?, unit(copy[0].0.dtype()));
            let close = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) <= 2.0 * unit * f64::from(a.abs().max(b.abs()));
            if other.len() != values.len() || !values.iter().zip(&other).all(close) {
                let message = format!(
                    "`{name}` differs between layers {first} and {layer}: each pipeline stage trained its own copy"
                );
                return Err(Error::damaged(
                    &copy[0].1,
                    message,
                    "such a model has no single kernel and cannot be imported",
                ));
            }
        }
        let Some([low, high]) = self.range(name) else { return Ok(values) };
        Ok(values.into_iter().map(|value| f64::from(value).clamp(low, high) as f32).collect())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.parts(name).map_or_else(|| self.folder.clone(), |parts| parts[0].1.clone())
    }
}
