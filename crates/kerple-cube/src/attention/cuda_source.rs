//! The kernels as the CUDA C++ that NVIDIA's compiler gets of them, made without a device.
//!
//! For seeing what becomes of them on a GPU that is not at hand: whether they compile, registers, spills. What runs goes through
//! [`Attention`](super::Attention).

use super::tile::{Has, SizesCompilationArg, Tile};
use super::{EACH, decode, forward, keys, queries};
use cubecl::ir::features::Features;
use cubecl::ir::{AddressType, DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;
use cubecl::{CompilationError, Compiler, define_kernel};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Cuda;
use std::sync::Arc;

/// A kernel as source.
pub struct Source {
    /// Its name, and which of the optional arrays it has.
    pub name: String,
    /// CUDA C++.
    pub code: String,
    /// Units of a cube, CUDA's threads of a block.
    pub units: usize,
    /// Bytes of shared memory that a launch asks for.
    pub shared: usize,
}

/// Shared memory and units of a cube of the GPU that sources are for, of NVIDIA's Hopper generation.
const HOPPER: (usize, usize) = (227 << 10, 1024);

/// What a kernel may ask of the device while it is written.
fn properties() -> Arc<DeviceProperties> {
    let (shared, units) = HOPPER;
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: shared,
        max_cube_count: (i32::MAX as u32, u32::from(u16::MAX), u32::from(u16::MAX)),
        max_units_per_cube: units as u32,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity = DeviceIdentity { name: "none".to_owned(), fingerprint: "none".to_owned(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 512);
    let mut properties = DeviceProperties::new(Features::default(), memory, hardware, TimingMethod::Device, identity);
    cubecl_cpp::register_supported_types(&mut properties);
    Arc::new(properties)
}

/// Writes kernels that have what they are told of by the same means.
struct Writer {
    properties: Arc<DeviceProperties>,
    tile: Tile,
}

type Properties = Arc<DeviceProperties>;
type Targets = Arc<TargetProperties>;

impl Writer {
    fn source<K: CubeKernel>(
        &self,
        name: &str,
        units: usize,
        kernel: impl FnOnce(KernelSettings, Properties, Targets) -> K,
    ) -> Result<Source, CompilationError> {
        // as a launch has it
        let settings =
            KernelSettings::new(CubeDim::new_1d(units as u32).into(), ExecutionMode::Checked, AddressType::U32);
        let definition = define_kernel(&kernel(settings, self.properties.clone(), Arc::default()))?;
        let features = CppSupportedFeatures { fast_math: true, dp4a: true, ..Default::default() };
        let options = CompilationOptions { supports_features: features, ..Default::default() };
        let compiled = CppCompiler::<Cuda>::default().compile(definition, &options)?;
        Ok(Source { name: name.to_owned(), code: compiled.source, units, shared: compiled.shared_memory_size })
    }

    /// The kernels that are written anew for every choice of optional arrays.
    fn of_choice(&self, what: &str, has: Has) -> Result<Vec<Source>, CompilationError> {
        let (tile, units, a) = (self.tile, self.tile.units(), || BufferCompilationArg { inplace: None });
        let sizes = || SizesCompilationArg {
            heads: (),
            group: (),
            queries: (),
            keys: (),
            lowest: (),
            highest: (),
            columns: (),
            origin: (),
            slots: (),
            scale: (),
        };
        let forward =
            |s, p, t| forward::attend::Attend::new(s, p, t, a(), a(), a(), a(), a(), a(), a(), a(), sizes(), tile, has);
        let queries = |s, p, t| {
            let all = [(); 12].map(|()| a());
            let [q, k, v, bias, weight, lengths, d_out, lse, delta, d_q, d_bias, d_weight] = all;
            queries::of_queries::OfQueries::new(
                s,
                p,
                t,
                q,
                k,
                v,
                bias,
                weight,
                lengths,
                d_out,
                lse,
                delta,
                d_q,
                d_bias,
                d_weight,
                sizes(),
                tile,
                has,
            )
        };
        let keys = |s, p, t| {
            let [q, k, v, bias, weight, lengths, d_out, lse, delta, d_k, d_v] = [(); 11].map(|()| a());
            keys::of_keys::OfKeys::new(
                s,
                p,
                t,
                q,
                k,
                v,
                bias,
                weight,
                lengths,
                d_out,
                lse,
                delta,
                d_k,
                d_v,
                sizes(),
                tile,
                has,
            )
        };
        let spans = |s, p, t| {
            decode::of_spans::OfSpans::new(s, p, t, a(), a(), a(), a(), a(), a(), a(), a(), a(), sizes(), tile, has)
        };
        Ok(vec![
            self.source(&format!("attend_{what}"), units, forward)?,
            self.source(&format!("of_queries_{what}"), units, queries)?,
            self.source(&format!("of_keys_{what}"), units, keys)?,
            self.source(&format!("of_spans_{what}"), decode::UNITS, spans)?,
        ])
    }
}

/// Every kernel of attention with heads of this many features: without tables, with a learned bias, and with bias, weight and
/// padding.
///
/// # Errors
/// When CubeCL cannot write one.
pub fn sources(head_dim: usize) -> Result<Vec<Source>, CompilationError> {
    let (shared, units) = HOPPER;
    let writer = Writer { properties: properties(), tile: Tile::fitting(head_dim, shared, units) };
    let a = || BufferCompilationArg { inplace: None };
    let nothing = Has { bias: false, weight: false, lengths: false, bias_gradient: false, weight_gradient: false };
    let bias = Has { bias: true, bias_gradient: true, ..nothing };
    let all = Has { weight: true, lengths: true, weight_gradient: true, ..bias };
    let mut found = Vec::new();
    for (what, has) in [("plain", nothing), ("bias", bias), ("all", all)] {
        found.extend(writer.of_choice(what, has)?);
    }
    let products = |s, p, t| queries::row_products::RowProducts::new(s, p, t, a(), a(), a(), (), head_dim);
    let sums = |s, p, t| queries::add_up::AddUp::new(s, p, t, a(), a(), (), (), (), ());
    let rows = |s, p, t| decode::of_rows::OfRows::new(s, p, t, a(), a(), a(), a(), a(), (), (), head_dim);
    found.push(writer.source("row_products", EACH, products)?);
    found.push(writer.source("add_up", EACH, sums)?);
    found.push(writer.source("of_rows", EACH, rows)?);
    Ok(found)
}
