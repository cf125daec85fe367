//! Stochastic positional encodings and linear attention: cases that are identified by the prefix of
//! their names, each with a file of its own.

mod attention;
mod codes;
mod decoder;
mod kernels;
mod rows;

use crate::CaseRunner;

/// What runs a case of this name, whatever the sizes are that it ends with.
pub fn runner(name: &str) -> Option<CaseRunner> {
    // listops, groove_timing and style_time_pitch belong to the data they test
    let kinds: [(&str, CaseRunner); 13] = [
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
