//! What a method is, in words, for help texts and generated tables.

use super::Method;
use serde::Serialize;

/// A method in words.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    /// Name in the literature.
    pub name: &'static str,
    /// Formula, with `d = i - j` the distance from query to key and `s = q.k / sqrt(D)`.
    pub formula: &'static str,
    /// Learned values of the whole model; H heads, M width.
    pub learned: &'static str,
    /// Where it enters the model.
    pub enters: &'static str,
    /// Behaviour beyond the training length.
    pub beyond: &'static str,
    /// Where it was published.
    pub source: &'static str,
}

const KERPLE: &str = "Chi et al. 2022, arXiv:2205.09921";
const SCORES: &str = "attention scores of every layer";
const EMBEDDINGS: &str = "token embeddings, once";
const DEFINED: &str = "defined for every distance";
const UNSEEN: &str = "defined, but the model has not seen those positions";

impl Method {
    /// The method in words.
    pub fn description(&self) -> Description {
        let d = |name, formula, learned, enters, beyond, source| Description {
            name,
            formula,
            learned,
            enters,
            beyond,
            source,
        };
        let kernel = |name, formula, learned| d(name, formula, learned, SCORES, DEFINED, KERPLE);
        match self {
            Method::None(_) => d(
                "NoPE",
                "z = s",
                "nothing",
                "nowhere: the causal mask is the only order",
                DEFINED,
                "Haviv et al. 2022, arXiv:2203.16634",
            ),
            Method::Learned(_) => d(
                "learned positions",
                "x_t += P[t]",
                "P: train_len * M",
                EMBEDDINGS,
                "refused: there is no row for it",
                "Vaswani et al. 2017, arXiv:1706.03762",
            ),
            Method::Sinusoidal(_) => d(
                "sinusoidal",
                "x_t += [sin(t f_j), cos(t f_j)], f_j = base^(-2j/M)",
                "nothing",
                EMBEDDINGS,
                UNSEEN,
                "Vaswani et al. 2017, arXiv:1706.03762",
            ),
            Method::Rotary(_) => d(
                "rotary (RoPE)",
                "q_i, k_j turned by i f_n, j f_n, f_n = base^(-2n/D)",
                "nothing",
                "queries and keys of every layer",
                UNSEEN,
                "Su et al. 2021, arXiv:2104.09864",
            ),
            Method::Alibi(_) => {
                d("ALiBi", "z = s - slope_h d", "nothing", SCORES, DEFINED, "Press et al. 2022, arXiv:2108.12409")
            }
            Method::T5(_) => d(
                "T5 bias",
                "z = s + sqrt(D) W[bucket(d), h]",
                "W: num_buckets * H",
                SCORES,
                "defined: all distances from max_distance on share a value",
                "Raffel et al. 2020, arXiv:1910.10683",
            ),
            Method::KerpleLog(_) => kernel("KERPLE-log", "z = s - r1 ln(1 + r2 d)", "r1, r2: 2 H"),
            Method::KerplePower(_) => kernel("KERPLE-power", "z = s - r1 d^r2", "r1, r2: 2 H"),
            Method::KerpleBiasWeight(_) => {
                kernel("KERPLE bias + weight", "z = s exp(-r3 d^r4) - r1 d^r2", "r1, r2, r3, r4: 4 H")
            }
            Method::KerpleWeight(_) => kernel("KERPLE weight only", "z = s exp(-r1 d^r2)", "r1, r2: 2 H"),
            Method::KerplePowerOriginal(_) => kernel("ALiBi inside KERPLE", "z = s - max(slope_h, 0.01) d", "nothing"),
            Method::KerpleLog3(_) => kernel("KERPLE 3-para-log", "z = s - r1 ln(1 + r2 d^r3)", "r1, r2, r3: 3 H"),
            Method::GaussianBias(_) => kernel("Gaussian 2-para-bias", "z = s + r1 exp(-r2 d^2)", "r1, r2: 2 H"),
            Method::StretchedBias(_) => kernel("Gaussian 3-para-bias", "z = s + r1 exp(-r2 d^r3)", "r1, r2, r3: 3 H"),
            Method::GaussianWeight(_) => kernel("Gaussian 1-para-weight", "z = s exp(-r1 d^2)", "r1: H"),
            Method::Kernel(_) => kernel(
                "kernel expression",
                "z = s weight(d) + bias(d), any expressions",
                "what the expressions leave open",
            ),
            Method::StretchedWeight(_) => kernel("Gaussian 2-para-weight", "z = s exp(-r1 d^r2)", "r1, r2: 2 H"),
        }
    }
}
