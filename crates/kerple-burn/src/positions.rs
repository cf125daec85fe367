//! Encodings as Burn modules: learned parameters in, the forms that attention consumes out.

use crate::array::Array;
use crate::forms::{Positions, RotaryTables, Scores};
use crate::fused::{Forward, Input, Op, Saved, Step, apply};
use crate::parameters::{Describe, Group, Groups};
use crate::with_element;
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Element, ElementConversion, Tensor, TensorData};
use bytemuck::Pod;
use kerple::encoding::{Clamp, Encoding, Geometry, TableGradient};
use kerple::forms::{Absolute, DistanceTable, Sight};
use std::sync::Arc;

/// A positional encoding with its learned parameters, shared by all layers of a model.
#[derive(Module, Debug)]
pub struct PositionalEncoding {
    /// Learned values, flattened, in the order of [`Encoding::parameters`].
    pub values: Vec<Param<Tensor<1>>>,
    #[module(skip)]
    encoding: Arc<Encoding>,
    #[module(skip)]
    geometry: Arc<Geometry>,
}

impl PositionalEncoding {
    /// A fresh encoding, initial values drawn from `seed`.
    pub fn new(encoding: &Encoding, geometry: &Geometry, seed: u64, device: &Device) -> PositionalEncoding {
        let param = |values: Vec<f64>| {
            let shape = [values.len()];
            Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), (device, DType::F32)))
        };
        PositionalEncoding {
            values: encoding.initial(geometry, seed).into_iter().map(param).collect(),
            encoding: Arc::new(encoding.clone()),
            geometry: Arc::new(*geometry),
        }
    }

    /// Which encoding this is.
    pub fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// The same learned values with attention restricted to a window.
    pub fn with_window(&self, window: Option<usize>) -> PositionalEncoding {
        let encoding = Encoding { window, ..(*self.encoding).clone() };
        PositionalEncoding { encoding: Arc::new(encoding), ..self.clone() }
    }

    /// Sizes of the model it serves.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Learned values as numbers, in the order of [`Encoding::parameters`].
    pub fn numbers(&self) -> Vec<Vec<f64>> {
        self.values.iter().map(|value| value.val().into_data().iter::<f64>().collect()).collect()
    }

    /// The tables over distances `0..len` as numbers, for drawing and reports.
    pub fn table(&self, len: usize) -> DistanceTable {
        self.encoding.table(&self.geometry, &self.numbers(), len)
    }

    /// What attention of this type of numbers needs for `queries` new positions at the end of `keys`.
    pub fn positions(&self, queries: usize, keys: usize, options: (&Device, DType)) -> Positions {
        let shape = self.encoding.table(&self.geometry, &self.numbers(), 1);
        let rotary = self.encoding.rotary(&self.geometry).map(|rotary| {
            let (cos, sin) = rotary.tables(keys - queries, queries);
            Arc::new(RotaryTables::new(rotary.rotated() / 2, cos, sin))
        });
        let bias = shape.bias.is_some().then(|| self.table_tensor(Part::Bias, keys, options));
        let weight = shape.weight.is_some().then(|| self.table_tensor(Part::Weight, keys, options));
        let scores = if bias.is_none() && weight.is_none() { Scores::Plain } else { Scores::Table { bias, weight } };
        let sight = Sight::Causal { window: self.encoding.window };
        Positions { rotary, scores, sight, ..Positions::default() }
    }

    /// Rows added to the embeddings of positions `start..start + len`, `[1, len, M]`.
    pub fn absolute(&self, start: usize, len: usize, device: &Device) -> Option<Tensor<3>> {
        let (geometry, width) = (&self.geometry, self.geometry.d_model());
        match self.encoding.absolute(geometry, start..start + len)? {
            Absolute::Fixed(rows) => {
                let rows = TensorData::new(rows, [1, len, width]);
                Some(Tensor::from_data(rows, (device, DType::F32)))
            }
            Absolute::Learned { positions } => {
                let table = self.values[0].val().reshape([1, positions, width]);
                Some(table.narrow(1, start, len))
            }
        }
    }

    fn table_tensor(&self, part: Part, len: usize, (device, dtype): (&Device, DType)) -> Tensor<2> {
        let sizes: Vec<usize> = self.values.iter().map(|value| value.dims()[0]).collect();
        let op = TableOp { encoding: self.encoding.clone(), geometry: self.geometry.clone(), sizes, part, len };
        if self.values.is_empty() {
            let rows = op.table(&[]);
            return Tensor::from_data(TensorData::new(rows, [self.geometry.heads, len]), (device, dtype));
        }
        let flat = Tensor::cat(self.values.iter().map(Param::val).collect(), 0);
        apply(op, vec![Input::from(flat)])
    }
}

impl Describe for PositionalEncoding {
    /// Matrices (T5's table, learned positions) are decayed as GPT-NeoX does, kernel parameters are not; ranges are held by
    /// projection only when the encoding says so.
    fn describe(&self, groups: &mut Groups) {
        let parameters = self.encoding.parameters(&self.geometry);
        let projected = self.encoding.clamp == Clamp::Projected;
        for (value, parameter) in self.values.iter().zip(parameters) {
            let range = projected.then(|| parameter.stored_range());
            groups.say(value, Group { decay: parameter.decay, range });
        }
    }
}

/// Which of the two tables an operation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Bias,
    Weight,
}

/// Learned values, concatenated -> one table `[H, len]`. Made in f64, cast once.
#[derive(Debug)]
struct TableOp {
    encoding: Arc<Encoding>,
    geometry: Arc<Geometry>,
    sizes: Vec<usize>,
    part: Part,
    len: usize,
}

impl TableOp {
    fn values<T: Element + Pod>(&self, flat: &Array) -> Vec<Vec<f64>> {
        let mut rest = flat.slice::<T>().iter().map(|value| value.elem::<f64>());
        self.sizes.iter().map(|size| rest.by_ref().take(*size).collect()).collect()
    }

    fn table(&self, values: &[Vec<f64>]) -> Vec<f64> {
        let table = self.encoding.table(&self.geometry, values, self.len);
        let rows = if self.part == Part::Bias { table.bias } else { table.weight };
        rows.expect("only tables that the method makes are asked for")
    }
}

fn forward<T: Element + Pod>(op: &TableOp, flat: &Array) -> Array {
    let rows = op.table(&op.values::<T>(flat));
    Array::from_vec(rows.into_iter().map(|value| value.elem::<T>()).collect(), &[op.geometry.heads, op.len])
}

fn backward<T: Element + Pod>(op: &TableOp, flat: &Array, d_table: &Array) -> Array {
    let d_table: Vec<f64> = d_table.slice::<T>().iter().map(|value| value.elem::<f64>()).collect();
    let (d_bias, d_weight) = match op.part {
        Part::Bias => (Some(d_table.as_slice()), None),
        Part::Weight => (None, Some(d_table.as_slice())),
    };
    let gradient = TableGradient { len: op.len, d_bias, d_weight };
    let d_values = op.encoding.table_backward(&op.geometry, &op.values::<T>(flat), gradient);
    let d_values: Vec<T> = d_values.into_iter().flatten().map(|value| value.elem()).collect();
    Array::from_vec(d_values, flat.shape())
}

impl Op for TableOp {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        Forward { output: with_element!(inputs[0], T => forward::<T>(self, &inputs[0])), saved: Saved::nothing() }
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        vec![Some(with_element!(step.inputs[0], T => backward::<T>(self, &step.inputs[0], step.d_output)))]
    }
}
