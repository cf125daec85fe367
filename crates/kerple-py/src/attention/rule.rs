//! Everything of a call but its arrays.

use crate::encoding::PyEncoding;
use kerple_core::attention::Mask;
use kerple_core::encoding::MOST_SINK_TOKENS;
use kerple_core::forms::Sides;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Everything but the arrays: the attention mask and how scores are computed.
#[pyclass(frozen, name = "Rule")]
#[derive(Debug)]
pub struct AttentionRule {
    pub(crate) scale: f64,
    pub(crate) mask: Mask,
    pub(crate) softcap: Option<f64>,
    pub(crate) threads: usize,
    /// The encoding of a score modification or of decaying products.
    pub(super) encoding: Option<Py<PyEncoding>>,
    /// Decay rate of each feature's products with distance.
    pub(super) feature_decay: Option<Vec<f64>>,
    /// Probability of dropping an attention weight.
    pub(super) dropout_p: f64,
}

#[pymethods]
impl AttentionRule {
    #[new]
    #[pyo3(signature = (scale, mask, softcap, threads, encoding=None, dropout_p=0.0))]
    fn new(
        scale: f64,
        mask: MaskOptions,
        softcap: Option<f64>,
        threads: usize,
        encoding: Option<Py<PyEncoding>>,
        dropout_p: f64,
    ) -> PyResult<AttentionRule> {
        if !(0.0..1.0).contains(&dropout_p) {
            return Err(PyValueError::new_err(format!("dropout_p = {dropout_p} must be at least 0 and below 1")));
        }
        if !scale.is_finite() {
            return Err(PyValueError::new_err(format!("scale = {scale} must be finite")));
        }
        if let Some(cap) = softcap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
            return Err(PyValueError::new_err(format!("softcap = {cap:?} must be a finite number above 0, or None")));
        }
        let mask = mask_of(mask)?;
        if mask.sink_tokens() > 0 && encoding.as_ref().is_some_and(|encoding| encoding.get().is_map()) {
            return Err(PyValueError::new_err(
                "sink_tokens: score modifications do not support first tokens; leave it out",
            ));
        }
        let feature_decay = encoding.as_ref().and_then(|encoding| encoding.get().feature_decay());
        if feature_decay.is_some() && mask.sides() == Sides::TwoSided {
            return Err(PyValueError::new_err(
                "causal = False: products that decay with distance would grow for keys after the \
                 query; use causal=True",
            ));
        }
        Ok(AttentionRule { scale, mask, softcap, threads, encoding, feature_decay, dropout_p })
    }
}

/// Whether keys after a query are hidden, the window, and how many first tokens stay visible under it.
type MaskOptions = (bool, Option<i64>, Option<i64>);

fn mask_of((causal, window, sink_tokens): MaskOptions) -> PyResult<Mask> {
    let refuse = |message: String| Err(PyValueError::new_err(message));
    let window = match window.map(usize::try_from) {
        Some(Ok(0)) | Some(Err(_)) => {
            let message = "it must be at least 1 key, the query's own; None attends to all";
            return refuse(format!("window = {}: {message}", window.unwrap_or_default()));
        }
        Some(Ok(window)) => Some(window),
        None => None,
    };
    let Some(given) = sink_tokens else {
        return Ok(if causal { Mask::Causal { window } } else { Mask::Bidirectional { window } });
    };
    let sink_tokens = usize::try_from(given).unwrap_or_default();
    if !(1..=MOST_SINK_TOKENS).contains(&sink_tokens) {
        let limit = format!("it must be 1 to {MOST_SINK_TOKENS}, and None keeps no first tokens visible");
        return refuse(format!("sink_tokens = {given} is out of range; {limit}"));
    }
    match window {
        Some(window) if causal => Ok(Mask::CausalWithSinkTokens { window, sink_tokens }),
        Some(_) => {
            refuse(format!("sink_tokens = {given}: first tokens need causal=True; set it, or leave sink_tokens out"))
        }
        None => refuse(format!(
            "sink_tokens = {given}: first tokens stay visible under a window only; also give window, or leave sink_tokens out"
        )),
    }
}
