//! The checks of a plan.

use super::{ModelPlan, OutputHead};
use crate::config::{Pooling, TrainConfig};
use crate::error::{Error, Result};
use crate::layers::LayerSettings;
use crate::schedule::LrSchedule;
use kerple_burn::plan::{AttentionKind, BlockConfig, FeatureKind, LinearAttentionConfig, SinkKind};
use kerple_core::attention::linear::CHUNK;
use kerple_core::encoding::{ConfigError, Encoding, EncodingForm, Geometry, InLinear, Injection, ScoreModForm};
use kerple_core::forms::{AttnTemperature, GroupedPositions};
use kerple_core::score_mods::ScoreModSpec;
use kerple_data::tasks::{TaskConfig, TaskInfo};
use kerple_run::{StopRule, TrainingEnd};

/// Sequences of the largest batch.
const MOST_BATCH: usize = 1 << 20;

/// Tokens of the largest batch.
const MOST_TOKENS: f64 = (1u64 << 28) as f64;

/// Refuses `value` unless it lies in `limits`.
pub(super) fn check(key: &str, value: f64, limits: std::ops::RangeInclusive<f64>, hint: &str) -> Result<()> {
    if limits.contains(&value) {
        return Ok(());
    }
    let (low, high) = limits.into_inner();
    let limit = if high == f64::INFINITY { format!("at least {low}") } else { format!("between {low} and {high}") };
    Err(Error::Config {
        place: key.to_owned(),
        message: format!("{value} is out of range, it must be {limit}"),
        hint: hint.to_owned(),
    })
}

/// Only classes are read off something, and towers off pairs.
pub(super) fn check_pooling(task: Option<&TaskConfig>, pooling: Pooling) -> Result<()> {
    let is_class = OutputHead::of(task).is_class();
    let is_pair = task.is_some_and(TaskConfig::is_pair);
    let (fits, hint) = match pooling {
        Pooling::Mean => (true, ""),
        Pooling::Cls => (is_class, "remove it; it needs a task with one class per sequence"),
        Pooling::TwoTower => (is_pair, "remove it; it needs the task lra_retrieval"),
    };
    if fits {
        return Ok(());
    }
    let message = "the data does not support this pooling".to_owned();
    Err(Error::Config { place: "model.pooling".to_owned(), message, hint: hint.to_owned() })
}

/// Refuses a task with keys out of range, or sequences that are too short for it.
pub(super) fn check_task(task: &TaskConfig, train: &TrainConfig) -> Result<()> {
    task.check()?;
    let TaskInfo { name, shortest, .. } = task.facts();
    let place = format!("train.train_len of {name}");
    check(
        &place,
        train.train_len as f64,
        shortest as f64..=f64::INFINITY,
        "raise train.train_len to \
        fit the task",
    )
}

pub(super) fn check_block(model: &ModelPlan) -> Result<()> {
    let block = &model.block;
    let hint = "remove it to use the paper's value";
    check("model.block.dropout", block.dropout, 0.0..=0.95, hint)?;
    check("model.block.norm_eps", block.norm_eps, 0.0..=1.0, hint)?;
    let finite = -f64::MAX..=f64::MAX;
    check("model.block.attn_scale", block.attn_scale.unwrap_or(1.0), finite.clone(), hint)?;
    check("model.block.ssmax", block.ssmax.unwrap_or(1.0), finite.clone(), hint)?;
    if let Some(AttnTemperature { floor, alpha }) = block.attn_temperature {
        let hint = "Llama 4 has floor = 8192 and alpha = 0.1; remove attn_temperature for scores without a factor";
        check("model.block.attn_temperature.floor", floor, 1.0..=1e15, hint)?;
        check("model.block.attn_temperature.alpha", alpha, 0.0..=1e3, hint)?;
    }
    check("model.block.attn_softcap", block.attn_softcap.unwrap_or(1.0), 1e-6..=1e30, hint)?;
    check("model.block.clip_qkv", block.clip_qkv.unwrap_or(1.0), 1e-30..=1e30, hint)?;
    let none = "4 tokens in Inkling; remove it to have no short convolutions";
    check("model.block.short_conv", block.short_conv.unwrap_or(2) as f64, 2.0..=64.0, none)?;
    if block.short_conv.is_some() && block.key_shift {
        return Err(Error::Config {
            place: "model.block.short_conv".to_owned(),
            message: "it includes what a key shift does".to_owned(),
            hint: "remove model.block.key_shift or model.block.short_conv".to_owned(),
        });
    }
    Ok(())
}

/// Refuses fewer logits than the data has tokens, or a number of them that something else decides.
pub(super) fn check_logits(task: Option<&TaskConfig>, model: &ModelPlan, tokens: usize) -> Result<()> {
    let Some(rows) = model.unpadded_vocab_size else { return Ok(()) };
    let hint = "remove it to predict as many tokens as the embedding has rows";
    check("model.unpadded_vocab_size", rows as f64, tokens.max(1) as f64..=model.vocab_size as f64, hint)?;
    let message = match () {
        () if model.block.tie_embeddings => "the tied output projection has the rows of the embedding",
        () if task.is_some() => "a task decides what its models predict",
        () => return Ok(()),
    };
    Err(Error::Config {
        place: "model.unpadded_vocab_size".to_owned(),
        message: message.to_owned(),
        hint: hint.to_owned(),
    })
}

/// Refuses sizes of encodings that are out of range.
pub(super) fn check_encodings(encoding: &Encoding, geometry: &Geometry, model: &ModelPlan) -> Result<()> {
    encoding.check(geometry).map_err(refused)?;
    model.other_encodings().iter().try_for_each(|(name, other)| {
        let geometry = model.kind_geometry(name, geometry);
        other.check(&geometry).map_err(refused).map_err(|error| of_kind(error, name))
    })
}

/// Refuses other rotary rates in an evaluation where a kind of layers rotates and cannot have them.
pub(super) fn check_scaled_layers([trained, evaluated]: [&Encoding; 2], model: &ModelPlan) -> Result<()> {
    let Some(scaling) = evaluated.scaling().filter(|scaling| Some(*scaling) != trained.scaling()) else {
        return Ok(());
    };
    let others = model.other_encodings();
    others.iter().filter(|(_, other)| other.rotates()).try_for_each(|(name, other)| {
        other.with_rope_scaling(scaling).map(drop).map_err(|error| of_kind(refused(error), name))
    })
}

/// Refuses encodings and attention that cannot be in the layers in which they stand.
pub(super) fn check_layers(
    task: Option<&TaskConfig>,
    encoding: &Encoding,
    geometry: &Geometry,
    model: &ModelPlan,
) -> Result<()> {
    encoding.check(geometry).map_err(refused)?;
    let is_of_layers = !matches!(encoding.entry(), Injection::Nowhere | Injection::Embeddings);
    if is_of_layers && model.every_layer(encoding).all(|layer| layer.other.is_some()) {
        return Err(Error::Config {
            place: "encoding".to_owned(),
            message: format!("no layer uses the model's encoding {}", encoding.label()),
            hint: "leave at least one layer without an encoding of its own".to_owned(),
        });
    }
    if let Some(layer) = (0..model.n_layers).find(|layer| model.kind(*layer).is_none()) {
        check_layer(task, &model.layer(encoding, layer), geometry, model)?;
    }
    for (name, kind) in &model.layers {
        let layer = model.layer(encoding, kind.at[0]);
        let geometry = &layer.geometry(geometry);
        let absolute = layer.other.is_some() && layer.encoding.absolute(geometry, 0..1).is_some();
        let checked = if kind.sink_tokens.is_some() && layer.window.is_none() {
            Err(Error::Config {
                place: "sink_tokens".to_owned(),
                message: "first tokens stay visible under a window only, and these layers have no window".to_owned(),
                hint: "also set window, or remove it: without a window all tokens are visible".to_owned(),
            })
        } else if absolute {
            Err(Error::Config {
                place: "encoding.kind".to_owned(),
                message: format!(
                    "{} is added to the token embeddings and cannot be the encoding of \
                    a layer",
                    layer.encoding.label()
                ),
                hint: "set it as the model's encoding, in [encoding]".to_owned(),
            })
        } else {
            check_layer(task, &layer, geometry, model)
        };
        checked.map_err(|error| match (of_kind(error, name), kind.sink_tokens) {
            // the key that was written
            (Error::Config { place, message, hint }, Some(_)) if place.ends_with(".encoding.sink_tokens") => {
                Error::Config { place: format!("model.layers.{name}.sink_tokens"), message, hint }
            }
            (Error::Config { place, message, hint }, _) => {
                let own = match place.as_str() {
                    "model.block.n_kv_heads" if kind.n_kv_heads.is_some() => Some("n_kv_heads"),
                    "model.block.n_kv_heads" if kind.n_heads.is_some() => Some("n_heads"),
                    "model.block.attn_scale" if kind.attn_scale.is_some() => Some("attn_scale"),
                    _ => None,
                };
                Error::Config { place: own.map_or(place, |own| format!("model.layers.{name}.{own}")), message, hint }
            }
            (error, _) => error,
        })?;
    }
    Ok(())
}

/// The same error of a kind of layers.
fn of_kind(error: Error, name: &str) -> Error {
    let Error::Config { place, message, hint } = error else { return error };
    let place = match place.strip_prefix("model.block.") {
        Some(key) if !key.starts_with("attention") => place,
        Some(key) => format!("model.layers.{name}.{key}"),
        None => format!("model.layers.{name}.{place}"),
    };
    Error::Config { place, message, hint }
}

fn check_layer(task: Option<&TaskConfig>, layer: &LayerSettings, geometry: &Geometry, model: &ModelPlan) -> Result<()> {
    let encoding = layer.windowed();
    encoding.check(geometry).map_err(refused)?;
    check_growth(&encoding, geometry, model)?;
    check_attention(&encoding, layer, (geometry, model))?;
    check_gates(task, &encoding, layer.attention)?;
    check_normalizer(task, &encoding, &model.block)?;
    check_selective(task, &encoding, &model.block)?;
    check_grouped(task, &encoding, layer.attention, &model.block)?;
    check_direction(task, &encoding, &model.block)
}

/// Queries that grow with the keys in sight are for scores that are products of queries and keys, and nothing else.
fn check_growth(encoding: &Encoding, geometry: &Geometry, model: &ModelPlan) -> Result<()> {
    let reads_queries = match encoding.form(geometry, &encoding.initial(geometry, 0), 0..1) {
        EncodingForm::ScoreMod(ScoreModForm { map: ScoreModSpec::Relative(_) | ScoreModSpec::Cope(_), .. }) => true,
        EncodingForm::ScoreMod(ScoreModForm { map: ScoreModSpec::Mixed(_), .. }) => false,
        EncodingForm::Nothing
        | EncodingForm::Absolute(_)
        | EncodingForm::Rotary(_)
        | EncodingForm::Table(_)
        | EncodingForm::Gates(_)
        | EncodingForm::FeatureGates(_)
        | EncodingForm::ContentRotation(_)
        | EncodingForm::QueryKeyMap(_)
        | EncodingForm::RelativeBias(_)
        | EncodingForm::PathBias(_)
        | EncodingForm::Householder(_)
        | EncodingForm::Code(_) => false,
    };
    let set = [("ssmax", model.block.ssmax.is_some()), ("attn_temperature", model.block.attn_temperature.is_some())];
    match set.into_iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) if reads_queries => Err(Error::Config {
            place: format!("model.block.{key}"),
            message: format!(
                "{} does not support {key}: its scores are not only products of queries and keys",
                encoding.label()
            ),
            hint: "remove it, or use another encoding".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Stick-breaking and softpick take scores of a pair by itself and no sink; stick-breaking needs an order of the keys too.
fn check_normalizer(task: Option<&TaskConfig>, encoding: &Encoding, block: &BlockConfig) -> Result<()> {
    if block.normalizer.is_softmax() {
        return Ok(());
    }
    let kind = block.normalizer.kind();
    let refuse = |place: &str, message: String, hint: &str| {
        Err(Error::Config { place: place.to_owned(), message, hint: hint.to_owned() })
    };
    if block.sink != SinkKind::None {
        let message = format!("`{kind}` does not support an attention sink, which is part of the softmax");
        return refuse("model.block.sink", message, "remove it, or set model.block.normalizer = \"softmax\"");
    }
    if matches!(encoding.entry(), Injection::ScoreMod { .. } | Injection::PathBias | Injection::Householder { .. }) {
        let message =
            format!("`{kind}` does not support {}: its scores depend on other keys or heads", encoding.label());
        let hint = "set model.block.normalizer = \"softmax\", or use an encoding that changes each score on its own, such as kerple_log";
        return refuse("model.block.normalizer", message, hint);
    }
    if block.normalizer.stick_breaking().is_some() && OutputHead::of(task).is_bidirectional() {
        let message =
            format!("`{kind}` is defined for causal attention only, but an encoder attends in both directions");
        return refuse("model.block.normalizer", message, "set it to \"softmax\" or \"softpick\", or train a decoder");
    }
    Ok(())
}

/// Selective attention takes what one head scores off the scores of all, for queries in an order; so it needs a softmax of scores by
/// distance or of a score map.
fn check_selective(task: Option<&TaskConfig>, encoding: &Encoding, block: &BlockConfig) -> Result<()> {
    if block.selective_attention.is_none() {
        return Ok(());
    }
    let refuse = |message: String, hint: &str| {
        Err(Error::Config { place: "model.block.selective_attention".to_owned(), message, hint: hint.to_owned() })
    };
    if !block.normalizer.is_softmax() {
        let message = format!("selective attention masks keys of the softmax, not of `{}`", block.normalizer.kind());
        return refuse(message, "remove it, or set model.block.normalizer = \"softmax\"");
    }
    if OutputHead::of(task).is_bidirectional() {
        let message = "selective attention masks keys for later queries, but an encoder attends in both directions";
        return refuse(message.to_owned(), "remove it, or train a decoder");
    }
    if encoding.sink_tokens.is_some() {
        let message = "selective attention does not support first tokens that stay visible under a window".to_owned();
        return refuse(message, "remove it, or remove sink_tokens");
    }
    match encoding.entry() {
        Injection::Nowhere
        | Injection::Embeddings
        | Injection::Rotation { decays: false }
        | Injection::ContentRotation { decays: false, .. }
        | Injection::QueryKeyMap { widens: false }
        | Injection::Scores(_)
        | Injection::ScoreMod { .. } => Ok(()),
        Injection::Rotation { decays: true }
        | Injection::ContentRotation { decays: true, .. }
        | Injection::QueryKeyMap { widens: true }
        | Injection::Gates { .. }
        | Injection::FeatureGates { .. }
        | Injection::RelativeBias
        | Injection::PathBias
        | Injection::Householder { .. }
        | Injection::Code => {
            let message = format!("selective attention does not support {}", encoding.label());
            refuse(message, "remove it, or use an encoding by distance, such as kerple_log or rotary")
        }
    }
}

/// Far keys at positions of groups are for the softmax of a decoder.
fn check_grouped(
    task: Option<&TaskConfig>,
    encoding: &Encoding,
    attention: &AttentionKind,
    block: &BlockConfig,
) -> Result<()> {
    let Some(scaling) = encoding.scaling().filter(|scaling| scaling.grouped().is_some()) else { return Ok(()) };
    let unsupported = [
        ("linear attention".to_owned(), attention.linear().is_some()),
        (format!("the normalizer {}", block.normalizer.kind()), !block.normalizer.is_softmax()),
        ("selective attention".to_owned(), block.selective_attention.is_some()),
        ("first tokens that stay visible under a window".to_owned(), encoding.sink_tokens.is_some()),
        ("an encoder, which attends in both directions".to_owned(), OutputHead::of(task).is_bidirectional()),
    ];
    match unsupported.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((what, _)) => Err(Error::Config {
            place: "encoding.scaling".to_owned(),
            message: format!("{} does not support {what}", scaling.label()),
            hint: "use another scaling, such as yarn".to_owned(),
        }),
    }
}

/// Refuses to train with what only changes how a trained model is evaluated.
pub(super) fn check_trained_scaling(encoding: &Encoding, model: &ModelPlan) -> Result<()> {
    let of_model = std::iter::once(("encoding.scaling".to_owned(), encoding.clone()));
    let others = model.other_encodings();
    let of_kinds = others.into_iter().map(|(name, other)| (format!("model.layers.{name}.encoding.scaling"), other));
    for (place, encoding) in of_model.chain(of_kinds) {
        if let Some((scaling, grouped)) = encoding.scaling().and_then(|scaling| Some((scaling, scaling.grouped()?))) {
            let GroupedPositions { group_size, neighbor_window } = grouped;
            let keys =
                format!("kind = \"self_extend\", group_size = {group_size}, neighbor_window = {neighbor_window}");
            return Err(Error::Config {
                place,
                message: format!("{} is for the evaluation of trained models only", scaling.label()),
                hint: format!("remove it, and evaluate with --rope-scaling '{{ {keys} }}'"),
            });
        }
    }
    Ok(())
}

/// Gates of linear attention are sums from the first token on, which an encoder's last row cannot be met by.
fn check_gates(task: Option<&TaskConfig>, encoding: &Encoding, attention: &AttentionKind) -> Result<()> {
    let gated = attention.linear().is_some() && encoding.in_linear() == Some(InLinear::Gates);
    if !gated || !OutputHead::of(task).is_bidirectional() {
        return Ok(());
    }
    Err(Error::Config {
        place: "encoding".to_owned(),
        message: format!("linear attention supports the gates of {} in decoders only", encoding.label()),
        hint: "use softmax attention, or train a decoder".to_owned(),
    })
}

/// Only encoders read in both directions.
fn check_direction(task: Option<&TaskConfig>, encoding: &Encoding, block: &BlockConfig) -> Result<()> {
    let is_encoder = OutputHead::of(task).is_bidirectional();
    if is_encoder && block.short_conv.is_some() {
        return Err(Error::Config {
            place: "model.block.short_conv".to_owned(),
            message: "its convolutions are causal, but an encoder attends in both directions".to_owned(),
            hint: "remove it, or train a decoder".to_owned(),
        });
    }
    if is_encoder && encoding.sink_tokens.is_some() {
        return Err(Error::Config {
            place: "encoding.sink_tokens".to_owned(),
            message: "the window of an encoder does not support first tokens that stay visible".to_owned(),
            hint: "remove it, or train a decoder".to_owned(),
        });
    }
    if is_encoder && encoding.is_causal_only() {
        return Err(Error::Config {
            place: "encoding".to_owned(),
            message: format!(
                "{} is defined for causal attention only, but an encoder attends in both directions",
                encoding.label()
            ),
            hint: "use rotary, or train a decoder".to_owned(),
        });
    }
    if is_encoder || !encoding.has_two_sided_table() {
        return Ok(());
    }
    Err(Error::Config {
        place: "encoding".to_owned(),
        message: format!("{} has a bias for keys after the query, but a decoder is causal", encoding.label()),
        hint: "remove bidirectional, or train an encoder on a task".to_owned(),
    })
}

/// Linear attention takes features of its own, and of the encodings those that are no change of scores.
fn check_attention(
    encoding: &Encoding,
    layer: &LayerSettings,
    (geometry, model): (&Geometry, &ModelPlan),
) -> Result<()> {
    let refuse = |key: &str, message: String, hint: &str| {
        Err(Error::Config { place: key.to_owned(), message, hint: hint.to_owned() })
    };
    let (taken, block) = (encoding.in_linear(), &model.block);
    let Some(linear) = layer.attention.linear() else {
        if encoding.entry() == Injection::Code {
            let message = format!("{} needs linear attention", encoding.label());
            return refuse(
                "encoding.kind",
                message,
                "set model.block.attention = { linear = { feature_map = \"favor\" } }",
            );
        }
        return Ok(());
    };
    if taken.is_none() {
        let message = format!("linear attention does not support {}", encoding.label());
        let hint = "use none, rotary, sinusoidal, learned, fox, sine_spe or conv_spe; or kerple_log, \
            kerple_power, kerple_power_original or alibi without a window, reach, distance_cap, randomized, `behind`, \
            bf16 and scale = \"inside\"; or softmax attention";
        return refuse("encoding", message, hint);
    }
    if layer.heads.kv_heads != layer.heads.heads {
        return refuse(
            "model.block.n_kv_heads",
            "linear attention does not support grouped-query attention (n_kv_heads must equal n_heads)".to_owned(),
            "remove it",
        );
    }
    if layer.attn_scale.is_some() || block.scale_attn_by_layer {
        let message = "linear attention does not support scaling of scores".to_owned();
        return refuse("model.block.attn_scale", message, "remove attn_scale and scale_attn_by_layer");
    }
    for (key, is_set) in [
        ("model.block.ssmax", block.ssmax.is_some()),
        ("model.block.attn_temperature", block.attn_temperature.is_some()),
        ("model.block.attn_softcap", block.attn_softcap.is_some()),
        ("model.block.normalizer", !block.normalizer.is_softmax()),
        ("model.block.selective_attention", block.selective_attention.is_some()),
        ("model.block.sink", block.sink != SinkKind::None),
    ] {
        if is_set {
            return refuse(
                key,
                "linear attention does not support this key, it has no softmax".to_owned(),
                "remove it",
            );
        }
    }
    for (key, is_set) in
        [("model.block.key_shift", block.key_shift), ("model.block.short_conv", block.short_conv.is_some())]
    {
        if is_set {
            let message = "linear attention does not support this key, its state keeps no token".to_owned();
            return refuse(key, message, "remove it");
        }
    }
    check_linear(linear, encoding, geometry)
}

/// Keys of linear attention.
fn check_linear(linear: &LinearAttentionConfig, encoding: &Encoding, geometry: &Geometry) -> Result<()> {
    let refuse = |key: &str, message: String, hint: &str| {
        Err(Error::Config { place: key.to_owned(), message, hint: hint.to_owned() })
    };
    let hint = "remove it to use the default";
    check("model.block.attention.linear.n_features", linear.n_features as f64, 2.0..=65_536.0, hint)?;
    check("model.block.attention.linear.horizon", linear.horizon as f64, 1.0..=1e12, hint)?;
    check_directions(encoding, linear, geometry)?;
    if linear.feature_map == FeatureKind::Favor && !linear.n_features.is_multiple_of(2) {
        let message =
            format!("{} is odd, it must be even: `favor` has two features per random direction", linear.n_features);
        return refuse("model.block.attention.linear.n_features", message, "use an even number");
    }
    if linear.demand().is_none() {
        let message = format!("unsupported tolerance {} with amplitude {}", linear.tolerance, linear.amplitude);
        return refuse(
            "model.block.attention.linear.tolerance",
            message,
            "use a tolerance of 0.01, 0.001 or 0.0001 and an amplitude of 2, 4 or 8",
        );
    }
    Ok(())
}

/// Random directions are drawn in square blocks and made orthogonal to each other, so rows are not wide, nor many directions long.
fn check_directions(encoding: &Encoding, linear: &LinearAttentionConfig, geometry: &Geometry) -> Result<()> {
    const WIDEST: f64 = 4096.0;
    const MOST: f64 = (1u64 << 22) as f64;
    if matches!(linear.feature_map, FeatureKind::Relu | FeatureKind::Elu) {
        return Ok(());
    }
    let code = encoding.code(geometry);
    let width = code.map_or(geometry.head_dim, |code| code.realisations()) as f64;
    check("features per head before random directions", width, 1.0..=WIDEST, "use the features `relu` or `elu`")?;
    let numbers = "model.block.attention.linear.n_features * features per head";
    check(numbers, linear.n_features as f64 * width, 1.0..=MOST, "lower n_features, or the encoding's num_realizations")
}

/// Sequences are processed in chunks where every layer keeps a state, and only those of one text.
pub(super) fn check_chunk_len(task: Option<&TaskConfig>, piece: Option<usize>, model: &ModelPlan) -> Result<()> {
    let Some(piece) = piece else { return Ok(()) };
    let (message, hint) = if piece == 0 || !piece.is_multiple_of(CHUNK) {
        (format!("{piece} is not a multiple of {CHUNK}"), "e.g. 16384")
    } else if !model.is_linear() {
        ("softmax attention needs all keys of a sequence at once".to_owned(), "remove it, or use linear attention")
    } else if model.block.dropout > 0.0 {
        ("dropout does not support chunked sequences".to_owned(), "set model.block.dropout = 0")
    } else if task.is_some() {
        ("tasks do not support chunked sequences".to_owned(), "remove it")
    } else {
        return Ok(());
    };
    Err(Error::Config { place: "train.chunk_len".to_owned(), message, hint: hint.to_owned() })
}

/// Refuses what cannot restart in every document of a sequence.
pub(super) fn check_documents(
    task: Option<&TaskConfig>,
    chunk_len: Option<usize>,
    encoding: &Encoding,
    model: &ModelPlan,
) -> Result<()> {
    let others = model.other_encodings();
    let mut encodings = others.iter().map(|(_, other)| other).chain([encoding]);
    let randomized = encodings.find(|encoding| encoding.randomized.is_some());
    let (message, hint) = if task.is_some() {
        ("sequences of tasks do not consist of documents".to_owned(), "remove it; it is for texts")
    } else if let Some(encoding) = randomized {
        let message = format!(
            "{} has `randomized`, which draws positions for whole sequences and not for each document",
            encoding.label()
        );
        (message, "set data.documents = \"joined\", or remove randomized")
    } else if chunk_len.is_some() {
        let message = "train.chunk_len processes sequences in chunks, which may not consist of documents".to_owned();
        (message, "remove train.chunk_len, or set data.documents = \"joined\"")
    } else {
        return Ok(());
    };
    let message = format!("\"separate\" is not supported: {message}");
    Err(Error::Config { place: "data.documents".to_owned(), message, hint: hint.to_owned() })
}

fn refused(ConfigError { key, message, hint }: ConfigError) -> Error {
    Error::Config { place: format!("encoding.{key}"), message, hint }
}

/// A stop rule needs validations with a score, and as many as it counts.
pub(super) fn check_until(task: Option<&TaskConfig>, train: &TrainConfig) -> Result<()> {
    let Some(StopRule { score, checks }) = train.until else { return Ok(()) };
    let refuse = |place: &str, message: String, hint: &str| {
        Err(Error::Config { place: place.to_owned(), message, hint: hint.to_owned() })
    };
    if task.is_none() {
        let message = "a text has no score, only a task has".to_owned();
        return refuse("train.until", message, "remove train.until, or set data.task");
    }
    if train.eval_interval == 0 {
        let message = "0 turns validations off, whose score train.until counts".to_owned();
        return refuse("train.eval_interval", message, "set train.eval_interval, or remove train.until");
    }
    if !(score > 0.0 && score <= 1.0) {
        let message = format!("{score} is out of range, it must be above 0 and at most 1");
        return refuse("train.until.score", message, "give a share of right answers, e.g. 0.99");
    }
    let most = TrainingEnd { steps: train.steps, eval_interval: train.eval_interval, until: None }.validations();
    if !(1..=most).contains(&checks) {
        let (steps, interval) = (train.steps, train.eval_interval);
        let message = format!(
            "{checks} is out of range, it must be at least 1 and at most {most}: {steps} updates have {most} validations, one every \
             {interval}"
        );
        return refuse("train.until.checks", message, "change train.until.checks, train.eval_interval or train.steps");
    }
    Ok(())
}

pub(super) fn check_train(train: &TrainConfig) -> Result<()> {
    let below_one = 1.0 - f64::EPSILON;
    for (key, value, limits) in [
        ("train.train_len", train.train_len as f64, 1.0..=super::LONGEST_SEQUENCE),
        ("train.batch_size", train.batch_size as f64, 1.0..=MOST_BATCH as f64),
        ("train.batch_size * train.train_len", train.batch_size as f64 * train.train_len as f64, 1.0..=MOST_TOKENS),
        ("train.steps", train.steps as f64, 0.0..=1e12),
        ("train.schedule_steps", train.schedule_steps.unwrap_or(train.steps) as f64, 0.0..=1e12),
        ("train.lr_cycle_steps", train.lr_cycle_steps.unwrap_or(1) as f64, 1.0..=1e12),
        ("train.learning_rate", train.learning_rate, 0.0..=10.0),
        ("train.min_lr", train.min_lr, 0.0..=10.0),
        ("train.warmup_ratio", train.warmup_ratio, 0.0..=0.5),
        ("train.adam_betas[0]", train.adam_betas[0], 0.0..=below_one),
        ("train.adam_betas[1]", train.adam_betas[1], 0.0..=below_one),
        ("train.adam_eps", train.adam_eps, f64::MIN_POSITIVE..=1.0),
        ("train.weight_decay", train.weight_decay, 0.0..=1e6),
        // at 1 an update alone would turn every matrix to zero
        ("train.learning_rate * train.weight_decay", train.learning_rate * train.weight_decay, 0.0..=1.0),
        ("train.grad_clip", train.grad_clip, 0.0..=1e9),
        ("train.adam_first_step", train.adam_first_step as f64, 1.0..=1e9),
        ("train.log_every", train.log_every as f64, 1.0..=1e12),
        ("train.save_interval", train.save_interval as f64, 1.0..=1e12),
        ("train.eval_sequences", train.eval_sequences as f64, 1.0..=1e9),
        ("train.keep_last_n", train.keep_last_n as f64, 1.0..=1e9),
    ] {
        check(key, value, limits, "remove the key to use the paper's value")?;
    }
    if train.min_lr > train.learning_rate {
        let message =
            format!("{} is above train.learning_rate, {}, and it is the floor", train.min_lr, train.learning_rate);
        return Err(Error::config("train.min_lr", message, "lower train.min_lr, or raise train.learning_rate"));
    }
    if train.lr_cycle_steps.is_some() && train.lr_schedule != LrSchedule::CosineRestarts {
        let message = "only the schedule cosine_restarts has cycles".to_owned();
        return Err(Error::config(
            "train.lr_cycle_steps",
            message,
            "remove it, or set train.lr_schedule = \"cosine_restarts\"",
        ));
    }
    Ok(())
}
