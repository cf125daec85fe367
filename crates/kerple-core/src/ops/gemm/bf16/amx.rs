//! Tiles of `bf16` by AMX, in assembly: the language has no stable names for its instructions.

use super::avx512::Avx512Bf16;
use super::{SIDE, Tile, TileUnit};
use crate::cpu::Bf16Unit;
use std::arch::asm;

/// Proof of AMX with `bf16`, that this process may use it, and of AVX512-BF16.
#[derive(Clone, Copy)]
pub(super) struct Amx(Avx512Bf16);

impl Amx {
    pub(super) fn detect() -> Option<Self> {
        (Bf16Unit::detected() >= Bf16Unit::Amx).then_some(Amx(Avx512Bf16::detect()?))
    }
}

/// What the tile registers are: all of them 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row, of 8 registers; the last 8 are reserved.
    row_bytes: [u16; 16],
    /// Rows, likewise.
    rows: [u8; 16],
}

static ALL_WHOLE: TileConfig = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut register = 0;
    while register < 8 {
        row_bytes[register] = 64;
        rows[register] = SIDE as u8;
        register += 1;
    }
    TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

impl TileUnit for Amx {
    #[inline(always)]
    unsafe fn round_rows(self, from: *const f32, stride: usize, to: &mut Tile) {
        // SAFETY: the caller's promise.
        unsafe { self.0.round_rows(from, stride, to) }
    }

    #[inline(always)]
    unsafe fn round_columns(self, from: *const f32, stride: usize, to: &mut Tile) {
        // SAFETY: the caller's promise.
        unsafe { self.0.round_columns(from, stride, to) }
    }

    #[inline(always)]
    fn transpose(self, tile: &mut Tile) {
        self.0.transpose(tile);
    }

    fn prepared(self, work: impl FnOnce()) {
        // SAFETY: the token proves the instructions; the registers belong to nobody else, since compiled code does not use them.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const ALL_WHOLE, options(nostack, preserves_flags, readonly)) };
        work();
        // SAFETY: as above. Without contents of tiles, a thread's registers are saved faster.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }

    unsafe fn multiply(
        self,
        left: [*const Tile; 2],
        right: [*const Tile; 2],
        depth: usize,
        c: *mut f32,
        stride: usize,
        adds: bool,
    ) {
        let (row_bytes, strip_bytes) = (size_of::<f32>() * stride, size_of::<f32>() * stride * SIDE);
        // SAFETY: the caller's promise; the token proves the instructions, and the registers are prepared.
        unsafe {
            let below = c.byte_add(strip_bytes);
            if adds {
                asm!(
                    "tileloadd tmm0, [{c} + {row}]",
                    "tileloadd tmm1, [{c} + {row} + 64]",
                    "tileloadd tmm2, [{below} + {row}]",
                    "tileloadd tmm3, [{below} + {row} + 64]",
                    c = in(reg) c, below = in(reg) below, row = in(reg) row_bytes,
                    options(nostack, preserves_flags, readonly)
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack, preserves_flags, nomem)
                );
            }
            if depth > 0 {
                asm!(
                    "2:",
                    "tileloadd tmm4, [{a0} + {row}]",
                    "tileloadd tmm6, [{b0} + {row}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b1} + {row}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{a1} + {row}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a0}, 1024", "add {a1}, 1024", "add {b0}, 1024", "add {b1}, 1024",
                    "dec {depth}",
                    "jnz 2b",
                    a0 = inout(reg) left[0] => _, a1 = inout(reg) left[1] => _,
                    b0 = inout(reg) right[0] => _, b1 = inout(reg) right[1] => _,
                    depth = inout(reg) depth => _, row = in(reg) 64usize,
                    options(nostack, readonly)
                );
            }
            asm!(
                "tilestored [{c} + {row}], tmm0",
                "tilestored [{c} + {row} + 64], tmm1",
                "tilestored [{below} + {row}], tmm2",
                "tilestored [{below} + {row} + 64], tmm3",
                c = in(reg) c, below = in(reg) below, row = in(reg) row_bytes,
                options(nostack, preserves_flags)
            );
        }
        const { assert!(size_of::<Tile>() == 1024 && align_of::<Tile>() == 64) };
    }
}
