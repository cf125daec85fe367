//! Devices by their names on the command line.
//!
//! A name is exactly one device: no device replaces another. A software renderer, which computes on
//! the CPU what a GPU would, is used only when it is named.

use burn::tensor::Device;
use std::fmt;
use std::str::FromStr;

/// What a name may be.
pub const NAMES: &str =
    "cpu, cuda, vulkan, metal, wgpu or wgpu:software, with an index for further devices, e.g. cuda:1";

/// A device as it is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU of NVIDIA's, through CUDA.
    Cuda(usize),
    /// A GPU through Vulkan, in its own shaders.
    Vulkan(usize),
    /// A GPU of Apple's, in its own shaders.
    Metal(usize),
    /// A GPU through whichever of Vulkan, Metal and DirectX 12 there is.
    Wgpu(usize),
    /// The processor as a GPU: for tests.
    Software,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        let (kind, which) = text.split_once(':').unwrap_or((text, ""));
        let index = match which {
            "" if !text.ends_with(':') => Some(0),
            which => which.parse().ok(),
        };
        match (kind, which, index) {
            ("cpu", "", Some(_)) => Ok(DeviceName::Cpu),
            ("wgpu", "software", _) => Ok(DeviceName::Software),
            ("cuda", _, Some(index)) => Ok(DeviceName::Cuda(index)),
            ("vulkan", _, Some(index)) => Ok(DeviceName::Vulkan(index)),
            ("metal", _, Some(index)) => Ok(DeviceName::Metal(index)),
            ("wgpu", _, Some(index)) => Ok(DeviceName::Wgpu(index)),
            _ => Err(format!(
                "unknown device; use {NAMES}; `kerple devices` lists the devices of \
                this machine"
            )),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DeviceName::Cpu => write!(f, "cpu"),
            DeviceName::Cuda(index) => write!(f, "cuda:{index}"),
            DeviceName::Vulkan(index) => write!(f, "vulkan:{index}"),
            DeviceName::Metal(index) => write!(f, "metal:{index}"),
            DeviceName::Wgpu(index) => write!(f, "wgpu:{index}"),
            DeviceName::Software => write!(f, "wgpu:software"),
        }
    }
}

/// Why a device cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceUnavailable {
    /// This program was built without what it needs.
    NotBuilt {
        /// The device.
        name: DeviceName,
        /// The feature of the crate that it needs.
        feature: &'static str,
    },
    /// The machine does not have it.
    Absent {
        /// The device.
        name: DeviceName,
        /// What it has.
        present: Vec<String>,
    },
    /// Software renderers and shaders of Vulkan's own end in a crash of the renderer.
    SoftwareInVulkan,
}

impl DeviceUnavailable {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            DeviceUnavailable::NotBuilt { feature, .. } => {
                format!(
                    "build with it: cargo install --locked --path crates/kerple --features {feature}; see docs/gpu.md"
                )
            }
            DeviceUnavailable::Absent { present, .. } => {
                format!("use --device with one of {}; `kerple devices` describes them", present.join(", "))
            }
            DeviceUnavailable::SoftwareInVulkan => "build with the feature gpu, without the feature vulkan".to_owned(),
        }
    }
}

impl fmt::Display for DeviceUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DeviceUnavailable::NotBuilt { name, feature } => {
                write!(f, "--device {name}: this program was built without the feature {feature}")
            }
            DeviceUnavailable::Absent { name, present } => {
                write!(f, "--device {name}: this machine does not have that device, only {}", present.join(", "))
            }
            DeviceUnavailable::SoftwareInVulkan => {
                write!(
                    f,
                    "--device wgpu:software: software renderers crash on shaders of a build with the \
                        feature vulkan"
                )
            }
        }
    }
}

impl std::error::Error for DeviceUnavailable {}

/// A device that work can begin on.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// Where models are to be.
    pub device: Device,
    /// What it calls itself.
    pub part: String,
    /// Bytes that the device lends, where it reports them; unknown for the CPU.
    pub memory: Option<u64>,
}

/// A device that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// How it is named.
    pub name: DeviceName,
    /// What it calls itself.
    pub part: String,
    /// Bytes that the device lends, where it reports them.
    pub memory: Option<u64>,
    /// Bytes of the largest array.
    pub largest: u64,
    /// Bytes of memory that units of a cube share.
    pub shared: usize,
    /// Whether it has matrix units that CubeCL reaches.
    pub matrix_units: bool,
    /// Whether attention with tables has kernels there.
    pub attention: bool,
}

impl DeviceName {
    /// The feature of the crate without which this program has no such device.
    pub fn feature(self) -> Option<&'static str> {
        match self {
            DeviceName::Cpu => None,
            DeviceName::Cuda(_) => Some("cuda"),
            DeviceName::Vulkan(_) => Some("vulkan"),
            DeviceName::Metal(_) => Some("metal"),
            DeviceName::Wgpu(_) | DeviceName::Software => Some("gpu"),
        }
    }

    /// Whether this program has it.
    pub fn is_built(self) -> bool {
        match self {
            DeviceName::Cpu => true,
            DeviceName::Cuda(_) => cfg!(feature = "cuda"),
            DeviceName::Vulkan(_) => cfg!(feature = "vulkan"),
            DeviceName::Metal(_) => cfg!(feature = "metal"),
            DeviceName::Wgpu(_) | DeviceName::Software => cfg!(feature = "gpu"),
        }
    }

    /// The device, to work on it.
    ///
    /// # Errors
    /// When the program was built without it, or the machine does not have it.
    pub fn open(self) -> Result<OpenDevice, DeviceUnavailable> {
        if self == DeviceName::Cpu {
            return Ok(OpenDevice { device: Device::flex(), part: self.to_string(), memory: None });
        }
        if !self.is_built() {
            return Err(DeviceUnavailable::NotBuilt {
                name: self,
                feature: self.feature().expect("the processor is built"),
            });
        }
        if self == DeviceName::Software && cfg!(feature = "vulkan") {
            return Err(DeviceUnavailable::SoftwareInVulkan);
        }
        let absent = || DeviceUnavailable::Absent { name: self, present: names() };
        on_gpus::open(self).ok_or_else(absent)
    }
}

/// The names of all devices that are there.
fn names() -> Vec<String> {
    std::iter::once(DeviceName::Cpu)
        .chain(list().into_iter().map(|listed| listed.name))
        .map(|name| name.to_string())
        .collect()
}

/// All devices but the processor.
pub fn list() -> Vec<DeviceInfo> {
    on_gpus::list()
}

#[cfg(not(feature = "cube"))]
mod on_gpus {
    use super::{DeviceInfo, DeviceName, OpenDevice};

    pub(super) fn open(_name: DeviceName) -> Option<OpenDevice> {
        None
    }

    pub(super) fn list() -> Vec<DeviceInfo> {
        Vec::new()
    }
}

#[cfg(feature = "cube")]
mod on_gpus {
    use super::{Device, DeviceInfo, DeviceName, OpenDevice};
    use kerple_core::attention::AttentionDims;
    use kerple_gpu::attention::FlashAttention;
    use kerple_gpu::cubecl::{self, device::WgpuBackend, device::WgpuDevice, device::WgpuDeviceKind};

    /// The GPUs that this interface reaches, fastest kinds first, without software renderers.
    fn adapters(backend: WgpuBackend) -> Vec<cubecl::Device> {
        let kinds = [
            WgpuDeviceKind::DiscreteGpu(0),
            WgpuDeviceKind::IntegratedGpu(0),
            WgpuDeviceKind::VirtualGpu(0),
            WgpuDeviceKind::Other(0),
        ];
        let like = |kind: WgpuDeviceKind| {
            cubecl::Device::enumerate(cubecl::Device::Wgpu(WgpuDevice::new(kind).on(backend)).to_id())
        };
        kinds.into_iter().flat_map(like).map(cubecl::Device::from_id).collect()
    }

    fn find(name: DeviceName) -> Option<cubecl::Device> {
        match name {
            DeviceName::Cpu => None,
            DeviceName::Cuda(index) => cubecl::Device::cuda(index).ok(),
            DeviceName::Vulkan(index) => adapters(WgpuBackend::Vulkan).into_iter().nth(index),
            DeviceName::Metal(index) => adapters(WgpuBackend::Metal).into_iter().nth(index),
            DeviceName::Wgpu(index) => adapters(WgpuBackend::Auto).into_iter().nth(index),
            DeviceName::Software => cubecl::Device::wgpu(WgpuDeviceKind::Cpu).ok(),
        }
    }

    pub(super) fn open(name: DeviceName) -> Option<OpenDevice> {
        let device = find(name)?;
        let client = device.client();
        let properties = client.properties();
        let (part, memory) = (properties.identity.name.clone(), properties.memory.max_memory());
        Some(OpenDevice { device: Device::new(device), part, memory })
    }

    pub(super) fn list() -> Vec<DeviceInfo> {
        let indexed: [fn(usize) -> DeviceName; 4] =
            [DeviceName::Cuda, DeviceName::Vulkan, DeviceName::Metal, DeviceName::Wgpu];
        let named = indexed.into_iter().flat_map(|name| (0..).map(name).map_while(listed));
        named.chain(listed(DeviceName::Software)).collect()
    }

    fn listed(name: DeviceName) -> Option<DeviceInfo> {
        if !name.is_built() || (name == DeviceName::Software && cfg!(feature = "vulkan")) {
            return None;
        }
        let client = find(name)?.client();
        let properties = client.properties();
        let least = AttentionDims { batch: 1, heads: 1, kv_heads: 1, queries: 1, keys: 1, head_dim: 64, value_dim: 64 };
        Some(DeviceInfo {
            name,
            part: properties.identity.name.clone(),
            memory: properties.memory.max_memory(),
            largest: properties.memory.max_page_size,
            shared: properties.hardware.max_shared_memory_size,
            matrix_units: !client.features().matmul.cmma.is_empty(),
            attention: FlashAttention::runs(&client, least),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [
            DeviceName::Cpu,
            DeviceName::Cuda(0),
            DeviceName::Cuda(3),
            DeviceName::Vulkan(1),
            DeviceName::Metal(0),
            DeviceName::Wgpu(2),
            DeviceName::Software,
        ] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!(("cuda".parse(), "wgpu".parse()), (Ok(DeviceName::Cuda(0)), Ok(DeviceName::Wgpu(0))));
        for wrong in
            ["", "gpu", "cpu:0", "cpu:", "cuda:", "cuda:x", "cuda:-1", "wgpu:gpu", "metal:software", "wgpu:1:2"]
        {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_built_says_how() {
        assert!(DeviceName::Cpu.open().is_ok());
        for name in [DeviceName::Cuda(0), DeviceName::Vulkan(0), DeviceName::Metal(0), DeviceName::Wgpu(0)] {
            if name.is_built() {
                continue;
            }
            let error = name.open().unwrap_err();
            let feature = name.feature().unwrap();
            assert_eq!(error, DeviceUnavailable::NotBuilt { name, feature });
            assert!(error.hint().contains(&format!("--features {feature}")), "{}", error.hint());
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_no_other() {
        let name = DeviceName::Wgpu(4096);
        if name.is_built() {
            let DeviceUnavailable::Absent { present, .. } = name.open().unwrap_err() else { panic!("another error") };
            assert_eq!(present[0], "cpu");
        }
    }
}
