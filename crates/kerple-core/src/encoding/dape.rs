//! DAPE: data-adaptive positional encoding. Zheng et al. 2024, arXiv:2405.14722, section 3; with `kernel` above 1 its second
//! version, arXiv:2410.04798.
//!
//! ```text
//! z = s + b + W2 act(W1 [s; b] + b1) + b2        act(x) = x for x > 0, else 0.01 x
//! ```
//!
//! At each query and key one network mixes the scaled scores `s` and the biases `b` of all heads.
//! `b` is that of the base: any encoding with a bias by distance, FIRE, a rotation, or none.
//! `variant` selects the inputs of the network and what is added; each of its layers sees `kernel`
//! keys at a time, see [`crate::score_mods::convolved`].
//!
//! Enters: scores of all heads, after the `1/sqrt(D)` scale. Learned: the network, and what the base learns, in every layer
//! for itself; all but the network's biases are decayed, the base's too, as in the released code. The base's FIRE has the
//! released code's leaky units, which plain FIRE has not. `b2` shifts all keys of a query alike, so it learns nothing.
//! Past the training length: defined where the base is. Differs from the released code: rows do not depend on what follows
//! them where `kernel > 1`, unless `edge = "closed"`, and decoding gives what training computes.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result};
use super::fire::{self, check_hidden};
use super::method::{FormInputs, Injection, Method, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, METHODS, ParameterShare, renamed, rotary};
use crate::encoding::{EncodingForm, ScoreModForm, TableJacobian};
use crate::forms::DistanceTable;
use crate::score_mods::mixed::{Bias, Mixed};
use crate::score_mods::network::{Edge, Network, SLOPE, Variant};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;

/// Keys of DAPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DapeConfig {
    /// Where the biases come from.
    pub base: DapeBase,
    /// What the network sees, and what its result is added to.
    pub variant: Variant,
    /// Keys that each layer of the network sees; odd.
    pub kernel: usize,
    /// Hidden units of the network.
    pub hidden: usize,
    /// What the network sees after the last key, where `kernel > 1`.
    #[serde(skip_serializing_if = "is_open")]
    pub edge: Edge,
}

fn is_open(edge: &Edge) -> bool {
    *edge == Edge::Open
}

impl Default for DapeConfig {
    fn default() -> Self {
        let base = DapeBase(Box::new(Method::KerpleLog(Default::default())));
        DapeConfig { base, variant: Variant::default(), kernel: 1, hidden: 32, edge: Edge::Open }
    }
}

/// The encoding whose bias is adapted: a name, or a table with `kind` and its own keys.
#[derive(Clone, Debug, PartialEq)]
pub struct DapeBase(pub Box<Method>);

impl<'de> Deserialize<'de> for DapeBase {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, keys) = match Value::deserialize(deserializer)? {
            Value::String(kind) => (kind, Map::new()),
            Value::Object(mut keys) => match keys.remove("kind") {
                Some(Value::String(kind)) => (kind, keys),
                _ => return Err(D::Error::custom("`base` needs `kind`, the name of an encoding")),
            },
            other => return Err(D::Error::custom(format!("`base` is a name or a table with `kind`, got {other}"))),
        };
        if !METHODS.contains(&kind.as_str()) {
            return Err(D::Error::custom(format!(
                "`base`: unknown encoding `{kind}`, use one of {}",
                METHODS.join(", ")
            )));
        }
        let in_base = |error: &dyn fmt::Display| D::Error::custom(format!("`base`: {error}"));
        renamed::refuse(&[&kind], &keys).map_err(|refusal| in_base(&refusal.line()))?;
        let method = serde_json::from_value(Value::Object(Map::from_iter([(kind, Value::Object(keys))])));
        method.map(|method| DapeBase(Box::new(method))).map_err(|error: serde_json::Error| in_base(&error))
    }
}

impl Serialize for DapeBase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, keys) = (self.0.kind(), self.0.keys());
        if Method::named(kind).is_some_and(|usual| usual == *self.0) {
            return kind.serialize(serializer);
        }
        let kind = ("kind".to_owned(), Value::from(kind));
        [kind].into_iter().chain(keys).collect::<Map<String, Value>>().serialize(serializer)
    }
}

/// What a base hands over, in any model.
enum DapeInput<'a> {
    Nothing,
    Rotation,
    Table(TableContents),
    Fire(&'a fire::FireConfig),
    /// A method that does not add a bias to scores.
    Other(&'static str),
}

impl DapeBase {
    fn positional(&self) -> &dyn Positional {
        self.0.positional()
    }

    fn source(&self) -> DapeInput<'_> {
        let base = self.positional();
        match base.entry() {
            Injection::Nowhere => DapeInput::Nothing,
            Injection::Rotation { decays: false } => DapeInput::Rotation,
            Injection::Rotation { decays: true } => DapeInput::Other("decays features of queries and keys"),
            Injection::Scores(tables) if !tables.weight => DapeInput::Table(tables),
            Injection::Scores(_) => DapeInput::Other("multiplies scores by a weight"),
            Injection::Embeddings => DapeInput::Other("is added to the embeddings"),
            Injection::ScoreMod { .. } => {
                base.fire().map_or(DapeInput::Other("already changes all heads together"), DapeInput::Fire)
            }
            Injection::Gates { .. } => DapeInput::Other("has a gate per token"),
            Injection::FeatureGates { .. } => DapeInput::Other("has a gate per feature"),
            Injection::ContentRotation { .. } => DapeInput::Other("turns queries and keys by their content"),
            Injection::QueryKeyMap { .. } => DapeInput::Other("maps queries and keys with learned numbers"),
            Injection::RelativeBias => DapeInput::Other("has a bias per row"),
            Injection::PathBias => DapeInput::Other("has a bias per path"),
            Injection::Householder { .. } => DapeInput::Other("transforms keys by the tokens after them"),
            Injection::Code => DapeInput::Other("replaces queries and keys by codes"),
        }
    }

    fn has_bias(&self) -> bool {
        matches!(self.source(), DapeInput::Table(_) | DapeInput::Fire(_))
    }
}

impl DapeConfig {
    fn network(&self) -> Network {
        let DapeConfig { variant, kernel, hidden, edge, .. } = *self;
        Network { hidden, variant, kernel, edge }
    }
}

impl Positional for DapeConfig {
    fn description(&self) -> Description {
        let has_bias = self.base.has_bias();
        Description {
            name: "DAPE",
            formula: match (has_bias, self.variant) {
                (false, _) => "z = s + mlp(s) over all heads",
                (true, Variant::ConcatResidual) => "z = s + b + mlp(s, b) over all heads, b of the base",
                (true, Variant::Concat) => "z = s + mlp(s, b) over all heads, b of the base",
                (true, Variant::AddResidual) => "z = s + b + mlp(s + b) over all heads, b of the base",
                (true, Variant::BiasOnly) => "z = s + b + mlp(b) over all heads, b of the base",
            },
            learned: match (self.network().inputs(1, has_bias), self.kernel) {
                (2, 1) => "the base's, and a network: 3 H hidden + hidden + H per layer",
                (2, _) => "the base's, and a network: 3 H hidden kernel + hidden + H per layer",
                (_, 1) => "the base's, and a network: 2 H hidden + hidden + H per layer",
                _ => "the base's, and a network: 2 H hidden kernel + hidden + H per layer",
            },
            enters: SCORES,
            beyond: "defined where the base is defined",
            source: "Zheng et al. 2024, arXiv:2405.14722 and arXiv:2410.04798",
        }
    }

    fn entry(&self) -> Injection {
        let (tables, rotates) = match self.base.source() {
            DapeInput::Table(tables) => (tables, false),
            source => (TableContents::default(), matches!(source, DapeInput::Rotation)),
        };
        Injection::ScoreMod { tables, rotates }
    }

    fn check_keys(&self) -> Result {
        check_hidden("hidden", self.hidden)?;
        if self.kernel.is_multiple_of(2) || self.kernel > 15 {
            let message = format!("{} is out of range, it must be odd and at most 15", self.kernel);
            return Err(ConfigError::new(
                "kernel",
                message,
                "use 1 for one key at a time, or 3, 5 or 7 as \
                in the second version",
            ));
        }
        self.base.positional().check_keys()?;
        let name = self.base.0.kind();
        match self.base.source() {
            DapeInput::Other(why) => {
                let hint = "use a base that adds a bias to scores, such as kerple_log, or none or rotary";
                Err(ConfigError::new("base", format!("`{name}` {why}"), hint))
            }
            DapeInput::Nothing | DapeInput::Rotation if self.variant != Variant::default() => {
                let message = format!("`{name}` adds no bias to scores, so there is one variant");
                Err(ConfigError::new("variant", message, "remove it"))
            }
            DapeInput::Nothing | DapeInput::Rotation | DapeInput::Table(_) | DapeInput::Fire(_) => Ok(()),
        }
    }

    fn check(&self, geometry: &Geometry) -> Result {
        self.base.positional().check(geometry)
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let (heads, hidden, k) = (geometry.heads, self.hidden, self.kernel);
        let inputs = self.network().inputs(heads, self.base.has_bias());
        // FIRE says itself what of it is decayed
        let decay = match self.base.source() {
            DapeInput::Nothing | DapeInput::Rotation | DapeInput::Table(_) => true,
            DapeInput::Fire(_) | DapeInput::Other(_) => false,
        };
        let of_base = self.base.positional().parameters(geometry).into_iter();
        let of_base = of_base.map(|own| EncodingParameter { decay: decay || own.decay, ..own });
        let shape =
            |outputs: usize, inputs: usize| if k == 1 { vec![outputs, inputs] } else { vec![outputs, inputs, k] };
        let network = [
            EncodingParameter::of_layer("mix1.weight", &shape(hidden, inputs), inputs * k),
            EncodingParameter::of_layer("mix1.bias", &[hidden], inputs * k),
            EncodingParameter::of_layer("mix2.weight", &shape(heads, hidden), hidden * k),
            EncodingParameter::of_layer("mix2.bias", &[heads], hidden * k),
        ];
        of_base.chain(network).collect()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn is_causal_only(&self) -> bool {
        self.base.positional().is_causal_only()
    }

    fn randomized(&self) -> Randomized {
        self.base.positional().randomized()
    }

    fn longest(&self, geometry: &Geometry) -> Option<usize> {
        self.base.positional().longest(geometry)
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let (heads, len) = (inputs.geometry.heads, inputs.positions.range.end);
        let neutral = DistanceTable { heads, len, ..DistanceTable::default() };
        let (bias, table, rotary) = match (self.base.source(), self.base.positional().form(inputs)) {
            (DapeInput::Fire(fire), _) => (Bias::Fire(fire.bias(inputs, SLOPE)), neutral, None),
            (_, EncodingForm::Table(table)) => (Bias::Table, table, None),
            (_, EncodingForm::Rotary(rotary)) => (Bias::None, neutral, Some(rotary)),
            (
                _,
                EncodingForm::Nothing
                | EncodingForm::Absolute(_)
                | EncodingForm::ScoreMod(_)
                | EncodingForm::Gates(_)
                | EncodingForm::FeatureGates(_)
                | EncodingForm::ContentRotation(_)
                | EncodingForm::QueryKeyMap(_)
                | EncodingForm::RelativeBias(_)
                | EncodingForm::PathBias(_)
                | EncodingForm::Householder(_)
                | EncodingForm::Code(_),
            ) => (Bias::None, neutral, None),
        };
        let own = 4 + if let Bias::Fire(_) = bias { fire::PARAMETERS } else { 0 };
        let map = Mixed { heads, bias, network: Some(self.network()) };
        EncodingForm::ScoreMod(ScoreModForm { map: map.into(), table, rotary, own })
    }

    fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        self.base.positional().jacobian(inputs)
    }

    fn pin_length(&mut self, train_len: usize) {
        self.base.0.positional_mut().pin_length(train_len);
    }

    fn rotation_mut(&mut self) -> Option<&mut rotary::RotaryConfig> {
        self.base.0.positional_mut().rotation_mut()
    }
}
