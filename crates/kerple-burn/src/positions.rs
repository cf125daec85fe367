//! Encodings as Burn modules: learned parameters in, the forms that attention consumes out.

use crate::array::Array;
use crate::forms::{Code, Fading, Positions, RotaryTables, Scores};
use crate::fused::{Engine, Forward, Input, Op, Saved, Step, apply};
use crate::parameters::{Describe, Group, Groups};
use crate::pass::{POSITIONS, Pass};
use crate::plan::AttentionKind;
use crate::with_element;
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Element, ElementConversion, Int, Tensor, TensorData};
use bytemuck::Pod;
use kerple::encoding::scaling::Scaling;
use kerple::encoding::{Clamp, Encoding, Geometry, Parameter, Places, Refusal, Scope};
use kerple::forms::{Absolute, DistanceTable, Form, MapForm, Rotary, Sides, Sight, Slopes, TableSlopes};
use kerple::kernel::exponentials::Demand;
use std::sync::Arc;

/// Where an encoding enters a model.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    Nowhere,
    Embeddings,
    Rotation,
    Tables,
    Map,
    /// Queries and keys of linear attention.
    Code(kerple::forms::Code),
}

/// A positional encoding with its learned parameters, those that layers share once and the others once a layer.
#[derive(Module, Debug)]
pub struct PositionalEncoding {
    /// Stored numbers that all layers share, flattened, in the order of [`Encoding::parameters`].
    pub values: Vec<Param<Tensor<1>>>,
    /// Stored numbers of each layer, likewise; empty when layers share everything.
    pub layers: Vec<Vec<Param<Tensor<1>>>>,
    #[module(skip)]
    encoding: Arc<Encoding>,
    #[module(skip)]
    geometry: Arc<Geometry>,
    #[module(skip)]
    place: Place,
    #[module(skip)]
    depth: usize,
    #[module(skip)]
    demand: Option<Demand>,
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
        let parameters = encoding.parameters(geometry);
        let drawn = |layer: usize, scope: Scope| -> Vec<Param<Tensor<1>>> {
            let all = encoding.initial_in_layer(geometry, seed, layer).into_iter().zip(&parameters);
            all.filter(|(_, parameter)| parameter.scope == scope).map(|(values, _)| param(values, device)).collect()
        };
        let has_own = parameters.iter().any(|parameter| parameter.scope == Scope::Layer);
        let place = match encoding.form(geometry, &encoding.initial(geometry, seed), 0..1) {
            Form::Nothing => Place::Nowhere,
            Form::Absolute(_) => Place::Embeddings,
            Form::Rotary(_) => Place::Rotation,
            Form::Table(_) => Place::Tables,
            Form::Map(_) => Place::Map,
            Form::Code(code) => Place::Code(code),
        };
        PositionalEncoding {
            values: drawn(0, Scope::Model),
            layers: (0..if has_own { depth } else { 0 }).map(|layer| drawn(layer, Scope::Layer)).collect(),
            encoding: Arc::new(encoding.clone()),
            geometry: Arc::new(*geometry),
            place,
            depth,
            demand: None,
        }
    }

    /// The same for this kind of attention: linear attention takes kernels as decays.
    ///
    /// # Panics
    /// For a tolerance or an amplitude that there are no decays for; plans with one are refused.
    pub fn with_attention(self, kind: &AttentionKind) -> PositionalEncoding {
        let demand = kind.linear().map(|plan| plan.demand().expect("the plan was checked"));
        PositionalEncoding { demand, ..self }
    }

    /// Which encoding this is.
    pub fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// The same learned values with attention restricted to a window.
    pub fn with_window(&self, window: Option<usize>) -> PositionalEncoding {
        self.evaluated_as(Encoding { window, ..(*self.encoding).clone() })
    }

    /// The same learned values as part of an encoding that differs in its window or in how it scales rotary rates.
    pub fn evaluated_as(&self, encoding: Encoding) -> PositionalEncoding {
        PositionalEncoding { encoding: Arc::new(encoding), ..self.clone() }
    }

    /// The same with rotary rates scaled in this way.
    ///
    /// # Errors
    /// A method that does not rotate, or a scaling that gives no rates.
    pub fn with_rope_scaling(&self, scaling: Scaling) -> Result<PositionalEncoding, Refusal> {
        self.encoding.with_rope_scaling(scaling).map(|encoding| self.evaluated_as(encoding))
    }

    /// Sizes of the model it serves.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Furthest distance at which linear attention holds a kernel to its tolerance; `None`: at all, or there is none.
    pub fn horizon(&self) -> Option<usize> {
        self.demand.filter(|_| self.encoding.fades_as_a_sum()).map(|demand| demand.horizon)
    }

    /// Number of sets of tables: one, or one a layer.
    pub fn sets(&self) -> usize {
        self.layers.len().max(1)
    }

    /// The tensors of one layer, in the order of [`Encoding::parameters`].
    fn stored(&self, layer: usize) -> Vec<Tensor<1>> {
        let mut shared = self.values.iter();
        let mut own = self.layers.get(layer).into_iter().flatten();
        let find = |parameter: Parameter| match parameter.scope {
            Scope::Model => shared.next(),
            Scope::Layer => own.next(),
        };
        self.encoding.parameters(&self.geometry).into_iter().filter_map(find).map(Param::val).collect()
    }

    /// Stored numbers of one layer, in the order of [`Encoding::parameters`].
    pub fn numbers(&self, layer: usize) -> Vec<Vec<f64>> {
        self.stored(layer).into_iter().map(|values| values.into_data().iter::<f64>().collect()).collect()
    }

    /// True values of what is learned, by name: `r1`, or `layer0.r1` where each layer has its own.
    pub fn true_values(&self) -> Vec<(String, Vec<f64>)> {
        let parameters = self.encoding.parameters(&self.geometry);
        let mut found = Vec::new();
        for layer in 0..self.sets() {
            let values = self.encoding.true_values(&self.geometry, &self.numbers(layer));
            for (parameter, values) in parameters.iter().zip(values) {
                match parameter.scope {
                    Scope::Layer => found.push((format!("layer{layer}.{}", parameter.name), values)),
                    Scope::Model if layer == 0 => found.push((parameter.name.clone(), values)),
                    Scope::Model => {}
                }
            }
        }
        found
    }

    /// The tables of one layer over distances `0..len` as numbers, for drawing and reports.
    pub fn table(&self, layer: usize, len: usize) -> DistanceTable {
        self.encoding.table(&self.geometry, &self.numbers(layer), len)
    }

    /// One `make(layer)` for each layer of the model; layers that share everything, draws included, share the result.
    pub fn every_layer(&self, make: impl Fn(usize) -> Positions) -> Vec<Positions> {
        if self.layers.is_empty() && self.encoding.randomized.is_none() {
            return vec![make(0); self.depth];
        }
        (0..self.depth).map(make).collect()
    }

    /// What attention of this type of numbers needs in one layer for `queries` new positions at the end of `keys`.
    pub fn positions(
        &self,
        layer: usize,
        [queries, keys]: [usize; 2],
        options: (&Device, DType),
        engine: Engine,
        pass: &Pass,
    ) -> Positions {
        let mut positions = Positions { sight: self.sight(Sides::One), pass: *pass, ..Positions::default() };
        if let Place::Nowhere | Place::Embeddings = self.place {
            return positions;
        }
        let drawn = self.draw(POSITIONS + 1 + layer as u64, keys, pass);
        let span = pass.span.unwrap_or(keys);
        let places = Places { range: keys - queries..keys, span, drawn: drawn.as_deref() };
        match &self.place {
            Place::Nowhere | Place::Embeddings => {}
            Place::Rotation => {
                let rotary = self.encoding.rotary(&self.geometry, span).expect("this encoding rotates");
                positions.damping = rotary.damping(self.geometry.head_dim).map(Arc::from);
                positions.rotary = Some(turned(&rotary, &places));
            }
            Place::Code(plan) => {
                positions.code = Some(Arc::new(Code { plan: plan.clone(), values: self.stored(layer) }));
            }
            Place::Tables if self.demand.is_some() => {
                positions.fading = self.demand.as_ref().map(|demand| self.fading(layer, demand, options, engine));
            }
            Place::Tables => {
                let places = Places { range: 0..keys, ..places };
                let (stored, numbers) = (self.stored(layer), self.numbers(layer));
                let Form::Table(table) = self.encoding.form(&self.geometry, &numbers, places.clone()) else {
                    unreachable!("an encoding keeps its form")
                };
                positions.sight = self.sight(table.sides);
                let [bias, weight] = self.tensors(table, places, numbers, &stored, options, engine);
                positions.scores = Scores::Table { bias, weight };
            }
            Place::Map => {
                let (stored, numbers) = (self.stored(layer), self.numbers(layer));
                let all = Places { range: 0..keys, ..places.clone() };
                let Form::Map(form) = self.encoding.form(&self.geometry, &numbers, all.clone()) else {
                    unreachable!("an encoding keeps its form")
                };
                let MapForm { map, table, rotary, own } = form;
                let own: Vec<Tensor<1>> = stored[stored.len() - own..].to_vec();
                let own = (!own.is_empty()).then(|| cast(Tensor::cat(own, 0), options.1));
                positions.sight = self.sight(table.sides);
                let [bias, weight] = self.tensors(table, all, numbers, &stored, options, engine);
                positions.rotary = rotary.map(|rotary| turned(&rotary, &places));
                positions.scores = Scores::Map { map: Arc::new(map), bias, weight, own };
            }
        }
        positions
    }

    /// What is seen with tables of these sides: the past, until an encoder says otherwise, or all.
    fn sight(&self, sides: Sides) -> Sight {
        let window = self.encoding.window;
        match sides {
            Sides::One => Sight::Causal { window },
            Sides::Two => Sight::Both { window },
        }
    }

    /// The decay of one layer.
    fn fading(&self, layer: usize, demand: &Demand, options: (&Device, DType), engine: Engine) -> Arc<Fading> {
        let (stored, numbers) = (self.stored(layer), Arc::new(self.numbers(layer)));
        let found = self.encoding.fading(&self.geometry, &numbers, demand).expect("plans check that an encoding fades");
        let (heads, tracked) = (self.geometry.heads, stored.iter().any(|values| values.device().is_autodiff()));
        let table = |rows: Vec<f64>, slopes: Option<Slopes>| {
            let slopes = slopes.filter(|_| tracked);
            let table = Table { heads, len: rows.len() / heads, rows, slopes, numbers: numbers.clone() };
            table.tensor(&stored, options, engine)
        };
        let (near, weights) = (table(found.near, found.near_slopes), table(found.weights, found.weight_slopes));
        Arc::new(Fading { near, weights, rates: found.rates.into() })
    }

    /// What stands in the place of the positions of a sequence, or of its distances, at this place in the model.
    ///
    /// # Panics
    /// When the pass is over fewer positions than there are keys.
    fn draw(&self, place: u64, keys: usize, pass: &Pass) -> Option<Vec<usize>> {
        let span = pass.span.unwrap_or(keys);
        assert!(keys <= span, "a pass over {span} positions got {keys}");
        self.encoding.draw(span, &mut pass.shared_noise(place))
    }

    /// Bias and weight as tensors through which gradients reach `stored`, whose `numbers` they were made of.
    fn tensors(
        &self,
        table: DistanceTable,
        places: Places,
        numbers: Vec<Vec<f64>>,
        stored: &[Tensor<1>],
        options: (&Device, DType),
        engine: Engine,
    ) -> [Option<Tensor<2>>; 2] {
        let DistanceTable { heads, len, sides, bias, weight } = table;
        let len = sides.columns(len);
        let tracked = stored.iter().any(|values| values.device().is_autodiff());
        let slopes = match tracked {
            true => self.encoding.table_slopes(&self.geometry, &numbers, places),
            false => TableSlopes::default(),
        };
        let numbers = Arc::new(numbers);
        [(bias, slopes.bias), (weight, slopes.weight)].map(|(rows, slopes)| {
            let table = |rows| Table { heads, len, rows, slopes, numbers: numbers.clone() };
            rows.map(|rows| table(rows).tensor(stored, options, engine))
        })
    }

    /// Rows added to the embeddings of positions `start..start + len`, `[1, len, M]`.
    pub fn absolute(
        &self,
        start: usize,
        len: usize,
        (device, dtype): (&Device, DType),
        pass: &Pass,
    ) -> Option<Tensor<3>> {
        if self.place != Place::Embeddings {
            return None;
        }
        let width = self.geometry.d_model;
        let drawn = self.draw(POSITIONS, start + len, pass);
        let places = Places { drawn: drawn.as_deref(), ..Places::from(start..start + len) };
        match self.encoding.absolute(&self.geometry, places.clone())? {
            Absolute::Fixed(rows) => Some(Tensor::from_data(TensorData::new(rows, [1, len, width]), (device, dtype))),
            Absolute::Learned { positions } => {
                let table = self.values[0].val().reshape([positions, width]);
                let rows = match drawn {
                    None => table.narrow(0, start, len),
                    Some(_) => {
                        let index: Vec<i64> = places.positions().map(|position| position as i64).collect();
                        table.select(0, Tensor::<1, Int>::from_data(TensorData::new(index, [len]), device))
                    }
                };
                Some(cast(rows.unsqueeze(), dtype))
            }
        }
    }
}

impl Describe for PositionalEncoding {
    /// What an encoding says of its parameters; ranges are held by projection only when the encoding says so.
    fn describe(&self, groups: &mut Groups) {
        let parameters = self.encoding.parameters(&self.geometry);
        let projected = self.encoding.clamp == Clamp::Projected;
        let range = |parameter: &Parameter| match &self.demand {
            Some(demand) => self.encoding.range_in_linear(parameter, demand),
            None => parameter.stored_range(),
        };
        let mut say = |values: &[Param<Tensor<1>>], scope: Scope| {
            for (value, parameter) in values.iter().zip(parameters.iter().filter(|known| known.scope == scope)) {
                let range = projected.then(|| range(parameter));
                groups.say(value, Group { decay: parameter.decay, range });
            }
        };
        say(&self.values, Scope::Model);
        self.layers.iter().for_each(|own| say(own, Scope::Layer));
    }
}

/// Cosines and sines of the angles at these positions.
fn turned(rotary: &Rotary, places: &Places) -> Arc<RotaryTables> {
    let (cos, sin) = rotary.tables(places.positions());
    Arc::new(RotaryTables::new(rotary.rotated() / 2, cos, sin))
}

/// A parameter of the device's type of numbers.
fn param(values: Vec<f64>, device: &Device) -> Param<Tensor<1>> {
    let shape = [values.len()];
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}

fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

/// One table made in f64 on the host, `[H, L]`, with its derivatives in the stored numbers it was made from.
#[derive(Debug)]
struct Table {
    heads: usize,
    len: usize,
    rows: Vec<f64>,
    slopes: Option<Slopes>,
    numbers: Arc<Vec<Vec<f64>>>,
}

impl Table {
    /// The table as a tensor `[H, L]` through which gradients reach `stored`.
    fn tensor(self, stored: &[Tensor<1>], (device, dtype): (&Device, DType), engine: Engine) -> Tensor<2> {
        if self.slopes.is_none() {
            return Tensor::from_data(TensorData::new(self.rows, [self.heads, self.len]), (device, dtype));
        }
        if engine.is_fused_on(&stored[0]) {
            return cast(apply(self, vec![Input::from(Tensor::cat(stored.to_vec(), 0))]), dtype);
        }
        self.composed(stored, (device, dtype))
    }

    /// `rows + sum_k slopes_k (stored_k - numbers_k)`: the differences are zero and carry the gradients.
    fn composed(self, stored: &[Tensor<1>], (device, dtype): (&Device, DType)) -> Tensor<2> {
        let Table { heads, len, rows, slopes, numbers } = self;
        let constant = |rows: Vec<f64>| Tensor::<2>::from_data(TensorData::new(rows, [heads, len]), (device, dtype));
        let difference = |index: usize| {
            let values: &Tensor<1> = &stored[index];
            let numbers = TensorData::new(numbers[index].clone(), [numbers[index].len()]);
            let numbers = Tensor::<1>::from_data(numbers, (&values.device(), values.dtype()));
            cast(values.clone() - numbers, dtype)
        };
        let table = constant(rows);
        match slopes {
            None => table,
            Some(Slopes::PerHead(parameters)) => parameters
                .into_iter()
                .fold(table, |table, (index, slopes)| table + constant(slopes) * difference(index).reshape([heads, 1])),
            Some(Slopes::Rows { factor, rows }) => {
                let matrix = difference(0).reshape([-1, heads as i32]);
                let index: Vec<i64> = rows.into_iter().map(|row| row as i64).collect();
                let index = Tensor::<1, Int>::from_data(TensorData::new(index, [len]), device);
                table + matrix.select(0, index).swap_dims(0, 1) * factor
            }
        }
    }
}

fn forward<T: Element + Pod>(table: &Table) -> Array {
    Array::from_vec(table.rows.iter().map(|value| value.elem::<T>()).collect(), &[table.heads, table.len])
}

fn backward<T: Element + Pod>(table: &Table, d_table: &Array) -> Array {
    let d_table: Vec<f64> = d_table.slice::<T>().iter().map(|value| value.elem::<f64>()).collect();
    let mut d_stored: Vec<Vec<f64>> = table.numbers.iter().map(|numbers| vec![0.0; numbers.len()]).collect();
    if let Some(slopes) = &table.slopes {
        slopes.backward(table.heads, &d_table, &mut d_stored);
    }
    let d_stored: Vec<T> = d_stored.into_iter().flatten().map(|value| value.elem()).collect();
    let count = d_stored.len();
    Array::from_vec(d_stored, &[count])
}

/// The table exists already; the operation ties it to the stored numbers, all of a layer concatenated.
impl Op for Table {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        Forward { output: with_element!(inputs[0], T => forward::<T>(self)), saved: Saved::nothing() }
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        vec![Some(with_element!(step.inputs[0], T => backward::<T>(self, step.d_output)))]
    }
}
