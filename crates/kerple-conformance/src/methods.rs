//! The encoding that a case is about, whichever name its generator has for it.

use crate::Checked;
use crate::case::Case;
use kerple_core::encoding::{BiasScale, Encoding};
use serde_json::{Value, json};

/// An encoding, and the names of its parameters in the case, in the encoding's order.
pub struct ReferenceMethod {
    pub encoding: Encoding,
    pub names: Vec<&'static str>,
}

/// Parameters of DAPE's network.
const NETWORK: [&str; 4] = ["mlp2.0.weight", "mlp2.0.bias", "mlp2.2.weight", "mlp2.2.bias"];

/// The method of a case: its key `method`, or the second part of its id.
pub fn method(case: &Case) -> Checked<ReferenceMethod> {
    let name = case.get("method").as_str().unwrap_or(case.method());
    let (mut base, mut inside) = (name, false);
    while let Some(rest) = base.strip_suffix("_windowed").or_else(|| base.strip_suffix("_paperscale")) {
        inside |= base.ends_with("_paperscale");
        base = rest;
    }
    // dape_kerple is DAPE over a bias, dapev2_kerple convolves
    let over = base.split_once('_').filter(|(first, _)| first.starts_with("dape")).map(|(_, bias)| bias);
    let (mut keys, names) = keys(over.unwrap_or(base), case)?;
    let mut names = names.to_vec();
    if over.is_some() {
        names.extend(NETWORK);
        // names of other kinds than a variant's are of the network that is meant anyway
        let is_variant = |name: &&str| ["concat", "add_residual"].contains(name);
        let variant = case.get("variant").as_str().filter(is_variant).unwrap_or("concat_residual");
        let kernel = case.get("kernel").as_u64().unwrap_or(1);
        let edge = if kernel > 1 { "closed" } else { "open" };
        let hidden = case.get("hidden");
        keys = json!({
            "kind": "dape", "base": keys, "variant": variant, "kernel": kernel, "hidden": hidden, "edge": edge,
        });
    }
    let mut encoding: Encoding = serde_json::from_value(keys).map_err(|error| error.to_string())?;
    encoding.window = case.optional_number("window").map(|window| window as usize);
    encoding.scale = if inside { BiasScale::Inside } else { BiasScale::After };
    Ok(ReferenceMethod { encoding, names })
}

/// Whether the offset is learned shows in the gradients that the case expects.
fn bam(case: &Case) -> (Value, &'static [&'static str]) {
    if case.keys("expected").any(|key| key == "grad_theta_mu") {
        (json!({ "kind": "bam", "theta_mu": 0 }), &["theta_alpha", "theta_beta", "theta_mu"])
    } else {
        (json!({ "kind": "bam" }), &["theta_alpha", "theta_beta"])
    }
}

/// The keys of an encoding without a network over it, and the names of its parameters.
fn keys(name: &str, case: &Case) -> Checked<(Value, &'static [&'static str])> {
    let plain = |kind: &str| json!({ "kind": kind });
    let number = |key: &str, default: f64| case.optional_number(key).unwrap_or(default);
    Ok(match name {
        "kerple_log" | "kerple" => (plain("kerple_log"), &["bias_p", "bias_a"]),
        "kerple_power" => (plain("kerple_power"), &["bias_a", "bias_p"]),
        "kerple_power_wht" => (plain("kerple_weight"), &["wei_a", "wei_p"]),
        "kerple_bias_wht" => (plain("kerple_bias_weight"), &["bias_a", "bias_p", "wei_a", "wei_p"]),
        "kerple_power_original" => (plain("kerple_power_original"), &[]),
        "log3" => (plain("kerple_log3"), &["r1", "r2", "r3"]),
        "gauss_2para_bias" => (plain("gaussian_bias"), &["r1", "r2"]),
        "gauss_3para_bias" => (plain("stretched_bias"), &["r1", "r2", "r3"]),
        "gauss_1para_wht" => (plain("gaussian_weight"), &["r1"]),
        "gauss_2para_wht" => (plain("stretched_weight"), &["r1", "r2"]),
        "alibi" => (plain("alibi"), &[]),
        "none" | "nope" => (plain("none"), &[]),
        "fire" => {
            let hidden = case.array("params", "mlp.0.weight")?.shape[0];
            let init_l = case.param("init_L")?[0];
            (
                json!({ "kind": "fire", "hidden": hidden, "init_l": init_l }),
                &["c", "L_multiplier", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"],
            )
        }
        "cope" => (json!({ "kind": "cope", "npos_max": case.get("npos_max") }), &["pos_emb"]),
        "xl" => (plain("transformer_xl"), &["r_net.weight", "r_w_bias", "r_r_bias"]),
        other if other.starts_with("t5") => {
            let [buckets, max] = [number("num_buckets", 32.0), number("max_distance", 128.0)].map(|size| size as usize);
            (json!({ "kind": "t5", "num_buckets": buckets, "max_distance": max }), &["weight"])
        }
        "p_rope" => {
            let pairs = case.size_from("D", 2)? as f64 / 2.0;
            (json!({ "kind": "rotary", "keep": case.number("keep")? / pairs, "base": number("base", 10_000.0) }), &[])
        }
        "rotary" if case.setting("frequencies").is_array() => (
            json!({
                "kind": "rotary", "width": case.setting("rotated"), "frequencies": case.setting("frequencies"),
            }),
            &[],
        ),
        "bam" => bam(case),
        other if other.starts_with("rotary") => {
            (json!({ "kind": "rotary", "pct": number("rotary_pct", 1.0), "base": number("base", 10_000.0) }), &[])
        }
        other => return Err(format!("the method `{other}` is not known")),
    })
}
