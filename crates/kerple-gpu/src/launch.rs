//! What the launches of all kernels share: memory, arguments, and numbers of cubes.

use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Units per cube where each unit computes values of its own, at most.
pub(crate) const ELEMENTWISE_UNITS: usize = 64;
/// About how many cubes share the work of a backward pass. Each writes a row of partial sums.
pub(crate) const PARTIAL_ROWS: usize = 512;

/// Units per cube on this device where each unit computes values of its own.
pub(crate) fn elementwise_units(client: &Client) -> usize {
    (client.properties().hardware.max_units_per_cube as usize).min(ELEMENTWISE_UNITS)
}

/// One unit per value.
pub(crate) fn elementwise(client: &Client, values: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(elementwise_units(client) as u32);
    (calculate_cube_count_elemwise(client, values, dim), dim)
}

/// Memory for this many `f32`, uninitialised.
pub(crate) fn alloc(client: &Client, values: usize) -> Handle {
    client.empty(values * size_of::<f32>())
}

/// An array of a kernel.
pub(crate) fn buffer(handle: &Handle, len: usize) -> BufferArg {
    // SAFETY: the length is of what the caller's sizes say, and launches check every access against it.
    unsafe { BufferArg::from_raw_parts(handle.clone(), len) }
}

/// An array that a kernel may lack: kernels are compiled for its presence or absence.
pub(crate) fn optional_buffer<T: CubePrimitive>(handle: Option<&Handle>, len: usize) -> ComptimeOptionArgs<Box<[T]>> {
    handle.map(|handle| buffer(handle, len)).into()
}
