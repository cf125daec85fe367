//! The Chomsky-hierarchy tasks and their encoder: `che.json` and `che_encoder.json` next to a
//! manifest, generated with the released generators and model of Ruoss et al. 2023,
//! arXiv:2305.16843.
//!
//! Answers are recomputed from the inputs, losses and accuracies from logits, encodings through the whole model.

use crate::beside::{run_file, verdict};
use crate::folder::{CHE, CHE_ENCODER, CHE_ENCODER_TENSORS, ReferenceFolder};
use crate::{AllowedError, CaseComparison, CaseVerdict, Checked};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::parameters;
use kerple_data::tasks::TaskConfig;
use kerple_data::tasks::chomsky::Chomsky;
use kerple_lm::config::RunConfig;
use kerple_lm::model::{TokenBatch, Transducer};
use kerple_lm::objective::classified;
use kerple_lm::plan::{DataInfo, Plan};
use serde_json::Value;

/// What the two files of a folder say, where it has them.
pub fn verdicts(folder: &ReferenceFolder) -> Vec<CaseVerdict> {
    let mut found = Vec::new();
    let languages = Chomsky::ALL.len() as u64;
    run_file(folder, CHE, Some(languages), &mut found, |all, found| {
        let tasks = all["tasks"].as_object()?;
        for (name, values) in tasks {
            found.push(verdict(&format!("che/{name}"), || task(name, values)));
        }
        Some(tasks.len())
    });
    run_file(folder, CHE_ENCODER, folder.promised(CHE_ENCODER), &mut found, |all, found| {
        let cases = all["cases"].as_array()?;
        for case in cases {
            let name = case["encoding"].as_str().unwrap_or("(no encoding)");
            for implementation in [Impl::Kernel, Impl::Reference] {
                found.push(verdict(&format!("che_encoder/{name}"), || {
                    encoder(folder, &all["config"], case, implementation)
                }));
            }
        }
        Some(cases.len())
    });
    found
}

fn integers(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|number| number as u32).collect()
}

/// Every example's answer and mask from its input, and the loss and accuracy of some logits.
fn task(name: &str, values: &Value) -> Checked<CaseComparison> {
    let task = Chomsky::named(name).ok_or_else(|| format!("unknown task `{name}`"))?;
    let facts = TaskConfig::Chomsky(task).facts();
    let mut comparison = CaseComparison::new("solver");
    let level = match task.level().letters() {
        "R" => "regular",
        "DCF" => "dcf",
        _ => "cs",
    };
    comparison.equal("level", Some(level), values["level"].as_str());
    comparison.equal("input_size", Some(facts.vocab as u64), values["input_size"].as_u64());
    comparison.equal("output_size", Some(facts.classes as u64), values["output_size"].as_u64());
    let examples = values["examples"].as_array().filter(|examples| !examples.is_empty()).ok_or(
        "the case has no \
            examples",
    )?;
    for example in examples {
        let input = integers(&example["input"]);
        let (targets, scored) = task.solve(&input);
        comparison.equal(&format!("answer to {input:?}"), targets, integers(&example["output"]));
        let scored: Vec<u32> = scored.into_iter().map(u32::from).collect();
        comparison.equal(&format!("mask of {input:?}"), scored, integers(&example["mask"]));
        let length = example["length"].as_u64().unwrap_or(0) as usize;
        let drawn = length - usize::from(task == Chomsky::ModularArithmetic && length.is_multiple_of(2));
        comparison.equal("length", input.len(), drawn);
    }
    metric(task, &values["metric_case"], &mut comparison)?;
    Ok(comparison)
}

/// The mean loss over all answers and the accuracy over those that count, of given logits.
fn metric(task: Chomsky, case: &Value, comparison: &mut CaseComparison) -> Checked<()> {
    fn flat(value: &Value, out: &mut Vec<f64>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| flat(item, out)),
            number => out.extend(number.as_f64()),
        }
    }
    let (mut logits, mut targets) = (Vec::new(), Vec::new());
    flat(&case["logits"], &mut logits);
    flat(&case["targets"], &mut targets);
    let targets: Vec<u32> = targets.into_iter().map(|target| target as u32).collect();
    if targets.is_empty() || !logits.len().is_multiple_of(targets.len()) {
        return Err("the metric case has no targets".to_owned());
    }
    let classes = logits.len() / targets.len();
    let each = case["targets"][0].as_array().map_or(1, Vec::len).max(1);
    let scored: Vec<bool> = targets.chunks(each).flat_map(|row| task.counted(row)).collect();
    let found = classified(&logits, classes, &targets, None);
    // the original computes both in single precision
    let single = AllowedError { absolute: 2e-7, relative: 2e-6 };
    comparison.compare("loss", &[found.loss()], &[case["loss"].as_f64().unwrap_or(f64::NAN)], single);
    let counted = kerple_lm::objective::TargetScores { scored: Some(scored), ..found };
    let accuracy = counted.accuracy().unwrap_or(f64::NAN);
    comparison.compare("accuracy", &[accuracy], &[case["accuracy"].as_f64().unwrap_or(f64::NAN)], single);
    Ok(())
}

/// The encoder's logits at every token with the original's weights.
fn encoder(folder: &ReferenceFolder, config: &Value, case: &Value, implementation: Impl) -> Checked<CaseComparison> {
    let mut comparison = CaseComparison::new(format!("{implementation:?}").to_lowercase());
    let name = case["encoding"].as_str().unwrap_or("");
    let (kind, keys) = match name {
        "NONE" => ("none", ""),
        "SIN_COS" => ("sinusoidal", ""),
        "ROTARY" => ("rotary", ""),
        "RELATIVE" => ("transformer_xl", ""),
        "ALIBI" => ("alibi", ", behind = 0.5"),
        other => return Err(format!("this version has no encoding for `{other}` of the original")),
    };
    let size = |key: &str| match crate::case::size(&config[key], key)? {
        0 => Err(format!("config.{key} is 0")),
        size => Ok(size),
    };
    let sizes = EncoderSizes { width: size("embedding_dim")?, heads: size("num_heads")?, layers: size("num_layers")? };
    let plan = sizes.plan(&format!("{{ kind = \"{kind}\"{keys} }}"), size("vocab")?)?;
    let tensor = |key: &str| folder.array(&serde_json::json!({"file": CHE_ENCODER_TENSORS, "key": key}));
    let onehot = tensor("input_onehot")?;
    let tokens: Vec<u32> = onehot
        .values
        .chunks(size("vocab")?)
        .map(|row| row.iter().position(|value| *value == 1.0).map(|id| id as u32).ok_or("an invalid token"))
        .collect::<Result<_, _>>()?;
    let model = Transducer::new(&plan, size("output_size")?, &kerple_lm::device()).with_implementation(implementation);
    let (model, filled) = parameters::load(model, |path, values| {
        let found = sizes.original(path, kind, &|key| tensor(&format!("{name}/{key}")).map(|found| found.values))?;
        if found.len() != values.len() {
            return Err(format!("{path}: {} values instead of {}", found.len(), values.len()));
        }
        values.iter_mut().zip(found).for_each(|(value, found)| *value = found as f32);
        Ok(())
    });
    filled?;
    let [batch, len] = [size("batch")?, size("T")?];
    let logits = model
        .logits(TokenBatch { ids: &tokens, batch, len, documents: None }, len, &ForwardContext::evaluation(0))
        .into_data();
    let got: Vec<f64> = logits.iter::<f64>().collect();
    // as the file's own note has it: both sides are in single precision
    let tolerance = AllowedError { absolute: 2e-5, relative: 2e-5 };
    comparison.compare("logits", &got, &tensor(&format!("{name}/output"))?.values, tolerance);
    Ok(comparison)
}

/// EncoderSizes of the original's encoder.
struct EncoderSizes {
    width: usize,
    heads: usize,
    layers: usize,
}

impl EncoderSizes {
    fn plan(&self, encoding: &str, vocab: usize) -> Checked<Plan> {
        let EncoderSizes { width, heads, layers } = self;
        let text = format!(
            r#"
            data = {{ task = "even_pairs" }}
            encoding = {encoding}
            [model]
            n_layers = {layers}
            n_heads = {heads}
            head_dim = {}
            [model.block]
            residual = "post_ln"
            activation = "relu"
            qkv_bias = false
            out_bias = false
            scale_embeddings = true
            "#,
            width / heads
        );
        let config = RunConfig::parse(&text, "the original's encoder", &[]).map_err(|error| error.to_string())?;
        let facts =
            config.data.task.as_ref().map(|task| kerple_lm::tasks::facts(task.facts())).ok_or("a task has a name")?;
        let facts = DataInfo { vocab_size: vocab, ..facts };
        Plan::new(&config, facts).map_err(|error| error.to_string())
    }

    /// The original's values of one of our parameters. Its norms stand behind the branches that ours stand in front of.
    fn original(&self, path: &str, kind: &str, read: &dyn Fn(&str) -> Checked<Vec<f64>>) -> Checked<Vec<f64>> {
        let numbered = |name: &str, number: usize| match number {
            0 => name.to_owned(),
            _ => format!("{name}_{number}"),
        };
        let within = |name: String| read(&format!("transformer_encoder/{name}"));
        let norm = |number: usize, which: &str| {
            let part = if which == "gamma" { "scale" } else { "offset" };
            within(format!("{}/{part}", numbered("layer_norm", number)))
        };
        let linear = |number: usize, which: &str| within(format!("{}/{}", numbered("linear", number), &which[..1]));
        let of_attention = |layer: usize, name: &str| {
            within(format!("{}/{name}", numbered("multi_head_dot_product_attention", layer)))
        };
        let attention = |layer: usize, number: usize| of_attention(layer, &format!("{}/w", numbered("linear", number)));
        // of the products of an attention, those of waves stand before the last
        let (rotated, last) = (kind == "rotary", if kind == "transformer_xl" { 4 } else { 3 });
        let parts: Vec<&str> = path.split('.').collect();
        let layer = || parts[2].parse::<usize>().map_err(|error| error.to_string());
        match parts[..] {
            ["head", which] => read(&format!("linear/{}", &which[..1])),
            ["encoder", "embedding"] => within("transformer_embedder/~embed_sequences/linear/w".to_owned()),
            ["encoder", "norm", which] => norm(2 * self.layers - 1, which),
            ["encoder", "blocks", _, "attention", "norm", which] => norm(2 * layer()? - 1, which),
            ["encoder", "blocks", _, "mlp", "norm", which] => norm(2 * layer()?, which),
            ["encoder", "blocks", _, "mlp", "up", which] => linear(2 * layer()?, which),
            ["encoder", "blocks", _, "mlp", "down", which] => linear(2 * layer()? + 1, which),
            ["encoder", "blocks", _, "attention", "out", "weight"] => attention(layer()?, last),
            ["encoder", "encoding", "layers", layer, number] => {
                let layer = layer.parse::<usize>().map_err(|error| error.to_string())?;
                match number {
                    "0" => Ok(self.of_waves(&attention(layer, 3)?)),
                    "1" => of_attention(layer, "relpos_contentbias"),
                    _ => of_attention(layer, "relpos_relativebias"),
                }
            }
            ["encoder", "blocks", _, "attention", "qkv", "weight"] => {
                let layer = layer()?;
                let [q, k, v] = [attention(layer, 0)?, attention(layer, 1)?, attention(layer, 2)?];
                Ok(self.packed([(&q, rotated), (&k, rotated), (&v, false)]))
            }
            _ => Err(format!("the original has no counterpart of {path}")),
        }
    }

    /// The transpose of a matrix `[waves, M]`, for waves of `i - j` where the original has them of `j - i`: sines change sign.
    fn of_waves(&self, matrix: &[f64]) -> Vec<f64> {
        let width = self.width;
        let sign = |wave: usize| if wave < width / 2 { -1.0 } else { 1.0 };
        let row = |feature: usize| (0..width).map(move |wave| sign(wave) * matrix[wave * width + feature]);
        (0..width).flat_map(row).collect()
    }

    /// Matrices `[M, M]` side by side, head by head; columns that turn in neighbouring pairs become those that turn in halves.
    fn packed(&self, parts: [(&[f64], bool); 3]) -> Vec<f64> {
        let head_dim = self.width / self.heads;
        let column = |at: usize, rotated: bool| match (rotated, at < head_dim / 2) {
            (false, _) => at,
            (true, true) => 2 * at,
            (true, false) => 2 * (at - head_dim / 2) + 1,
        };
        let mut packed = Vec::with_capacity(3 * self.width * self.width);
        for row in 0..self.width {
            for head in 0..self.heads {
                for (matrix, rotated) in parts {
                    let start = row * self.width + head * head_dim;
                    packed.extend((0..head_dim).map(|at| matrix[start + column(at, rotated)]));
                }
            }
        }
        packed
    }
}
