//! What one call of an encoding's engine reads besides queries, keys and values, and room for the gradients.

use crate::timing::TimedSizes;
use crate::timing::inputs::noise;
use kerple_core::attention::{
    AttentionDims, HouseholderGradients, HouseholderPath, PathBias, PathGradients, RelativeBias, RelativeGradients,
    Strides, View, ViewMut,
};
use kerple_core::forms::{PositionKernel, Strided};

/// A kernel of learned positions, its parameters `[H, P]`, and room for their gradient.
pub(super) struct TimedKernel {
    pub(super) kernel: PositionKernel,
    pub(super) parameters: Vec<f64>,
    pub(super) d_parameters: Vec<f64>,
}

/// A relative bias per row, and room for its gradients.
pub(super) struct TimedRelative {
    pub(super) rank: usize,
    pub(super) reach: usize,
    pub(super) rows: Vec<f32>,
    pub(super) profiles: Vec<f32>,
    pub(super) d_rows: Vec<f32>,
    pub(super) d_profiles: Vec<f32>,
}

/// A bias over paths, features of queries and of keys, and room for their gradients.
pub(super) struct TimedPath {
    pub(super) width: usize,
    pub(super) slopes: Vec<f64>,
    pub(super) features: [Vec<f32>; 2],
    pub(super) d_features: [Vec<f32>; 2],
}

/// Directions and strengths of Householder products, and room for their gradients.
pub(super) struct TimedHouseholder {
    pub(super) values: [Vec<f32>; 2],
    pub(super) d_values: [Vec<f32>; 2],
}

impl TimedRelative {
    /// What the engine reads and what it writes.
    pub(super) fn parts(&mut self, dims: &AttentionDims) -> (RelativeBias<'_, f32>, RelativeGradients<'_, f32>) {
        let TimedRelative { rank, reach, rows, profiles, d_rows, d_profiles } = self;
        let head = dims.queries * *rank;
        let strides = Strides { batch: dims.heads * head, head, row: *rank };
        let rows = View { data: &rows[..], strides };
        (
            RelativeBias { rows, profiles, rank: *rank, reach: *reach },
            RelativeGradients { d_rows: ViewMut::new(d_rows, strides), d_profiles },
        )
    }
}

impl TimedPath {
    /// What the engine reads and what it writes.
    pub(super) fn parts(&mut self, dims: &AttentionDims) -> (PathBias<'_, f32>, PathGradients<'_, f32>) {
        let TimedPath { width, slopes, features, d_features } = self;
        let head = dims.keys * *width;
        let strides = Strides { batch: dims.heads * head, head, row: *width };
        let [queries, keys] = features.each_ref().map(|data| View { data: &data[..], strides });
        let [d_queries, d_keys] = d_features.each_mut().map(|data| ViewMut::new(data, strides));
        (PathBias { queries, keys, width: *width, slopes }, PathGradients { d_queries, d_keys })
    }
}

impl TimedHouseholder {
    pub(super) fn new(length: usize, TimedSizes { batch, heads, head_dim, .. }: TimedSizes) -> TimedHouseholder {
        let mut directions = noise(batch * heads * length * head_dim, 9);
        for direction in directions.chunks_exact_mut(head_dim) {
            let root = direction.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-6);
            direction.iter_mut().for_each(|x| *x /= root);
        }
        let strength = |logit: f32| 2.0 / (1.0 + (-logit).exp());
        let strengths = noise(batch * heads * length, 10).into_iter().map(strength).collect();
        let values = [directions, strengths];
        TimedHouseholder { d_values: values.clone(), values }
    }

    /// What the engine reads and what it writes.
    pub(super) fn parts<'a>(
        &'a mut self,
        dims: &AttentionDims,
        gate_cumsum: Option<Strided<&'a [f64]>>,
    ) -> (HouseholderPath<'a, f32>, HouseholderGradients<'a, f32>) {
        let of = |row: usize| Strides { batch: dims.heads * dims.keys * row, head: dims.keys * row, row };
        let [of_directions, of_strengths] = [dims.head_dim, 1].map(of);
        let TimedHouseholder { values: [directions, strengths], d_values: [d_directions, d_strengths] } = self;
        let directions = View { data: &directions[..], strides: of_directions };
        let strengths = View { data: &strengths[..], strides: of_strengths };
        let d_directions = ViewMut::new(d_directions, of_directions);
        let d_strengths = ViewMut::new(d_strengths, of_strengths);
        (HouseholderPath { directions, strengths, gate_cumsum }, HouseholderGradients { d_directions, d_strengths })
    }
}
