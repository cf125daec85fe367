//! Stochastic positional encodings and linear attention: cases that are identified by the prefix of
//! their names, each with a file of its own.

mod attention;
mod codes;
mod decoder;
mod kernels;
mod rows;

use crate::folder::{Case, Folder, Numbers};
use crate::{Runner, Score, Tolerance};

/// What runs a case of this name, whatever the sizes are that it ends with.
pub fn runner(name: &str) -> Option<Runner> {
    // listops, groove_timing and style_time_pitch belong to the data they test
    let kinds: [(&str, Runner); 13] = [
        ("init_", codes::initial),
        ("sine", codes::sine),
        ("jax_sine", codes::sine),
        ("conv", codes::conv),
        ("jax_conv", codes::conv),
        ("favor_ft_orthogonal", kernels::orthogonal),
        ("favor_jax_matrix", kernels::blocks),
        ("pipeline_sine_favor", attention::pipeline),
        ("attn_ft", attention::fast_transformers),
        ("attn_jax", attention::performer),
        ("pe_metrics", kernels::metrics),
        ("soe_log_kernel", kernels::exponentials),
        ("lm_", decoder::run),
    ];
    kinds.into_iter().find(|(kind, _)| name.starts_with(kind)).map(|(_, run)| run)
}

/// The tensors and sizes of one case.
struct Values<'a> {
    folder: &'a Folder,
    case: &'a Case<'a>,
}

impl Values<'_> {
    fn get(&self, key: &str) -> Result<Numbers, String> {
        self.case.own(self.folder, key)
    }

    fn of(&self, key: &str) -> Result<Vec<f64>, String> {
        self.get(key).map(|numbers| numbers.values)
    }

    fn has(&self, key: &str) -> bool {
        !self.case.get("tensors")[key].is_null()
    }

    fn sizes<const N: usize>(&self, key: &str) -> Result<[usize; N], String> {
        let shape = self.get(key)?.shape;
        shape.as_slice().try_into().map_err(|_| format!("{key} has the shape {shape:?}, not {N} axes"))
    }

    fn size(&self, key: &str) -> Result<usize, String> {
        crate::folder::size(self.case.get("params"), "params", key)
    }

    /// Compares what `engine` made with the tensor of this name, by the case's tolerance or a wider one, relative to the
    /// largest value.
    fn compare(&self, score: &mut Score, key: &str, got: &[f64], single: Option<f64>) -> Result<(), String> {
        let expected = self.of(key)?;
        let own = self.case.get("rtol_f64").as_f64().ok_or("rtol_f64 is missing")?;
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        let tolerance = Tolerance { absolute: single.unwrap_or(own).max(own) * largest, relative: 0.0 };
        score.compare(key, got, &expected, tolerance);
        Ok(())
    }
}
