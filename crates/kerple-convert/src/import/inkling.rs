//! The tensors of Inkling's folders, by the names of transformers' text model and folded into what a decoder has.
//!
//! ```text
//! names    model.layers.N. of a text model; model.language_model.layers.N. of text, images and sound; model.llm.layers.N. of the
//!          released checkpoint, with names of its own
//! down     mlp.down_proj times mlp.global_scale
//! norm     the final norm divided by logits_mup_width_multiplier
//! head     the rows of tokens that are predicted
//! w13_dn   rows of gate and up in turn, as two matrices
//! ```
//!
//! Tensors for images, sound and multi-token prediction are counted and left out.

use super::tensors::{TensorReader, TransformersFolder, check_finite, read_parts};
use kerple_lm::tensors::ValueSink;
use kerple_lm::{Error, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How names in the layers of the released checkpoint begin, and the names of transformers. The first that fits is taken.
const RELEASED: [(&str, &str); 17] = [
    ("attn.wq_du.", "self_attn.q_proj."),
    ("attn.wk_dv.", "self_attn.k_proj."),
    ("attn.wv_dv.", "self_attn.v_proj."),
    ("attn.wr_du.", "self_attn.r_proj."),
    ("attn.wo_ud.", "self_attn.o_proj."),
    ("attn.rel_logits_proj.", "self_attn.rel_logits_proj."),
    ("attn.q_norm.", "self_attn.q_norm."),
    ("attn.k_norm.", "self_attn.k_norm."),
    ("attn.k_sconv.", "self_attn.k_sconv.conv1d."),
    ("attn.v_sconv.", "self_attn.v_sconv.conv1d."),
    ("attn_norm.", "input_layernorm."),
    ("mlp_norm.", "post_attention_layernorm."),
    ("attn_sconv.", "attn_sconv.conv1d."),
    ("mlp_sconv.", "mlp_sconv.conv1d."),
    ("mlp.w2_md.", "mlp.down_proj."),
    ("mlp.w13_dn.", "mlp.w13_dn."),
    ("mlp.global_scale", "mlp.global_scale"),
];

/// The same outside layers.
const RELEASED_OUTSIDE: [(&str, &str); 4] = [
    ("embed.weight", "model.embed_tokens.weight"),
    ("embed_norm.weight", "model.embed_tokens.embed_norm.weight"),
    ("norm.weight", "model.norm.weight"),
    ("unembed.weight", HEAD),
];

const HEAD: &str = "lm_head.weight";
const NORM: &str = "model.norm.weight";
const DOWN: &str = "mlp.down_proj.weight";
const SCALE: &str = "mlp.global_scale";
const GATE_AND_UP: &str = "mlp.w13_dn.weight";

/// Parts of the model that the text model does not read.
const OTHERS: [&str; 5] = ["model.vision_tower.", "model.audio_tower.", "model.visual.", "model.audio.", "model.mtp."];

/// Where a tensor is stored, and what is done to its values.
#[derive(Debug)]
struct Stored {
    name: String,
    folding: Folding,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Folding {
    None,
    /// Every value times this.
    Times(f32),
    /// Every value divided by this.
    Over(f64),
    /// The first rows.
    First(usize),
    /// Every second row, from this one on.
    EverySecond(usize),
}

/// Tensors of a folder as a decoder has them.
pub struct InklingTensors {
    files: TransformersFolder,
    /// By the names of transformers' text model; unknown ones by their own.
    known: BTreeMap<String, Stored>,
    /// How many tensors of each other part there are.
    left_out: BTreeMap<&'static str, usize>,
}

impl InklingTensors {
    /// Those of `files`, whose logits are divided by `multiplier`, and cut to `logits` where all `rows` of the vocabulary are
    /// stored.
    ///
    /// # Errors
    /// A tensor under two names; a scale that is missing, has another shape or cannot be read.
    pub fn new(files: TransformersFolder, multiplier: f64, [rows, logits]: [usize; 2]) -> Result<InklingTensors> {
        let mut tensors = InklingTensors { files, known: BTreeMap::new(), left_out: BTreeMap::new() };
        for name in tensors.files.names() {
            match OTHERS.into_iter().find(|part| name.starts_with(part)) {
                Some(part) => *tensors.left_out.entry(part).or_default() += 1,
                None => tensors.add(name)?,
            }
        }
        if let Some(norm) = tensors.known.get_mut(NORM) {
            norm.folding = Folding::Over(multiplier);
        }
        if let Some(head) = tensors.known.get_mut(HEAD)
            && logits < rows
            && tensors.files.shape(&head.name).is_some_and(|shape| shape.first() == Some(&rows))
        {
            head.folding = Folding::First(logits);
        }
        tensors.fold_scales()?;
        Ok(tensors)
    }

    /// What is folded and what is not imported, for the user.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let foldings = || self.known.values().map(|stored| stored.folding);
        if foldings().any(|folding| matches!(folding, Folding::Times(scale) if scale != 1.0)) {
            notes.push(format!("{SCALE} is multiplied into {DOWN}"));
        }
        for folding in foldings() {
            match folding {
                Folding::Over(divisor) if divisor != 1.0 => {
                    notes.push(format!("{NORM} is divided by logits_mup_width_multiplier = {divisor}"));
                }
                Folding::First(rows) => notes.push(format!("the first {rows} rows of {HEAD} are imported")),
                Folding::None | Folding::Times(_) | Folding::Over(_) | Folding::EverySecond(_) => {}
            }
        }
        let part = |(part, count): (&&str, &usize)| {
            let plural = if *count == 1 { "" } else { "s" };
            format!("{count} tensor{plural} of {}", part.trim_end_matches('.'))
        };
        let parts: Vec<String> = self.left_out.iter().map(part).collect();
        if !parts.is_empty() {
            notes.push(format!("not imported: {}", parts.join(", ")));
        }
        notes
    }

    fn add(&mut self, name: String) -> Result<()> {
        let usual = usual_name(&name);
        let Some(layer) = usual.strip_suffix(GATE_AND_UP) else {
            return self.insert(usual, name, Folding::None);
        };
        let shape = self.files.shape(&name).unwrap_or_default();
        if shape.first().is_none_or(|rows| !rows.is_multiple_of(2)) {
            let message = format!("tensor `{name}` has shape {shape:?}, but rows of gate and up take turns in it");
            return Err(Error::damaged(
                &self.files.place(&name),
                message,
                "the configuration belongs to another model",
            ));
        }
        let [gate, up] = ["mlp.gate_proj.weight", "mlp.up_proj.weight"].map(|part| format!("{layer}{part}"));
        self.insert(gate, name.clone(), Folding::EverySecond(0))?;
        self.insert(up, name, Folding::EverySecond(1))
    }

    fn insert(&mut self, usual: String, name: String, folding: Folding) -> Result<()> {
        let place = self.files.place(&name);
        let message = |other: &str| format!("tensors `{other}` and `{name}` are the same parameter, `{usual}`");
        if let Some(other) = self.known.get(&usual) {
            return Err(Error::damaged(&place, message(&other.name), "remove one of them"));
        }
        self.known.insert(usual, Stored { name, folding });
        Ok(())
    }

    /// Takes the scales of feed-forward branches out, into the matrices that they follow.
    fn fold_scales(&mut self) -> Result<()> {
        let layers: Vec<String> =
            self.known.keys().filter_map(|name| Some(name.strip_suffix(DOWN)?.to_owned())).collect();
        for layer in layers {
            let usual = format!("{layer}{SCALE}");
            let Some(scale) = self.known.remove(&usual) else {
                let message = format!("missing tensors: `{usual}`");
                let hint = "the folder contains a part of the model, or config.json belongs to another one";
                return Err(Error::damaged(&self.files.place(""), message, hint));
            };
            let shape = self.files.shape(&scale.name).unwrap_or_default();
            if shape != [1] {
                let message = format!("tensor `{}` has shape {shape:?}, it must be [1]", scale.name);
                let hint = "the configuration belongs to another model";
                return Err(Error::damaged(&self.files.place(&scale.name), message, hint));
            }
            let value = self.files.read(&scale.name)?[0];
            if let Some(down) = self.known.get_mut(&format!("{layer}{DOWN}")) {
                down.folding = Folding::Times(value);
            }
        }
        Ok(())
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.known.get(name).ok_or_else(|| {
            Error::damaged(&self.files.place(""), format!("tensor `{name}` is missing"), "copy the file again")
        })
    }
}

/// The name that transformers' text model has for a tensor; unknown names stay.
fn usual_name(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return format!("model.{rest}");
    }
    let Some(rest) = name.strip_prefix("model.llm.") else { return name.to_owned() };
    let outside = RELEASED_OUTSIDE.into_iter().find(|(released, _)| *released == rest);
    let in_layer = || {
        let (layer, rest) = rest.strip_prefix("layers.")?.split_once('.')?;
        let (released, usual) = RELEASED.into_iter().find(|(released, _)| rest.starts_with(released))?;
        Some(format!("model.layers.{layer}.{usual}{}", &rest[released.len()..]))
    };
    outside.map(|(_, usual)| usual.to_owned()).or_else(in_layer).unwrap_or_else(|| name.to_owned())
}

impl TensorReader for InklingTensors {
    fn names(&self) -> Vec<String> {
        self.known.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let Stored { name, folding } = self.known.get(name)?;
        let mut shape = self.files.shape(name)?;
        if let Some(rows) = shape.first_mut() {
            match folding {
                Folding::First(first) => *rows = (*rows).min(*first),
                Folding::EverySecond(_) => *rows /= 2,
                Folding::None | Folding::Times(_) | Folding::Over(_) => {}
            }
        }
        Some(shape)
    }

    fn read(&self, name: &str) -> Result<Vec<f32>> {
        read_parts(self, name)
    }

    fn parts(&self, name: &str, take: &mut ValueSink<'_>) -> Result<()> {
        let Stored { name, folding } = self.stored(name)?;
        let columns = self.files.shape(name).map_or(1, |shape| shape.iter().skip(1).product::<usize>()).max(1);
        let (place, mut count) = (self.files.place(name), 0);
        self.files.parts(name, &mut |part| {
            let (first, len) = (count, part.len());
            count += len;
            let is_in = |at: usize| match folding {
                Folding::First(rows) => (first + at) / columns < *rows,
                Folding::EverySecond(from) => (first + at) / columns % 2 == *from,
                Folding::None | Folding::Times(_) | Folding::Over(_) => true,
            };
            let fold = |value: f32| match folding {
                Folding::Times(factor) => value * factor,
                Folding::Over(divisor) => (f64::from(value) / divisor) as f32,
                Folding::None | Folding::First(_) | Folding::EverySecond(_) => value,
            };
            let kept = part.into_iter().enumerate().filter(|(at, _)| is_in(*at));
            let folded: Vec<f32> = kept.map(|(_, value)| fold(value)).collect();
            check_finite(&folded, first, name, &place)?;
            take(folded)
        })
    }

    fn place(&self, name: &str) -> PathBuf {
        self.files.place(self.stored_name(name))
    }

    fn stored_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.known.get(name).map_or(name, |stored| &stored.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_names_become_those_of_transformers() {
        for (stored, usual) in [
            ("model.llm.layers.3.attn.wq_du.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("model.llm.layers.3.attn.wk_dv.weight", "model.layers.3.self_attn.k_proj.weight"),
            ("model.llm.layers.3.attn.wv_dv.weight", "model.layers.3.self_attn.v_proj.weight"),
            ("model.llm.layers.3.attn.wr_du.weight", "model.layers.3.self_attn.r_proj.weight"),
            ("model.llm.layers.3.attn.wo_ud.weight", "model.layers.3.self_attn.o_proj.weight"),
            ("model.llm.layers.3.attn.rel_logits_proj.proj", "model.layers.3.self_attn.rel_logits_proj.proj"),
            ("model.llm.layers.3.attn.q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
            ("model.llm.layers.3.attn.k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
            ("model.llm.layers.3.attn.k_sconv.weight", "model.layers.3.self_attn.k_sconv.conv1d.weight"),
            ("model.llm.layers.3.attn.v_sconv.weight", "model.layers.3.self_attn.v_sconv.conv1d.weight"),
            ("model.llm.layers.12.attn_norm.weight", "model.layers.12.input_layernorm.weight"),
            ("model.llm.layers.12.mlp_norm.weight", "model.layers.12.post_attention_layernorm.weight"),
            ("model.llm.layers.12.attn_sconv.weight", "model.layers.12.attn_sconv.conv1d.weight"),
            ("model.llm.layers.12.mlp_sconv.weight", "model.layers.12.mlp_sconv.conv1d.weight"),
            ("model.llm.layers.12.mlp.w2_md.weight", "model.layers.12.mlp.down_proj.weight"),
            ("model.llm.layers.12.mlp.w13_dn.weight", "model.layers.12.mlp.w13_dn.weight"),
            ("model.llm.layers.12.mlp.global_scale", "model.layers.12.mlp.global_scale"),
            ("model.llm.embed.weight", "model.embed_tokens.weight"),
            ("model.llm.embed_norm.weight", "model.embed_tokens.embed_norm.weight"),
            ("model.llm.norm.weight", "model.norm.weight"),
            ("model.llm.unembed.weight", "lm_head.weight"),
            ("model.language_model.layers.0.attn_sconv.conv1d.weight", "model.layers.0.attn_sconv.conv1d.weight"),
            ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
            ("lm_head.weight", "lm_head.weight"),
            // a name that neither has stays, so that it is refused by it
            ("model.llm.layers.3.attn.other.weight", "model.llm.layers.3.attn.other.weight"),
            ("model.llm.other", "model.llm.other"),
        ] {
            assert_eq!(usual_name(stored), usual, "{stored}");
        }
    }
}
