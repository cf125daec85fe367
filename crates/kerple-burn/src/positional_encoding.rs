//! Encodings as Burn modules: from learned parameters to the context that attention takes.

mod distance_table;
mod layer_context;
mod snapshot;

pub use snapshot::EncodingSnapshot;

use crate::attention_context::{AttentionContext, GroupedTables, RotaryTables};
use crate::forward_context::{ForwardContext, POSITIONS};
use crate::implementation::{DeviceKind, Impl};
use crate::parameters::{ParamGroup, ParamGroupOverrides, ParamGroups};
use crate::plan::AttentionKind;
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use distance_table::{DistanceTableOp, cast};
use kerple_core::attention::PackedDocuments;
use kerple_core::calculus::exponentials::ErrorBudget;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_core::encoding::{
    Clamp, ConfigError, Encoding, EncodingParameter, FormPositions, Geometry, Injection, ParameterShare, TableJacobian,
};
use kerple_core::forms::{Absolute, DistanceTable, Rotary};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which encoding and which window one layer of a model has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerEncoding {
    /// Which of the other encodings it has; `None`: the model's own.
    pub other: Option<usize>,
    /// Keys that a query attends to, itself included; `None`: all.
    pub window: Option<usize>,
    /// First tokens that stay visible under the window; `None`: none.
    pub sink_tokens: Option<usize>,
    /// The requirements of linear attention on kernels; `None`: attention is not linear.
    pub demand: Option<ErrorBudget>,
}

/// A positional encoding with its learned parameters, those that layers share once and the others once a layer. Some
/// layers may have another encoding.
#[derive(Module, Debug)]
pub struct PositionalEncoding {
    /// Stored numbers that all layers share, flattened, in the order of [`Encoding::parameters`].
    pub values: Vec<Param<Tensor<1>>>,
    /// Stored numbers of each layer that has it, likewise; empty when layers share everything.
    pub layers: Vec<Vec<Param<Tensor<1>>>>,
    /// The encodings of other layers.
    pub others: Vec<PositionalEncoding>,
    #[module(skip)]
    encoding: Arc<Encoding>,
    #[module(skip)]
    geometry: Arc<Geometry>,
    /// What it is called where it is one of the others.
    #[module(skip)]
    name: Option<Arc<str>>,
    /// Every layer of the model.
    #[module(skip)]
    layer_encodings: Arc<[LayerEncoding]>,
    /// Those that have it.
    #[module(skip)]
    own: Arc<[usize]>,
}

impl PositionalEncoding {
    /// A fresh encoding of a model of `depth` layers, initial values drawn from `seed`.
    pub fn new(
        encoding: &Encoding,
        geometry: &Geometry,
        depth: usize,
        seed: u64,
        device: &Device,
    ) -> PositionalEncoding {
        let own =
            LayerEncoding { window: encoding.window, sink_tokens: encoding.sink_tokens, ..LayerEncoding::default() };
        let layer_encodings = vec![own; depth];
        PositionalEncoding::of_layers(encoding, &[], &layer_encodings, geometry, (seed, device))
    }

    /// The same of a model whose layers have these encodings, with the other encodings, their names and the sizes of their
    /// layers. Windows are those of the layers.
    ///
    /// # Panics
    /// When one of the others is added to embeddings, which layers do not have: plans of such models are refused.
    pub fn of_layers(
        encoding: &Encoding,
        others: &[(String, Encoding, Geometry)],
        layer_encodings: &[LayerEncoding],
        geometry: &Geometry,
        from: (u64, &Device),
    ) -> PositionalEncoding {
        let layer_encodings: Arc<[LayerEncoding]> = layer_encodings.into();
        let other = |(index, (name, other, geometry)): (usize, &(String, Encoding, Geometry))| {
            let other = PositionalEncoding::one(other, Some(index), &layer_encodings, geometry, from);
            assert!(
                other.encoding.entry() != Injection::Embeddings,
                "absolute positions are added to \
                token embeddings, which layers do not have"
            );
            PositionalEncoding { name: Some(name.as_str().into()), ..other }
        };
        let main = PositionalEncoding::one(encoding, None, &layer_encodings, geometry, from);
        PositionalEncoding { others: others.iter().enumerate().map(other).collect(), ..main }
    }

    /// One encoding by itself, in the layers that have it.
    fn one(
        encoding: &Encoding,
        which: Option<usize>,
        layer_encodings: &Arc<[LayerEncoding]>,
        geometry: &Geometry,
        (seed, device): (u64, &Device),
    ) -> PositionalEncoding {
        let parameters = encoding.parameters(geometry);
        let drawn = |layer: usize, share: ParameterShare| -> Vec<Param<Tensor<1>>> {
            let all = encoding.initial_in_layer(geometry, seed, layer).into_iter().zip(&parameters);
            all.filter(|(_, parameter)| parameter.share == share).map(|(values, _)| param(values, device)).collect()
        };
        let has_own = parameters.iter().any(|parameter| parameter.share == ParameterShare::Layer);
        let own: Arc<[usize]> =
            (0..layer_encodings.len()).filter(|layer| layer_encodings[*layer].other == which).collect();
        PositionalEncoding {
            values: drawn(0, ParameterShare::Model),
            layers: own.iter().filter(|_| has_own).map(|layer| drawn(*layer, ParameterShare::Layer)).collect(),
            others: Vec::new(),
            encoding: Arc::new(encoding.clone()),
            geometry: Arc::new(*geometry),
            name: None,
            layer_encodings: layer_encodings.clone(),
            own,
        }
    }

    /// The same where all layers have this kind of attention: linear attention takes kernels as decays.
    ///
    /// # Panics
    /// For a tolerance or an amplitude that there are no decays for; plans with one are refused.
    pub fn with_attention(self, kind: &AttentionKind) -> PositionalEncoding {
        let demand = kind.linear().map(|plan| plan.demand().expect("the plan was checked"));
        self.with_layer_encodings(|layer| LayerEncoding { demand, ..layer })
    }

    /// The same with every layer changed in this way; which encoding a layer has stays.
    fn with_layer_encodings(self, change: impl Fn(LayerEncoding) -> LayerEncoding) -> PositionalEncoding {
        let layer_encodings: Arc<[LayerEncoding]> = self.layer_encodings.iter().copied().map(change).collect();
        let others = self
            .others
            .into_iter()
            .map(|other| PositionalEncoding { layer_encodings: layer_encodings.clone(), ..other });
        PositionalEncoding { others: others.collect(), layer_encodings: layer_encodings.clone(), ..self }
    }

    /// The encoding of a layer: this one, or one of the others.
    fn of_layer(&self, layer: usize) -> &PositionalEncoding {
        match self.layer_encodings[layer].other {
            Some(other) if self.name.is_none() => &self.others[other],
            Some(_) | None => self,
        }
    }

    /// This one and the others.
    fn each(&self) -> impl Iterator<Item = &PositionalEncoding> {
        std::iter::once(self).chain(&self.others)
    }

    /// Without a window, which linear attention does not support: other layers may have one.
    fn unlimited(&self) -> Encoding {
        self.encoding.with_window(None)
    }

    /// What linear attention asks of its kernel in any of its layers.
    fn demand(&self) -> Option<&ErrorBudget> {
        self.own.iter().find_map(|layer| self.layer_encodings[*layer].demand.as_ref())
    }

    /// Which encoding this is.
    pub fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// Whether queries of all layers see as many keys.
    pub fn has_one_window(&self) -> bool {
        self.layer_encodings.iter().all(|layer| layer.window == self.encoding.window)
    }

    /// The same learned values with attention of all layers restricted to a window.
    pub fn with_window(&self, window: Option<usize>) -> PositionalEncoding {
        self.evaluated_as(self.encoding.with_window(window))
    }

    /// The same learned values as part of an encoding that differs in its window or in how it scales rotary rates. What
    /// differs is so in all layers, as far as they rotate.
    pub fn evaluated_as(&self, encoding: Encoding) -> PositionalEncoding {
        let mut changed = self.clone();
        if encoding.window != self.encoding.window {
            changed = changed.with_layer_encodings(|layer| LayerEncoding { window: encoding.window, ..layer });
        }
        if let Some(scaling) = encoding.scaling().filter(|scaling| Some(*scaling) != self.encoding.scaling()) {
            for other in &mut changed.others {
                other.encoding = other.encoding.with_rope_scaling(scaling).map_or(other.encoding.clone(), Arc::new);
            }
        }
        PositionalEncoding { encoding: Arc::new(encoding), ..changed }
    }

    /// The same with rotary rates scaled in this way.
    ///
    /// # Errors
    /// A method that does not rotate, or a scaling that gives no rates.
    pub fn with_rope_scaling(&self, scaling: RopeScaling) -> Result<PositionalEncoding, ConfigError> {
        let scaled = self.encoding.with_rope_scaling(scaling).map_err(|error| {
            let Some(other) = self.others.iter().find(|other| other.encoding.rotates()) else { return error };
            if self.encoding.rotates() {
                return error;
            }
            if let Err(error) = other.encoding.with_rope_scaling(scaling) {
                return error;
            }
            let message = format!("{}, and layers that rotate are scaled with the model's own encoding", error.message);
            let hint = "train with the rotary encoding as the model's own, and the other one in [model.layers]";
            ConfigError::new(&error.key, message, hint)
        });
        scaled.map(|encoding| self.evaluated_as(encoding))
    }

    /// Sizes of the model it serves.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The longest sequence that all layers are defined for, and the encoding that ends there; `None`: all lengths.
    pub fn longest(&self) -> Option<(usize, &Encoding)> {
        let of = |one: &PositionalEncoding| one.encoding.longest(&one.geometry);
        let limited = self.each().filter_map(|one| Some((of(one)?, one.encoding())));
        limited.min_by_key(|(longest, _)| *longest)
    }

    /// Furthest distance at which linear attention holds a kernel to its tolerance; `None`: at all, or there is none.
    pub fn horizon(&self) -> Option<usize> {
        let fading = self.each().filter(|one| one.unlimited().has_approximate_decay());
        fading.filter_map(|one| Some(one.demand()?.horizon)).min()
    }

    /// The layers of each set of tables, which they share; sets in the order of their first layers.
    pub fn sets(&self) -> Vec<Vec<usize>> {
        let of = |one: &PositionalEncoding| {
            if one.layers.is_empty() {
                vec![one.own.to_vec()]
            } else {
                one.own.iter().map(|layer| vec![*layer]).collect()
            }
        };
        let mut sets: Vec<Vec<usize>> = self.each().flat_map(of).filter(|layers| !layers.is_empty()).collect();
        sets.sort_unstable();
        sets
    }

    /// True values of what is learned, by name: `r1`, or `layer0.r1` where each layer has its own; of the others `name.r1`.
    pub fn constrained(&self) -> Vec<(String, Vec<f64>)> {
        self.each().flat_map(PositionalEncoding::own_values).collect()
    }

    fn own_values(&self) -> Vec<(String, Vec<f64>)> {
        let parameters = self.encoding.parameters(&self.geometry);
        let sets = if self.layers.is_empty() { &self.own[..self.own.len().min(1)] } else { &self.own[..] };
        let mut found = Vec::new();
        for (number, layer) in sets.iter().enumerate() {
            let values = self.encoding.constrained(&self.geometry, &self.numbers(*layer));
            for (parameter, values) in parameters.iter().zip(values) {
                match (parameter.share, &self.name) {
                    (ParameterShare::Layer, _) => found.push((format!("layer{layer}.{}", parameter.name), values)),
                    (ParameterShare::Model, Some(name)) if number == 0 => {
                        found.push((format!("{name}.{}", parameter.name), values));
                    }
                    (ParameterShare::Model, None) if number == 0 => found.push((parameter.name.clone(), values)),
                    (ParameterShare::Model, _) => {}
                }
            }
        }
        found
    }

    /// The tables of one layer over distances `0..len` as numbers, for drawing and reports.
    pub fn table(&self, layer: usize, len: usize) -> DistanceTable {
        let one = self.of_layer(layer);
        one.encoding.table(&one.geometry, &one.numbers(layer), len)
    }

    /// Rank and profiles `[R, E]` of a layer's relative bias, for drawing and reports; `None`: it has none.
    pub fn profiles(&self, layer: usize) -> Option<(usize, Vec<f64>)> {
        let one = self.of_layer(layer);
        let form = one.encoding.row_profiles(&one.geometry)?;
        let parameters = one.encoding.parameters(&one.geometry);
        let at = parameters.iter().position(|parameter| parameter.shape == [form.rank, form.reach])?;
        Some((form.rank, one.encoding.constrained(&one.geometry, &one.numbers(layer)).swap_remove(at)))
    }

    /// The distance at which the bias of a layer ends; `None`: it goes on, or is none.
    pub fn reach(&self, layer: usize) -> Option<usize> {
        self.of_layer(layer).encoding.reach
    }

    /// The distance that further keys of a layer are treated as; `None`: each distance has its own bias.
    pub fn distance_cap(&self, layer: usize) -> Option<usize> {
        self.of_layer(layer).encoding.distance_cap
    }

    /// What `make(layer)` gives, layer by layer, each when its turn comes; layers that share everything, draws included, share the
    /// result.
    pub fn every_layer<'a>(
        &'a self,
        mut make: impl FnMut(usize) -> AttentionContext + 'a,
    ) -> impl Iterator<Item = AttentionContext> + 'a {
        let mut kept: BTreeMap<usize, AttentionContext> = BTreeMap::new();
        let depth = self.layer_encodings.len();
        (0..depth).map(move |layer| {
            let one = self.of_layer(layer);
            let shares = one.layers.is_empty() && one.encoding.randomized.is_none();
            let is_twin = |other: &usize| shares && self.layer_encodings[*other] == self.layer_encodings[layer];
            if let Some(context) = (0..layer).find(is_twin).and_then(|first| kept.get(&first)) {
                return context.clone();
            }
            let context = make(layer);
            if (layer + 1..depth).any(|other| is_twin(&other)) {
                kept.insert(layer, context.clone());
            }
            context
        })
    }

    /// Whether all tokens of a sequence of the first length keep their positions when it grows to the second.
    pub fn keeps_positions(&self, [old, new]: [usize; 2]) -> bool {
        let keeps = |one: &PositionalEncoding| {
            let rotary = |span| one.encoding.rotary(&one.geometry, span);
            one.encoding.randomized.is_none() && rotary(old) == rotary(new)
        };
        keeps(self) && self.others.iter().all(keeps)
    }

    /// Randomized positions of a sequence, or distances, at this place in the model.
    ///
    /// # Panics
    /// When the pass is over fewer positions than there are keys.
    fn draw(&self, place: u64, keys: usize, pass: &ForwardContext) -> Option<Vec<usize>> {
        let span = pass.span.unwrap_or(keys);
        assert!(keys <= span, "a forward pass over {span} positions got {keys}");
        self.encoding.draw(span, &mut pass.shared_noise(place))
    }

    /// Bias and weight as tensors through which gradients reach `stored`; they are computed from its `numbers`.
    fn tensors(
        &self,
        table: DistanceTable,
        places: FormPositions,
        numbers: Vec<Vec<f64>>,
        stored: &[Tensor<1>],
        options: (&Device, DType),
        implementation: Impl,
    ) -> [Option<Tensor<2>>; 2] {
        let DistanceTable { heads, len, sides, bias, weight } = table;
        let len = sides.columns(len);
        let tracked = stored.iter().any(|values| values.device().is_autodiff());
        let jacobian = if tracked {
            self.encoding.table_jacobian(&self.geometry, &numbers, places)
        } else {
            TableJacobian::default()
        };
        let numbers = Arc::new(numbers);
        [(bias, jacobian.bias), (weight, jacobian.weight)].map(|(rows, jacobian)| {
            let table = |rows| DistanceTableOp { heads, len, rows, jacobian, numbers: numbers.clone() };
            rows.map(|rows| table(rows).tensor(stored, options, implementation))
        })
    }

    /// Rows added to the embeddings of sequences of documents, in each of which positions restart, `[B, L, M]`.
    pub fn absolute_of_documents(
        &self,
        documents: &PackedDocuments,
        options: (&Device, DType),
        pass: &ForwardContext,
    ) -> Option<Tensor<3>> {
        let rows = self.absolute(0, documents.longest_len().max(1), options, pass)?;
        let positions: Vec<i64> = documents.position_ids().into_iter().map(|position| position as i64).collect();
        let (count, width) = (positions.len(), self.geometry.d_model);
        let index = Tensor::<1, Int>::from_data(TensorData::new(positions, [count]), options.0);
        Some(rows.squeeze_dim::<2>(0).select(0, index).reshape([documents.rows(), documents.keys(), width]))
    }

    /// Rows added to the embeddings of positions `start..start + len`, `[1, len, M]`.
    pub fn absolute(
        &self,
        start: usize,
        len: usize,
        (device, dtype): (&Device, DType),
        pass: &ForwardContext,
    ) -> Option<Tensor<3>> {
        let Injection::Embeddings = self.encoding.entry() else { return None };
        let width = self.geometry.d_model;
        let drawn = self.draw(POSITIONS, start + len, pass);
        let places = FormPositions { drawn: drawn.as_deref(), ..FormPositions::from(start..start + len) };
        match self.encoding.absolute(&self.geometry, places.clone())? {
            Absolute::Fixed(rows) => Some(Tensor::from_data(TensorData::new(rows, [1, len, width]), (device, dtype))),
            Absolute::Learned { positions } => {
                let table = self.values[0].val().reshape([positions, width]);
                let rows = match drawn {
                    None => table.narrow(0, start, len),
                    Some(_) => {
                        let index: Vec<i64> = places.iter().map(|position| position as i64).collect();
                        table.select(0, Tensor::<1, Int>::from_data(TensorData::new(index, [len]), device))
                    }
                };
                Some(cast(rows.unsqueeze(), dtype))
            }
        }
    }
}

impl ParamGroupOverrides for PositionalEncoding {
    /// The encoding's description of its parameters; projection keeps ranges only where the
    /// encoding requires it.
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        let parameters = self.encoding.parameters(&self.geometry);
        let projected = self.encoding.clamp == Clamp::Projected;
        let range = |parameter: &EncodingParameter| match self.demand() {
            Some(demand) => self.unlimited().range_in_linear(parameter, demand),
            None => parameter.raw_range(),
        };
        let mut say = |values: &[Param<Tensor<1>>], share: ParameterShare| {
            for (value, parameter) in values.iter().zip(parameters.iter().filter(|known| known.share == share)) {
                let range = projected.then(|| range(parameter));
                groups.set(value, ParamGroup { decay: parameter.decay, range });
            }
        };
        say(&self.values, ParameterShare::Model);
        self.layers.iter().for_each(|own| say(own, ParameterShare::Layer));
        self.others.iter().for_each(|other| other.override_param_groups(groups));
    }
}

/// Cosines and sines of the angles at these positions; as tensors too where no kernel takes them as they are.
fn rotation(
    rotary: &Rotary,
    places: &FormPositions,
    options: (&Device, DType),
    implementation: Impl,
) -> Arc<RotaryTables> {
    let on_host = implementation.uses_kernels() && DeviceKind::of(options.0) == Some(DeviceKind::Cpu);
    let at = |place: &dyn Fn(usize) -> usize| {
        let (cos, sin) = rotary.tables(places.iter().map(place));
        let tables = RotaryTables::new(rotary.inv_freq.len(), cos, sin);
        if on_host { tables } else { tables.held(options) }
    };
    let tables = at(&|place| place);
    Arc::new(match rotary.grouped {
        None => tables,
        Some(grouped) => tables.with_grouped(GroupedTables {
            window: grouped.neighbor_window,
            queries: at(&|place| grouped.of_query(place)),
            keys: at(&|place| grouped.of_key(place)),
        }),
    })
}

/// A parameter of the device's type of numbers.
fn param(values: Vec<f64>, device: &Device) -> Param<Tensor<1>> {
    let shape = [values.len()];
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}
