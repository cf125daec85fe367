//! Positional methods of 2026. The second part of a case's id, such as `positions/bam/plain`, is its family.

mod inkling;
mod sink_tokens;

use crate::{CaseRunner, attention};

/// Methods of the same collection that there is no engine for, by how the names of their cases begin.
const NOT_BUILT: [(&str, &str); 12] = [
    ("positions/inkling/bias", "a relative bias per row by itself"),
    ("positions/inkling/layer_", "layers with short convolutions"),
    ("positions/inkling/model_dense", "import of Inkling's models"),
    ("positions/wall/", "cumulative gates per feature (Wall)"),
    ("positions/selective/", "rotations by learned angles (selective RoPE)"),
    ("positions/joint/", "decays and rotations together"),
    ("positions/pope/", "polar queries and keys (PoPE)"),
    ("positions/grape_ap/", "sums of gates between pairs (GRAPE-AP)"),
    ("positions/fope/", "mixed rates (FoPE)"),
    ("positions/bam/mu_ssmax", "BAM together with scalable softmax"),
    ("positions/plain/qk_norm_rope", "norms of queries and keys before a rotation"),
    ("positions/plain/ssmax", "scalable softmax"),
];

/// Why a case of this name is not covered, if it is known and is not.
pub fn not_built(name: &str) -> Option<&'static str> {
    NOT_BUILT.into_iter().find(|(begins, _)| name.starts_with(begins)).map(|(_, what)| what)
}

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<CaseRunner> {
    if name == "positions/plain/gqa_sink_window" {
        return Some(sink_tokens::run);
    }
    match name.strip_prefix("positions/")?.split('/').next()? {
        "rotary" | "bam" => Some(attention::run),
        "inkling" => Some(inkling::attention),
        _ => None,
    }
}
