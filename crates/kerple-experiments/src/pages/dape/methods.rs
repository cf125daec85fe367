//! The methods that the paper compares. A method and its DAPE version share a colour; methods
//! without DAPE are dashed.

use super::measure::Method;

const fn method(
    name: &'static str,
    label: &'static str,
    printed: &'static str,
    (colour, dashed): (usize, bool),
) -> Method {
    Method { name, label, scaling: None, printed, colour, dashed }
}

pub(super) const NONE: Method = method("NoPE", "none", "none", (3, true));
pub(super) const ROTARY: Method = method("RoPE", "rotary", "rotary", (4, true));
pub(super) const YARN: Method = Method { scaling: Some("yarn"), ..method("YaRN", "rotary", "yarn", (7, true)) };
pub(super) const RANDOMIZED: Method = method("Randomized RoPE", "rotary-randomized", "rotary_randomized", (5, true));
pub(super) const T5: Method = method("T5", "t5", "t5", (6, true));
pub(super) const ALIBI: Method = method("ALiBi", "alibi", "alibi", (0, true));
pub(super) const KERPLE: Method = method("Kerple", "kerple_log-layer", "kerple", (1, true));
pub(super) const FIRE: Method = method("FIRE", "fire", "fire", (2, true));
pub(super) const DAPE_ALIBI: Method = method("DAPE-ALiBi", "dape-base=alibi", "dape_alibi", (0, false));
pub(super) const DAPE_KERPLE: Method = method("DAPE-Kerple", "dape", "dape_kerple", (1, false));
pub(super) const DAPE_FIRE: Method = method("DAPE-FIRE", "dape-base=fire", "dape_fire", (2, false));
pub(super) const TRANSFORMER_XL: Method = method("Transformer-XL", "transformer_xl", "transformer_xl", (3, true));
pub(super) const COPE: Method = method("CoPE", "cope", "cope", (4, true));
/// The second version, whose layers see three keys, or more.
pub(super) const KERNEL3: Method = method("DAPE 1\u{d7}3 (V2)", "dape-kernel=3", "dape_kernel3", (4, false));
pub(super) const KERNEL5: Method = method("DAPE 1\u{d7}5 (V2)", "dape-kernel=5", "dape_kernel5", (5, false));
pub(super) const KERNEL7: Method = method("DAPE 1\u{d7}7 (V2)", "dape-kernel=7", "dape_kernel7", (6, false));
pub(super) const CONCAT: Method = method("Concat", "dape-variant=concat", "concat", (2, false));
pub(super) const ADD_RESIDUAL: Method = method("Add_Residual", "dape-variant=add_residual", "add_residual", (0, false));
pub(super) const BIAS_ONLY: Method = method("x + B + f(B)", "dape-variant=bias_only", "bias_only", (3, false));
/// As [`DAPE_KERPLE`] is called beside other variants.
pub(super) const CONCAT_RESIDUAL: Method = Method { name: "Concat_Residual", ..DAPE_KERPLE };
pub(super) const HIDDEN_4: Method = method("D = 4", "dape-base=alibi-hidden=4", "dape_alibi_4", (3, false));
pub(super) const HIDDEN_16: Method = method("D = 16", "dape-base=alibi-hidden=16", "dape_alibi_16", (4, false));
/// As [`DAPE_ALIBI`] is called beside other widths.
pub(super) const HIDDEN_32: Method = Method { name: "D = 32", ..DAPE_ALIBI };
pub(super) const HIDDEN_64: Method = method("D = 64", "dape-base=alibi-hidden=64", "dape_alibi_64", (5, false));

/// Every method of Figures 2 to 4.
pub(super) const ALL: [Method; 11] =
    [DAPE_KERPLE, KERPLE, DAPE_ALIBI, ALIBI, DAPE_FIRE, FIRE, T5, NONE, ROTARY, YARN, RANDOMIZED];

/// What a method is tested against: DAPE over the same bias, or over Kerple's where it has none.
pub(super) fn adapted(method: &Method) -> Option<Method> {
    match method.label {
        "alibi" => Some(DAPE_ALIBI),
        "fire" => Some(DAPE_FIRE),
        label if label == DAPE_KERPLE.label || label.starts_with("dape-base") => None,
        _ => Some(DAPE_KERPLE),
    }
}
