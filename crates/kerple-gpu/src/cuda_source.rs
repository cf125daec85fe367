//! The CUDA C++ source of the kernels as NVIDIA's compiler gets it, generated without a device.
//!
//! It shows how kernels compile for a GPU that is not at hand: whether they compile, their
//! registers and spills. To run kernels, use
//! [`FlashAttention`](crate::attention::FlashAttention) and
//! [`ChunkedLinear`](crate::linear::ChunkedLinear).

mod attention;
mod linear;
mod step;

use cubecl::ir::features::Features;
use cubecl::ir::{AddressType, DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;
use cubecl::{CompilationError, Compiler, define_kernel};
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::CudaCmmaCompiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures, register_wmma_features};
use cubecl_cpp::target::Cuda;
use std::sync::Arc;

/// A kernel as source.
#[derive(Clone, Debug)]
pub struct CudaSource {
    /// Its name, and which of the optional arrays it has.
    pub name: String,
    /// CUDA C++.
    pub code: String,
    /// Units per cube: CUDA's threads per block.
    pub units: usize,
    /// Bytes of shared memory per launch.
    pub shared: usize,
    /// Whether matrix units compute its products.
    pub matrices: bool,
}

/// Shared memory of a cube on NVIDIA's Hopper, for which sources are written, in bytes.
const HOPPER_SHARED: usize = 227 << 10;
/// Units of a cube there.
const HOPPER_UNITS: usize = 1024;

/// Segments of FIRE's bias with a network of 32 hidden units.
const SEGMENTS: usize = 33;

/// The device that kernels are compiled for.
fn properties() -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: HOPPER_SHARED,
        max_cube_count: (i32::MAX as u32, u32::from(u16::MAX), u32::from(u16::MAX)),
        max_units_per_cube: HOPPER_UNITS as u32,
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
    let hopper = CudaArchitecture { version: 90, tensor_cores: true };
    register_wmma_features(CudaCmmaCompiler::Cpp.supported_cmma_combinations(&hopper), &mut properties);
    Arc::new(properties)
}

/// Generates kernels as a launch would.
struct CudaWriter {
    properties: Arc<DeviceProperties>,
}

impl CudaWriter {
    fn source<K: CubeKernel>(
        &self,
        name: &str,
        units: usize,
        kernel: impl FnOnce(KernelSettings, Arc<DeviceProperties>, Arc<TargetProperties>) -> K,
    ) -> Result<CudaSource, CompilationError> {
        let settings =
            KernelSettings::new(CubeDim::new_1d(units as u32).into(), ExecutionMode::Checked, AddressType::U32);
        let definition = define_kernel(&kernel(settings, self.properties.clone(), Arc::default()))?;
        let features = CppSupportedFeatures { fast_math: true, dp4a: true, ..Default::default() };
        let options = CompilationOptions { supports_features: features, ..Default::default() };
        let compiled = CppCompiler::<Cuda>::default().compile(definition, &options)?;
        let (code, shared) = (compiled.source, compiled.shared_memory_size);
        Ok(CudaSource { name: name.to_owned(), code, units, shared, matrices: false })
    }
}

/// An array that a kernel takes.
fn array() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// An argument that a kernel may lack.
fn present<T: LaunchArg>(present: bool, arg: T::CompilationArg) -> ComptimeOptionCompilationArg<T> {
    if present { ComptimeOptionCompilationArg::Some(arg) } else { ComptimeOptionCompilationArg::None }
}

/// An array that a kernel may lack.
fn optional<T: CubePrimitive>(is_present: bool) -> ComptimeOptionCompilationArg<Box<[T]>> {
    present(is_present, array())
}

/// Every kernel for these head sizes, with which its name ends, and the kernels that do not depend
/// on the head size.
///
/// # Errors
/// When CubeCL cannot write one.
pub fn sources(head_dims: &[usize]) -> Result<Vec<CudaSource>, CompilationError> {
    let writer = CudaWriter { properties: properties() };
    let mut found = writer.step()?;
    for head_dim in head_dims {
        let own = [writer.attention(*head_dim)?, writer.linear(*head_dim)?].concat();
        found
            .extend(own.into_iter().map(|source| CudaSource { name: format!("{}_{head_dim}", source.name), ..source }));
    }
    Ok(found)
}
