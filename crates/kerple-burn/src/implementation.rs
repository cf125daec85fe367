//! Which version of an operation runs: a kernel for the device of its tensors, or the reference in plain Burn operations.

#[cfg(feature = "cube")]
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Tensor};
use kerple_core::precision::Precision;

/// A kind of device that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU: slices, see [`HostArray`](crate::host_array::HostArray).
    Cpu,
    /// GPUs that CubeCL reaches.
    Gpu,
}

impl DeviceKind {
    /// What this device is; `None`: no kernel is written for it.
    pub fn of(device: &Device) -> Option<DeviceKind> {
        let device = device.clone().without_autodiff();
        #[cfg(feature = "cube")]
        if let DispatchDevice::Cube(_) = device.as_dispatch() {
            return Some(DeviceKind::Gpu);
        }
        (device == Device::flex()).then_some(DeviceKind::Cpu)
    }
}

/// Which version of an operation runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Impl {
    /// A kernel where the operation has one for the tensor's device, the reference elsewhere.
    #[default]
    Kernel,
    /// The same, with the inputs of matrix products rounded to this precision. The CPU rounds those of linear layers, to `bf16` only,
    /// see [`MatmulShape::at`](kerple_core::ops::gemm::MatmulShape::at).
    KernelAt(Precision),
    /// The reference in plain Burn operations, on every device.
    Reference,
}

impl Impl {
    /// Kernels with products of this precision.
    pub fn with_precision(precision: Precision) -> Impl {
        match precision {
            Precision::F32 => Impl::Kernel,
            precision => Impl::KernelAt(precision),
        }
    }

    /// Whether kernels run where there are some.
    pub fn uses_kernels(self) -> bool {
        self != Impl::Reference
    }

    /// What products multiply.
    pub fn precision(self) -> Precision {
        match self {
            Impl::KernelAt(precision) => precision,
            Impl::Kernel | Impl::Reference => Precision::F32,
        }
    }

    /// Whether a kernel runs for this tensor, of an operation that has kernels on these kinds of devices; GPU kernels take `f32` only.
    pub fn has_kernel<const D: usize>(self, kinds: &[DeviceKind], tensor: &Tensor<D>) -> bool {
        let takes = |kind| kind == DeviceKind::Cpu || tensor.dtype() == DType::F32;
        let here = |kind| kinds.contains(&kind) && takes(kind);
        self.uses_kernels() && DeviceKind::of(&tensor.device()).is_some_and(here)
    }
}
