//! `attn/*`: outputs and every gradient of whole attention layers, in every engine.

use crate::CaseResult;
use crate::case::Case;
use crate::layer::{EngineOutput, ReferenceLayer};
use burn::tensor::DType;

pub fn run(case: &Case) -> CaseResult {
    let layer = ReferenceLayer::read(case)?;
    let mut outputs = layer.on_every_engine();
    if let Some((device, engine)) = case.folder.device() {
        let output = layer.burn_on(device, DType::F32, true);
        outputs.push(EngineOutput { engine: engine.to_owned(), single: true, output });
    }
    let compare = |found: &EngineOutput| {
        layer.compare(found, case, |_, expected| match (found.single, expected.double) {
            (true, _) => case.tolerance("if_you_compute_in_f32"),
            (false, true) => case.tolerance("f64_arrays"),
            (false, false) => case.tolerance("f32_arrays"),
        })
    };
    outputs.iter().map(compare).collect()
}
