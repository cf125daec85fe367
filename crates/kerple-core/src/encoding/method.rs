//! The list of methods, and the interface of every method.

use super::decay::BiasDecay;
use super::description::Description;
use super::error::Result;
use super::parameter::{EncodingParameter, ParameterShare};
use super::randomized::{FormPositions, Randomized};
use super::{Emulate, Geometry};
use super::{
    alibi, bam, cope, dape, expression, fire, fope, fox, grape_ap, inkling, kerple, kerple_positions, learned, none,
    path, pope, rotary, rotary_positions, sandwich, selective_rope, shaw, sinusoidal, spe, t5, transformer_xl, wall,
    xpos,
};
use crate::calculus::expr::Expr;
use crate::encoding::{EncodingForm, TableJacobian};
use crate::forms::Sides;
use serde::{Deserialize, Serialize};

/// What a method makes its form from.
#[derive(Clone, Debug)]
pub struct FormInputs<'a> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Values of [`Positional::parameters`], in range.
    pub values: &'a [Vec<f64>],
    /// Positions of one pass. Tables cover distances `0..positions.range.end`; which of them are kept where distances are drawn
    /// is not their affair.
    pub positions: FormPositions<'a>,
    /// Precision.
    pub emulate: Emulate,
}

/// Where a method's form enters a model: of which kind it is, whatever the sizes of the model and the learned values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Nowhere: [`EncodingForm::Nothing`].
    Nowhere,
    /// The token embeddings: [`EncodingForm::Absolute`].
    Embeddings,
    /// Queries and keys: [`EncodingForm::Rotary`].
    Rotation {
        /// Whether their products decay with distance too.
        decays: bool,
    },
    /// Scores, by distance: [`EncodingForm::Table`].
    Scores(TableContents),
    /// The scores of all heads together: [`EncodingForm::ScoreMod`].
    ScoreMod {
        /// What of it is by distance.
        tables: TableContents,
        /// Whether queries and keys are rotated before.
        rotates: bool,
    },
    /// Scores, by cumulative gates that a layer's own rows set: [`EncodingForm::Gates`].
    Gates {
        /// Whether they are learned positions of a kernel; otherwise they are added.
        kernel: bool,
    },
    /// Products of queries and keys, feature by feature, by cumulative gates that a layer's own rows set:
    /// [`EncodingForm::FeatureGates`].
    FeatureGates {
        /// Whether heads have cumulative gates beside those, which are added to scores.
        scalar: bool,
        /// Whether queries and keys are rotated by position before.
        rotates: bool,
    },
    /// Queries and keys, rotated by angles that a layer's own rows set: [`EncodingForm::ContentRotation`].
    ContentRotation {
        /// Whether products of pairs decay too.
        decays: bool,
        /// Whether heads have cumulative gates beside those decays.
        scalar: bool,
    },
    /// Queries and keys, mapped by position with learned numbers: [`EncodingForm::QueryKeyMap`].
    QueryKeyMap {
        /// Whether they have more features then, which values do not.
        widens: bool,
    },
    /// Scores, by a relative bias that a layer's own rows make: [`EncodingForm::RelativeBias`].
    RelativeBias,
    /// Scores, by a bias that is summed over the tokens from key to query, of features that a layer's own rows make:
    /// [`EncodingForm::PathBias`].
    PathBias,
    /// Keys, transformed by products of matrices that the tokens from key to query set: [`EncodingForm::Householder`].
    Householder {
        /// Whether heads have cumulative gates too, which are added to scores.
        gates: bool,
    },
    /// Queries and keys of linear attention: [`EncodingForm::Code`].
    Code,
}

/// What a [`DistanceTable`](crate::forms::DistanceTable) has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableContents {
    /// Whether something is added to scores.
    pub bias: bool,
    /// Whether scores are multiplied by something.
    pub weight: bool,
    /// Which distances it is over.
    pub sides: Sides,
}

impl TableContents {
    /// A bias over these distances.
    pub(super) fn bias(sides: Sides) -> TableContents {
        TableContents { bias: true, weight: false, sides }
    }
}

/// A positional method: all that anything else asks about it, implemented by its keys.
///
/// What every method must say has no default; a default is what most methods say, and none takes positions from a model.
pub trait Positional {
    /// The method in words.
    fn description(&self) -> Description;

    /// Where the form enters.
    fn entry(&self) -> Injection;

    /// Refuses keys that are wrong for every model.
    ///
    /// # Errors
    /// The key, the value and the limit.
    fn check_keys(&self) -> Result {
        Ok(())
    }

    /// Refuses keys that are wrong for this model.
    ///
    /// # Errors
    /// The key, the value and the limit.
    fn check(&self, _geometry: &Geometry) -> Result {
        Ok(())
    }

    /// Learned tensors, in the order every other function takes them.
    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter>;

    /// How often its learned tensors may exist, the usual choice first: never once a layer where the form enters the model
    /// once.
    fn shares(&self) -> &'static [ParameterShare];

    /// What of it randomized positions draw.
    fn randomized(&self) -> Randomized;

    /// Whether it is defined for causal attention only, so that encoders cannot use it.
    fn is_causal_only(&self) -> bool {
        self.entry() == (Injection::Rotation { decays: true })
    }

    /// The longest sequence it is defined for, in tokens; `None` when it is defined for all.
    fn longest(&self, _geometry: &Geometry) -> Option<usize> {
        None
    }

    /// Where it enters the model. Only tables are computed from parameters.
    fn form(&self, inputs: &FormInputs) -> EncodingForm;

    /// Derivatives of the form's tables in the parameters.
    ///
    /// # Panics
    /// Where tables are learned: their derivatives must be said.
    fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        let learns = matches!(self.entry(), Injection::Scores(_)) && !self.parameters(inputs.geometry).is_empty();
        assert!(!learns, "{} learns a table without a Jacobian", self.description().name);
        TableJacobian::default()
    }

    /// The decay of `exp` of its bias with distance in a model with this many heads; `None`: linear
    /// attention does not support it.
    fn bias_decay(&self, _heads: usize) -> Option<BiasDecay> {
        None
    }

    /// The keys of its rotation, to be stretched for longer sequences; `None`: it has none that can be.
    fn rotation_mut(&mut self) -> Option<&mut rotary::RotaryConfig> {
        None
    }

    /// Writes down the keys that follow from the training length where they are absent, with the values that they have at this
    /// one: at any other length the method is then as it was trained.
    fn pin_length(&mut self, _train_len: usize) {}

    /// The kernels of its bias and its weight, whose parameters are those of
    /// [`Positional::parameters`] in this order; nothing where they are not expressions.
    fn kernels(&self) -> [Option<Expr>; 2] {
        [None, None]
    }

    /// What is proven of its bias at positions that the content sets.
    fn certificate(&self) -> Option<&'static str> {
        None
    }

    /// The keys of FIRE where it is that and nothing else, for maps that make its bias themselves.
    fn fire(&self) -> Option<&fire::FireConfig> {
        None
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $kind:literal $variant:ident($config:ty)),+ $(,)?) => {
        /// One positional method and its own keys; `kind` names it in a run file.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Method {
            $($(#[$doc])* #[serde(rename = $kind)] $variant($config)),+
        }

        /// Every kind, in the order of the documentation.
        pub const METHODS: [&str; [$($kind),+].len()] = [$($kind),+];

        impl Method {
            /// The method of this kind with its default keys; `None` for an unknown name.
            pub fn named(kind: &str) -> Option<Method> {
                match kind {
                    $($kind => Some(Method::$variant(Default::default())),)+
                    _ => None,
                }
            }

            /// Name in run files, tables and folders.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Method::$variant(_) => $kind,)+
                }
            }

            /// The description of the method.
            pub fn positional(&self) -> &dyn Positional {
                match self {
                    $(Method::$variant(config) => config,)+
                }
            }

            /// The same, to be changed.
            pub(super) fn positional_mut(&mut self) -> &mut dyn Positional {
                match self {
                    $(Method::$variant(config) => config,)+
                }
            }
        }
    };
}

methods! {
    /// No positions at all: the causal mask is the only order (NoPE).
    "none" None(none::NoPeConfig),
    /// A trained row for each position.
    "learned" Learned(learned::LearnedConfig),
    /// Sine and cosine rows added to the embeddings.
    "sinusoidal" Sinusoidal(sinusoidal::SinusoidalConfig),
    /// Rotation of queries and keys.
    "rotary" Rotary(rotary::RotaryConfig),
    /// Rotation of queries and keys whose products fade with distance.
    "xpos" Xpos(xpos::XposConfig),
    /// A fixed linear bias a head.
    "alibi" Alibi(alibi::AlibiConfig),
    /// A learned bias for each bucket of distances.
    "t5" T5(t5::T5Config),
    /// KERPLE, logarithmic kernel.
    "kerple_log" KerpleLog(kerple::KerpleLog),
    /// KERPLE, power kernel.
    "kerple_power" KerplePower(kerple::KerplePower),
    /// KERPLE, power bias times stretched-exponential weight.
    "kerple_bias_weight" KerpleBiasWeight(kerple::KerpleBiasWeight),
    /// KERPLE, stretched-exponential weight only.
    "kerple_weight" KerpleWeight(kerple::KerpleWeight),
    /// KERPLE's power kernel with exponent 1 and fixed ALiBi slopes, clamped to 0.01.
    "kerple_power_original" KerplePowerOriginal(kerple::KerplePowerOriginal),
    /// KERPLE, logarithmic kernel of a power.
    "kerple_log3" KerpleLog3(kerple::KerpleLog3),
    /// Gaussian bias.
    "gaussian_bias" GaussianBias(kerple::GaussianBias),
    /// Stretched-exponential bias.
    "stretched_bias" StretchedBias(kerple::StretchedBias),
    /// Gaussian weight.
    "gaussian_weight" GaussianWeight(kerple::GaussianWeight),
    /// Stretched-exponential weight, as named in the paper's appendix; the same as [`Method::KerpleWeight`].
    "stretched_weight" StretchedWeight(kerple::StretchedWeight),
    /// A power of the distance with a learned scale, exponent and offset.
    "bam" Bam(bam::BamConfig),
    /// A bias by a network over distances that are measured against the query's position.
    "fire" Fire(fire::FireConfig),
    /// A network over heads that adapts biases to the data.
    "dape" Dape(dape::DapeConfig),
    /// The product of two sinusoidal positions as a bias.
    "sandwich" Sandwich(sandwich::SandwichConfig),
    /// Transformer-XL's products of queries with projected waves.
    "transformer_xl" TransformerXl(transformer_xl::TransformerXlConfig),
    /// A learned vector for each distance, added to keys.
    "shaw" Shaw(shaw::ShawConfig),
    /// Contextual positions.
    "cope" Cope(cope::CopeConfig),
    /// Forgetting attention: scores fall with what tokens make forgotten.
    "fox" Fox(fox::FoxConfig),
    /// A kernel of distances that the content sets.
    "kerple_positions" KerplePositions(kerple_positions::KerplePositionsConfig),
    /// A low-rank relative bias that each row makes of its own features.
    "inkling" Inkling(inkling::InklingConfig),
    /// Features of queries and keys that fade by what tokens say.
    "wall" Wall(wall::WallConfig),
    /// Rotation of queries and keys by angles that rows set.
    "selective_rope" SelectiveRope(selective_rope::SelectiveRopeConfig),
    /// Rotation of queries and keys at positions that the content sets.
    "rotary_positions" RotaryPositions(rotary_positions::RotaryPositionsConfig),
    /// Queries and keys as lengths by content and angles by position.
    "pope" Pope(pope::PopeConfig),
    /// Rotation of queries and keys by learned mixtures of rates.
    "fope" Fope(fope::FopeConfig),
    /// A bias that is summed over the tokens from key to query.
    "grape_ap" GrapeAp(grape_ap::GrapeApConfig),
    /// Reflections and projections of keys by the tokens from key to query.
    "path" Path(path::PathConfig),
    /// Any expression of the kernel calculus.
    "kernel" Kernel(expression::ExpressionConfig),
    /// Stochastic positional encoding by sinusoids, for linear attention.
    "sine_spe" SineSpe(spe::SineSpeConfig),
    /// Stochastic positional encoding by filtered noise, for linear attention.
    "conv_spe" ConvSpe(spe::ConvSpeConfig),
}

impl Method {
    /// The method in words.
    pub fn description(&self) -> Description {
        self.positional().description()
    }

    /// Whether it hands over a bias by distance, alone or with a map.
    pub(super) fn has_bias_table(&self) -> bool {
        matches!(self.positional().entry(), Injection::Scores(tables) | Injection::ScoreMod { tables, .. } if tables.bias)
    }
}
