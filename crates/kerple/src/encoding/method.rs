//! The list of methods, and what every one of them must say.

use super::parameter::{Parameter, Scope};
use super::randomized::{Places, Randomized};
use super::refusal::Checked;
use super::words::Description;
use super::{Compat, Geometry};
use super::{
    alibi, cope, dape, expression, fire, kerple, learned, none, rotary, sandwich, shaw, sinusoidal, spe, t5,
    transformer_xl, xpos,
};
use crate::forms::{DistanceTable, Form, MapForm, TableSlopes};
use serde::{Deserialize, Serialize};

/// What a method makes its form from.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Values of [`Positional::parameters`], in range.
    pub values: &'a [Vec<f64>],
    /// Positions of one pass. Tables cover distances `0..places.range.end`; which of them are kept where distances are drawn
    /// is not their affair.
    pub places: Places<'a>,
    /// Precision.
    pub compat: Compat,
}

/// A positional method: all that anything else asks about it, implemented by its keys.
///
/// Nothing here has a default, so that a new method is whole before it compiles.
pub trait Positional {
    /// The method in words.
    fn words(&self) -> Description;

    /// Refuses keys that are wrong for every model.
    ///
    /// # Errors
    /// The key, the value and the limit.
    fn check_keys(&self) -> Checked;

    /// Refuses keys that are wrong for this model.
    ///
    /// # Errors
    /// The key, the value and the limit.
    fn check(&self, geometry: &Geometry) -> Checked;

    /// Learned tensors, in the order every other function takes them.
    fn parameters(&self, geometry: &Geometry) -> Vec<Parameter>;

    /// How often its learned tensors may exist, the usual choice first: never once a layer where the form enters the model
    /// once.
    fn scopes(&self) -> &'static [Scope];

    /// What of it randomized positions draw.
    fn randomized(&self) -> Randomized;

    /// The longest sequence it is defined for, in tokens; `None` when it is defined for all.
    fn longest(&self, geometry: &Geometry) -> Option<usize>;

    /// What enters the model.
    fn form(&self, inputs: &Inputs) -> Form;

    /// Derivatives of the form's tables in the parameters.
    fn slopes(&self, inputs: &Inputs) -> TableSlopes;
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

            /// What the method says about itself.
            pub fn positional(&self) -> &dyn Positional {
                match self {
                    $(Method::$variant(config) => config,)+
                }
            }
        }
    };
}

methods! {
    /// No positions at all: the causal mask is the only order (NoPE).
    "none" None(none::Config),
    /// A trained row for each position.
    "learned" Learned(learned::Config),
    /// Sine and cosine rows added to the embeddings.
    "sinusoidal" Sinusoidal(sinusoidal::Config),
    /// Rotation of queries and keys.
    "rotary" Rotary(rotary::Config),
    /// Rotation of queries and keys whose products fade with distance.
    "xpos" Xpos(xpos::Config),
    /// A fixed linear bias a head.
    "alibi" Alibi(alibi::Config),
    /// A learned bias for each bucket of distances.
    "t5" T5(t5::Config),
    /// KERPLE, logarithmic kernel.
    "kerple_log" KerpleLog(kerple::Log),
    /// KERPLE, power kernel.
    "kerple_power" KerplePower(kerple::Power),
    /// KERPLE, power bias times stretched-exponential weight.
    "kerple_bias_weight" KerpleBiasWeight(kerple::BiasWeight),
    /// KERPLE, stretched-exponential weight only.
    "kerple_weight" KerpleWeight(kerple::Weight),
    /// KERPLE's power kernel with exponent 1 and fixed ALiBi slopes, clamped to 0.01.
    "kerple_power_original" KerplePowerOriginal(kerple::PowerOriginal),
    /// KERPLE, logarithmic kernel of a power.
    "kerple_log3" KerpleLog3(kerple::Log3),
    /// Gaussian bias.
    "gaussian_bias" GaussianBias(kerple::GaussianBias),
    /// Stretched-exponential bias.
    "stretched_bias" StretchedBias(kerple::StretchedBias),
    /// Gaussian weight.
    "gaussian_weight" GaussianWeight(kerple::GaussianWeight),
    /// Stretched-exponential weight, as named in the paper's appendix; the same as [`Method::KerpleWeight`].
    "stretched_weight" StretchedWeight(kerple::StretchedWeight),
    /// A bias by a network over distances that are measured against the query's position.
    "fire" Fire(fire::Config),
    /// A network over heads that adapts biases to the data.
    "dape" Dape(dape::Config),
    /// The product of two sinusoidal positions as a bias.
    "sandwich" Sandwich(sandwich::Config),
    /// Transformer-XL's products of queries with projected waves.
    "transformer_xl" TransformerXl(transformer_xl::Config),
    /// A learned vector for each distance, added to keys.
    "shaw" Shaw(shaw::Config),
    /// Contextual positions.
    "cope" Cope(cope::Config),
    /// Any expression of the kernel calculus.
    "kernel" Kernel(expression::Config),
    /// Stochastic positional encoding by sinusoids, for linear attention.
    "sine_spe" SineSpe(spe::Sine),
    /// Stochastic positional encoding by filtered noise, for linear attention.
    "conv_spe" ConvSpe(spe::Conv),
}

impl Method {
    /// The method in words.
    pub fn description(&self) -> Description {
        self.positional().words()
    }

    /// What `f` makes of the method in a small model, for answers that are the same in every model.
    pub(super) fn in_some_model<R>(&self, f: impl FnOnce(&Inputs) -> R) -> R {
        let geometry = Geometry::new(2, 4, 2);
        let parameters = self.positional().parameters(&geometry);
        let values: Vec<Vec<f64>> = parameters.iter().map(|parameter| vec![0.5; parameter.len()]).collect();
        f(&Inputs { geometry: &geometry, values: &values, places: Places::from(2), compat: Compat::Exact })
    }

    /// The rotation it has, its own or that of what DAPE is over.
    pub(super) fn rotary_mut(&mut self) -> Option<&mut rotary::Config> {
        match self {
            Method::Rotary(rotary) => Some(rotary),
            Method::Dape(dape) => dape.base.0.rotary_mut(),
            Method::None(_) | Method::Learned(_) | Method::Sinusoidal(_) | Method::Xpos(_) | Method::Alibi(_) => None,
            Method::T5(_) | Method::KerpleLog(_) | Method::KerplePower(_) | Method::KerpleBiasWeight(_) => None,
            Method::KerpleWeight(_) | Method::KerplePowerOriginal(_) | Method::KerpleLog3(_) => None,
            Method::GaussianBias(_) | Method::StretchedBias(_) | Method::GaussianWeight(_) => None,
            Method::StretchedWeight(_) | Method::Fire(_) | Method::Sandwich(_) | Method::TransformerXl(_) => None,
            Method::Shaw(_) | Method::Cope(_) | Method::Kernel(_) | Method::SineSpe(_) | Method::ConvSpe(_) => None,
        }
    }

    /// Whether it hands over a bias by distance, alone or with a map.
    pub(super) fn has_bias_table(&self) -> bool {
        self.in_some_model(|inputs| match self.positional().form(inputs) {
            Form::Table(DistanceTable { bias, .. }) | Form::Map(MapForm { table: DistanceTable { bias, .. }, .. }) => {
                bias.is_some()
            }
            Form::Nothing | Form::Absolute(_) | Form::Rotary(_) | Form::Code(_) => false,
        })
    }
}
