//! The model facts that the page shows.

use crate::ServedModel;
use kerple_lm::run;
use serde_json::{Value, json};

/// Sizes, encoding and what is learned of distances, for people.
pub(crate) fn of(served: &ServedModel) -> Value {
    let ServedModel { name, plan, step, model, limits, .. } = served;
    json!({
        "name": name,
        "encoding": plan.label,
        "train_len": plan.train_len,
        "max_model_len": limits.max_model_len,
        "step": step,
        "n_layers": plan.model.n_layers,
        "n_heads": plan.model.n_heads,
        "d_model": plan.model.d_model,
        "vocab_size": plan.data_info.vocab_size,
        "kernels": run::snapshot(&model.trunk.encoding, *step),
    })
}
