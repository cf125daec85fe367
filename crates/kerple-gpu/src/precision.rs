//! Numbers rounded to a [`Precision`], for products on devices without matrix units for it.

use crate::launch::{alloc, buffer, elementwise};
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;
use kerple_core::precision::Precision;

/// The element type of a precision on devices that support it.
pub fn element(precision: Precision) -> ElemType {
    ElemType::Float(match precision {
        Precision::F32 => FloatKind::F32,
        Precision::Tf32 => FloatKind::TF32,
        Precision::Bf16 => FloatKind::BF16,
    })
}

/// Whether a device has matrix units that multiply numbers of this precision and add in `f32`.
pub fn has_matrix_units(client: &Client, precision: Precision) -> bool {
    let kinds = [element(precision), element(precision), element(Precision::F32)];
    client
        .properties()
        .features
        .matmul
        .cmma
        .iter()
        .any(|config| [config.a_type, config.b_type, config.cd_type] == kinds)
}

/// The nearest number with this many mantissa bits fewer, ties to even; NaN and infinities stay.
#[cube]
pub(crate) fn rounded(value: f32, #[comptime] dropped: u32) -> f32 {
    let mut kept = value;
    if comptime!(dropped > 0) {
        let bits = u32::reinterpret(value);
        let up = comptime!((1u32 << (dropped - 1)) - 1) + ((bits >> dropped) & 1u32);
        let nearest = f32::reinterpret(((bits + up) >> dropped) << dropped);
        kept = select((bits & 0x7f80_0000u32) == 0x7f80_0000u32, value, nearest);
    }
    kept
}

#[cube(launch)]
pub(crate) fn round_elements(from: &[f32], to: &mut [f32], #[comptime] dropped: u32) {
    let at = ABSOLUTE_POS;
    if at < from.len() {
        to[at] = rounded(from[at], dropped);
    }
}

/// Rounds this many values.
pub fn round(client: &Client, values: &Handle, len: usize, precision: Precision) -> Handle {
    let to = alloc(client, len);
    let (count, dim) = elementwise(client, len);
    round_elements::launch(client, count, dim, buffer(values, len), buffer(&to, len), precision.dropped());
    to
}
