//! Stochastic positional encodings and linear attention: cases that are known by their names, each with a file of its own.

mod attention;
mod codes;
mod decoder;
mod kernels;
mod rows;

use crate::folder::{Case, Folder, Numbers};
use crate::{Runner, Score, Tolerance};

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<Runner> {
    let starts = |start: &str| name.starts_with(start);
    Some(match name {
        "init_sine" | "init_conv" => codes::initial,
        "sine_override_trunc" | "jax_sine_gate" => codes::sine,
        "conv2d" | "jax_conv" => codes::conv,
        "favor_ft_orthogonal" => kernels::orthogonal,
        "pipeline_sine_favor_L64" => attention::pipeline,
        "pe_metrics" => kernels::metrics,
        "soe_log_kernel" => kernels::exponentials,
        _ if starts("sine_L") => codes::sine,
        _ if starts("conv_L") => codes::conv,
        _ if starts("attn_ft_L") => attention::fast_transformers,
        _ if starts("attn_jax_L") => attention::performer,
        _ if starts("favor_jax_matrix_") => kernels::blocks,
        _ if starts("lm_") => decoder::run,
        // listops, groove_timing and style_time_pitch belong to the data they test
        _ => return None,
    })
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
        let value = &self.case.get("params")[key];
        value.as_u64().map(|size| size as usize).ok_or_else(|| format!("params.{key} is missing"))
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
