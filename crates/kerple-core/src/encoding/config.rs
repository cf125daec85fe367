//! The `[encoding]` table of a run file.

use super::error::{ConfigError, Result, check_count};
use super::inkling::{InklingConfig, MOST_REACH};
use super::parameter::ParameterShare;
use super::randomized::Randomized;
use super::scaling::RopeScaling;
use super::{Emulate, Geometry, Injection, Method, finite, kind_of, randomized, renamed};
use crate::suggest::with_suggestion;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

/// Where a distance table enters relative to the `1/sqrt(D)` scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BiasScale {
    /// `q.k / sqrt(D) + b(d)`: what the released models do.
    #[default]
    After,
    /// `(q.k + b(d)) / sqrt(D)`: Eq. 1 of the KERPLE paper, literally.
    Inside,
}

/// When out-of-range kernel parameters are clamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clamp {
    /// Stored values are projected into their range after each update.
    #[default]
    Projected,
    /// Stored values are free, only the copy that attention uses is clamped: the original under mixed precision.
    ForwardOnly,
}

/// A positional method with the choices every method shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoding {
    /// Which method, with its own keys.
    pub method: Method,
    /// Attention sees only this many positions, itself included; `None` sees all.
    pub window: Option<usize>,
    /// First tokens that stay visible under the window, at their true positions; see
    /// [`Mask::CausalWithSinkTokens`](crate::forms::Mask::CausalWithSinkTokens).
    pub sink_tokens: Option<usize>,
    /// Where the table enters.
    pub scale: BiasScale,
    /// Precision of positions.
    pub emulate: Emulate,
    /// When parameters are clamped.
    pub clamp: Clamp,
    /// Whether layers share what is learned.
    pub share: ParameterShare,
    /// Positions, or distances, are drawn from this many; see [`Randomized`].
    pub randomized: Option<usize>,
    /// Whether weight decay shrinks all that is learned, the numbers of a kernel too.
    pub decayed: bool,
    /// Keys at this distance and beyond have a bias of exactly 0; `None`: the bias goes on. Inkling has a key of its own.
    pub reach: Option<usize>,
    /// Keys further away than this have the bias and the weight of this distance; `None`: each distance has its own.
    pub distance_cap: Option<usize>,
}

impl From<Method> for Encoding {
    fn from(method: Method) -> Self {
        let SharedKeys {
            window,
            sink_tokens,
            scale,
            emulate,
            clamp,
            share: _,
            randomized,
            decayed,
            reach,
            distance_cap,
        } = SharedKeys::default();
        let share = method.positional().shares()[0];
        Encoding { method, window, sink_tokens, scale, emulate, clamp, share, randomized, decayed, reach, distance_cap }
    }
}

/// The keys every method shares, as they stand in a run file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct SharedKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sink_tokens: Option<usize>,
    scale: BiasScale,
    emulate: Emulate,
    clamp: Clamp,
    /// Not written when it is the method's usual one, so that plans from before it existed keep their hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<ParameterShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    randomized: Option<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    decayed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reach: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    distance_cap: Option<usize>,
}

const SHARED_KEYS: [&str; 10] =
    ["window", SINK_TOKENS, "scale", "emulate", "clamp", "share", "randomized", "decayed", REACH, DISTANCE_CAP];

const SINK_TOKENS: &str = "sink_tokens";

/// Most first tokens that stay visible under a window.
pub const MOST_SINK_TOKENS: usize = 1 << 16;

const REACH: &str = InklingConfig::REACH;
const DISTANCE_CAP: &str = "distance_cap";

/// Reads `value`, naming the key that does not fit and saying what would in words.
fn parse<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let message = error.inner().to_string();
        let message =
            message.replace("expected usize", "expected a whole number").replace("expected f64", "expected a number");
        let message = with_suggestion(&message);
        let key = error.path().iter().rfind(|segment| matches!(segment, Segment::Map { .. }));
        match key {
            Some(key) => format!("`{key}`: {message}"),
            None => message,
        }
    })
}

/// A message about an unknown key of an encoding, with the keys that every encoding has; other messages stay.
fn with_shared_keys(message: String, keys: &[String], shared: &[&str]) -> String {
    let is_unknown = |key: &String| message.starts_with(&format!("`{key}`: unknown field `{key}`, "));
    if !keys.iter().any(is_unknown) {
        return message;
    }
    let own = message.split("; did you mean `").next().unwrap_or_default();
    // of a kind without keys no names follow
    let (own, or) = own.split_once(", there ").map_or((own, ", or"), |(own, _)| (own, ", expected"));
    let listed = shared.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    with_suggestion(&format!("{own}{or} a key of every encoding: {listed}"))
}

impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Encoding::of_value(finite::value(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Encoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let map = self.to_map().map_err(serde::ser::Error::custom)?;
        serializer.collect_map(map.iter().map(|(key, value)| (key, WithoutNull(value))))
    }
}

/// What reads and writes the keys, compiled here once and not in each crate for each format.
impl Encoding {
    fn of_value(value: Value) -> Result<Encoding, String> {
        let (kind, mut own) = match value {
            Value::String(kind) => (kind, Map::new()),
            Value::Object(mut map) => match map.remove("kind") {
                Some(Value::String(kind)) => (kind, map),
                _ => return Err("an encoding needs `kind`, the name of a method".to_owned()),
            },
            other => return Err(format!("expected a name or a table with `kind`, got {other}")),
        };
        let kind = kind_of(&kind).map_err(|unknown| unknown.line())?;
        renamed::refuse(&[renamed::SHARED, kind], &own).map_err(|refusal| refusal.line())?;
        // a key of the method's own stays in its table
        let is_shared = |key: &&str| kind != InklingConfig::KIND || *key != REACH;
        let shared_keys: Vec<&str> = SHARED_KEYS.into_iter().filter(is_shared).collect();
        let shared = shared_keys.iter().filter_map(|key| own.remove_entry(*key)).collect();
        let SharedKeys { window, sink_tokens, scale, emulate, clamp, share, randomized, decayed, reach, distance_cap } =
            parse(Value::Object(shared))?;
        if let (InklingConfig::KIND, Some(window)) = (kind, window) {
            own.entry(REACH).or_insert(window.into());
        }
        let keys: Vec<String> = own.keys().cloned().collect();
        let method: Method = parse(Value::Object(Map::from_iter([(kind.to_owned(), Value::Object(own))])))
            .map_err(|message| with_shared_keys(message, &keys, &shared_keys))?;
        let share = share.unwrap_or(method.positional().shares()[0]);
        let encoding = Encoding {
            method,
            window,
            sink_tokens,
            scale,
            emulate,
            clamp,
            share,
            randomized,
            decayed,
            reach,
            distance_cap,
        };
        encoding.check_keys().map_err(|refusal| refusal.line())?;
        Ok(encoding)
    }

    fn to_map(&self) -> serde_json::Result<Map<String, Value>> {
        let mut map = Map::from_iter([("kind".to_owned(), Value::from(self.method.kind()))]);
        let Encoding { window, sink_tokens, scale, emulate, clamp, randomized, decayed, reach, distance_cap, .. } =
            *self;
        let share = Some(self.share).filter(|_| !self.has_usual_share());
        let shared =
            SharedKeys { window, sink_tokens, scale, emulate, clamp, share, randomized, decayed, reach, distance_cap };
        map.extend(self.method.keys());
        map.extend(serde_json::to_value(shared)?.as_object().cloned().unwrap_or_default());
        Ok(map)
    }
}

/// A value in which null is an absent one. JSON writes it as null all the same, which hashes of plans cover; a run file, which
/// has no null, leaves the key out.
struct WithoutNull<'a>(&'a Value);

impl Serialize for WithoutNull<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Null => serializer.serialize_none(),
            Value::Object(map) => serializer.collect_map(map.iter().map(|(key, value)| (key, WithoutNull(value)))),
            value => value.serialize(serializer),
        }
    }
}

impl Method {
    /// The method's own keys as they are written to a run file.
    pub(super) fn keys(&self) -> Map<String, Value> {
        let written = serde_json::to_value(self).expect("keys are plain data");
        written[self.kind()].as_object().cloned().unwrap_or_default()
    }
}

impl Encoding {
    /// Whether layers share what is learned or not as they usually do with this method.
    pub(super) fn has_usual_share(&self) -> bool {
        self.method.positional().shares()[0] == self.share
    }

    fn check_keys(&self) -> Result {
        if self.window == Some(0) {
            let hint = "use 1 for the token itself, a larger number, or remove it to attend to everything";
            return Err(ConfigError::new("window", "a window of 0 attends to nothing, it must be at least 1", hint));
        }
        self.sink_tokens.map_or(Ok(()), |sink_tokens| self.check_sink_tokens(sink_tokens))?;
        if !self.method.positional().shares().contains(&self.share) {
            let message = format!("`{}` has no parameters that a layer could own", self.method.kind());
            return Err(ConfigError::new("share", message, "remove it, or use an encoding that learns a table"));
        }
        if let (Some(_), Randomized::Never(why)) = (self.randomized, self.method.positional().randomized()) {
            let message = format!("`{}` cannot be randomized: {why}", self.method.kind());
            return Err(ConfigError::new("randomized", message, "remove it"));
        }
        if let Some(most) = self.randomized {
            let hint = "set it to the longest sequence to be evaluated";
            check_count("randomized", most, 1..=randomized::MOST, hint)?;
        }
        self.method.positional().check_keys()?;
        if self.scale == BiasScale::Inside && !self.method.has_bias_table() {
            let message = format!("`{}` adds no bias table to scores, so `scale` has no effect", self.method.kind());
            return Err(ConfigError::new(
                "scale",
                message,
                "remove it; it applies to kernels, alibi, t5 and dape over one of them",
            ));
        }
        self.distance_cap.map_or(Ok(()), |cap| self.check_distance_cap(cap))?;
        self.reach.map_or(Ok(()), |reach| self.check_reach(reach))
    }

    /// First tokens matter under a window only. A score modification mixes keys in their order, which has no gap.
    fn check_sink_tokens(&self, sink_tokens: usize) -> Result {
        let refuse = |message: String, hint: &str| Err(ConfigError::new(SINK_TOKENS, message, hint));
        if self.window.is_none() {
            let message = "first tokens stay visible under a window only, and `window` is not set".to_owned();
            return refuse(message, "also set `window`, or remove it: without a window all tokens are visible");
        }
        let hint = "4 first tokens suffice in StreamingLLM; remove it to keep none";
        check_count(SINK_TOKENS, sink_tokens, 1..=MOST_SINK_TOKENS, hint)?;
        if let Injection::ScoreMod { .. } = self.entry() {
            let kind = self.method.kind();
            let message =
                format!("`{kind}` modifies the scores of a row together, which does not support first tokens");
            return refuse(message, "remove it, or use an encoding without a score modification, such as kerple_log");
        }
        if let Injection::Householder { .. } = self.entry() {
            let message = format!(
                "`{}` transforms keys by all tokens up to a query, and those before the window are not visible",
                self.method.kind()
            );
            return refuse(message, "remove it, or use an encoding that depends on distances, such as kerple_log");
        }
        if self.entry() == Injection::PathBias {
            let message = format!(
                "`{}` sums a bias over all tokens up to a key, and those before the window are not visible",
                self.method.kind()
            );
            return refuse(message, "remove it, or use an encoding whose bias is by distance, such as kerple_log");
        }
        if self.has_two_sided_table() {
            let message = "a bias for keys after the query does not support first tokens".to_owned();
            return refuse(message, "remove it, or remove bidirectional");
        }
        Ok(())
    }

    /// The same with another window. Without one there are no first tokens to keep visible.
    #[must_use]
    pub fn with_window(&self, window: Option<usize>) -> Encoding {
        Encoding { window, sink_tokens: self.sink_tokens.filter(|_| window.is_some()), ..self.clone() }
    }

    /// Distances are capped where scores change by a table over them and by nothing else.
    fn check_distance_cap(&self, cap: usize) -> Result {
        let refuse = |message: String, hint: &str| Err(ConfigError::new(DISTANCE_CAP, message, hint));
        let Injection::Scores(_) = self.entry() else {
            let message = format!("`{}` does not change scores by a table over distances alone", self.method.kind());
            return refuse(
                message,
                "remove it; it applies to alibi, t5, sandwich, bam, fox with fixed gates, and kernels",
            );
        };
        if self.reach.is_some() {
            let message = "keys at `reach` and beyond have no bias, so their distance has nothing to cap".to_owned();
            return refuse(message, "remove one of the two");
        }
        check_count(DISTANCE_CAP, cap, 1..=MOST_REACH, "remove it to tell all distances apart")
    }

    /// A bias ends where it is a table of its own and nothing else of the scores is by distance.
    fn check_reach(&self, reach: usize) -> Result {
        let kind = self.method.kind();
        let hint = "remove it; it applies to alibi, t5, sandwich, bam, fox with fixed gates, and kernels that are a bias, \
            such as kerple_log";
        let why = match self.entry() {
            Injection::Scores(tables) if tables.bias && !tables.weight => None,
            Injection::Scores(tables) if tables.bias => Some("also multiplies scores by a weight, which would go on"),
            Injection::Scores(_) => Some("multiplies scores by a weight and adds no bias"),
            Injection::ScoreMod { .. } => Some("changes the scores of all heads together, not by a bias table alone"),
            Injection::Gates { .. }
            | Injection::FeatureGates { .. }
            | Injection::ContentRotation { .. }
            | Injection::PathBias
            | Injection::Householder { .. } => Some("measures distances by the content of tokens, not by their number"),
            Injection::RelativeBias => Some("has a reach of its own"),
            Injection::Nowhere
            | Injection::Embeddings
            | Injection::Rotation { .. }
            | Injection::QueryKeyMap { .. }
            | Injection::Code => Some("adds no bias to scores"),
        };
        if let Some(why) = why {
            return Err(ConfigError::new(REACH, format!("`{kind}` {why}, so its bias cannot end at a distance"), hint));
        }
        if reach == 0 {
            let message = "a bias that ends at distance 0 is none, it must be at least 1";
            return Err(ConfigError::new(REACH, message, "use the encoding `none` for a model without positions"));
        }
        check_count(REACH, reach, 1..=MOST_REACH, "remove it for a bias without an end")?;
        match self.randomized {
            Some(most) if most <= reach => {
                let message = format!("distances are drawn from {most}, so a bias that ends at {reach} ends for none");
                Err(ConfigError::new(REACH, message, "lower it below `randomized`, or remove it"))
            }
            _ => Ok(()),
        }
    }

    /// What is proven of its bias, or that a bias which ends is not the kernel that was proven; `None` where the kernels are
    /// expressions whose derivations are proofs, and where there is nothing to prove.
    pub fn certificate(&self) -> Option<String> {
        match self.reach {
            Some(reach) => Some(format!("not proven: the bias ends at distance {reach}")),
            None if self.distance_cap.is_some() => {
                Some("not proven: far keys share the bias of one distance".to_owned())
            }
            None => self.method.positional().certificate().map(str::to_owned),
        }
    }

    /// The same with every value written down that otherwise follows from the training length, as it is at this one. Other
    /// training lengths change nothing of it.
    #[must_use]
    pub fn pinned(&self, train_len: usize) -> Encoding {
        let mut pinned = self.clone();
        pinned.method.positional_mut().pin_length(train_len);
        pinned
    }

    /// The same with rotary rates stretched in this way.
    ///
    /// # Errors
    /// A method that does not rotate, or a scaling that gives no rates.
    pub fn with_rope_scaling(&self, scaling: RopeScaling) -> Result<Encoding, ConfigError> {
        scaling.check()?;
        let mut scaled = self.clone();
        let Some(rotary) = scaled.method.positional_mut().rotation_mut() else {
            let kind = self.method.kind();
            let message = match self.entry() {
                Injection::FeatureGates { rotates: true, .. } => {
                    format!("the rotary rates of `{kind}` with `order` cannot be scaled")
                }
                Injection::ContentRotation { .. } | Injection::QueryKeyMap { .. } => {
                    format!("the rates of `{kind}` cannot be scaled")
                }
                _ => format!("`{kind}` has no rotary rates"),
            };
            let hint = match scaling.grouped() {
                Some(_) => "use `rotary`",
                None => "use `rotary`, or `dape` with the base `rotary`",
            };
            return Err(ConfigError::new("scaling", message, hint));
        };
        rotary.scaling = Some(scaling);
        scaled.method.positional().check_keys()?;
        scaled.check_grouped()?;
        Ok(scaled)
    }

    /// Whether queries and keys turn by rates that [`Encoding::with_rope_scaling`] scales, or refuses to.
    pub fn rotates(&self) -> bool {
        let is_scaled = || self.method.clone().positional_mut().rotation_mut().is_some();
        matches!(self.entry(), Injection::FeatureGates { rotates: true, .. }) || is_scaled()
    }

    /// How rotary rates are scaled.
    pub fn scaling(&self) -> Option<RopeScaling> {
        self.method.clone().positional_mut().rotation_mut()?.scaling
    }

    /// The same as in its label.
    pub fn rope_scaling(&self) -> Option<String> {
        self.scaling().map(|scaling| scaling.label())
    }

    /// Positions of groups are for rotations alone, of consecutive positions.
    fn check_grouped(&self) -> Result {
        let Some(scaling) = self.scaling().filter(|scaling| scaling.grouped().is_some()) else { return Ok(()) };
        let refuse = |message: String, hint: &str| Err(ConfigError::new("scaling", message, hint));
        if !matches!(self.entry(), Injection::Rotation { decays: false }) {
            let message = format!("`{}` does not support {}", self.method.kind(), scaling.label());
            return refuse(message, "use `rotary`");
        }
        if self.randomized.is_some() {
            return refuse(
                format!("{} groups consecutive positions, not drawn ones", scaling.label()),
                "remove randomized",
            );
        }
        Ok(())
    }

    fn check_randomized(&self, geometry: &Geometry) -> Result {
        let Some(most) = self.randomized else { return Ok(()) };
        let refuse = |message: String, hint: String| Err(ConfigError::new("randomized", message, hint));
        if most < geometry.train_len {
            let message =
                format!("{most} positions are fewer than the {} tokens of a training sequence", geometry.train_len);
            return refuse(message, "raise it to the longest sequence to be evaluated".to_owned());
        }
        match self.method.positional().longest(geometry) {
            Some(rows) if rows < most => {
                let message = format!("positions are drawn from {most}, but `{}` has {rows}", self.method.kind());
                refuse(message, format!("also set `positions = {most}`"))
            }
            _ => Ok(()),
        }
    }

    fn check_decayed(&self, geometry: &Geometry) -> Result {
        let own = self.method.positional().parameters(geometry);
        if self.decayed && own.iter().all(|parameter| parameter.decay) {
            let message = format!("`{}` has no parameters that weight decay skips by default", self.method.kind());
            return Err(ConfigError::new(
                "decayed",
                message,
                "remove it; it applies to the parameters of \
                kernels",
            ));
        }
        Ok(())
    }

    /// Refuses what no model, or no model of these sizes, can be built from.
    ///
    /// # Errors
    /// The key, the value, the limit and what to change.
    pub fn check(&self, geometry: &Geometry) -> Result {
        self.check_keys()?;
        if let Some(sink_tokens) = self.sink_tokens.filter(|sink_tokens| *sink_tokens >= geometry.train_len) {
            let train_len = geometry.train_len;
            let message = format!("{sink_tokens} first tokens are all tokens of a training sequence of {train_len}");
            return Err(ConfigError::new(SINK_TOKENS, message, "lower it below the training length"));
        }
        self.method.positional().check(geometry)?;
        self.check_decayed(geometry)?;
        self.check_grouped()?;
        self.check_randomized(geometry)
    }
}
