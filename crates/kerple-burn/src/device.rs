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
pub enum Name {
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

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let (kind, which) = text.split_once(':').unwrap_or((text, ""));
        let index = match which {
            "" if !text.ends_with(':') => Some(0),
            which => which.parse().ok(),
        };
        match (kind, which, index) {
            ("cpu", "", Some(_)) => Ok(Name::Cpu),
            ("wgpu", "software", _) => Ok(Name::Software),
            ("cuda", _, Some(index)) => Ok(Name::Cuda(index)),
            ("vulkan", _, Some(index)) => Ok(Name::Vulkan(index)),
            ("metal", _, Some(index)) => Ok(Name::Metal(index)),
            ("wgpu", _, Some(index)) => Ok(Name::Wgpu(index)),
            _ => Err(format!(
                "unknown device; use {NAMES}; `kerple devices` lists the devices of \
                this machine"
            )),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Name::Cpu => write!(f, "cpu"),
            Name::Cuda(index) => write!(f, "cuda:{index}"),
            Name::Vulkan(index) => write!(f, "vulkan:{index}"),
            Name::Metal(index) => write!(f, "metal:{index}"),
            Name::Wgpu(index) => write!(f, "wgpu:{index}"),
            Name::Software => write!(f, "wgpu:software"),
        }
    }
}

/// Why a device cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// This program was built without what it needs.
    NotBuilt {
        /// The device.
        name: Name,
        /// The feature of the crate that it needs.
        feature: &'static str,
    },
    /// The machine does not have it.
    Absent {
        /// The device.
        name: Name,
        /// What it has.
        present: Vec<String>,
    },
    /// Software renderers and shaders of Vulkan's own end in a crash of the renderer.
    SoftwareInVulkan,
}

impl Unavailable {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Unavailable::NotBuilt { feature, .. } => {
                format!(
                    "build with it: cargo install --locked --path crates/kerple --features {feature}; see docs/gpu.md"
                )
            }
            Unavailable::Absent { present, .. } => {
                format!("use --device with one of {}; `kerple devices` describes them", present.join(", "))
            }
            Unavailable::SoftwareInVulkan => "build with the feature gpu, without the feature vulkan".to_owned(),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Unavailable::NotBuilt { name, feature } => {
                write!(f, "--device {name}: this program was built without the feature {feature}")
            }
            Unavailable::Absent { name, present } => {
                write!(f, "--device {name}: this machine does not have that device, only {}", present.join(", "))
            }
            Unavailable::SoftwareInVulkan => {
                write!(
                    f,
                    "--device wgpu:software: software renderers crash on shaders of a build with the \
                        feature vulkan"
                )
            }
        }
    }
}

impl std::error::Error for Unavailable {}

/// A device that work can begin on.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Where models are to be.
    pub device: Device,
    /// What it calls itself.
    pub part: String,
    /// Bytes that the device lends, where it reports them; unknown for the CPU.
    pub memory: Option<u64>,
}

/// A device that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// How it is named.
    pub name: Name,
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

impl Name {
    /// The feature of the crate without which this program has no such device.
    pub fn feature(self) -> Option<&'static str> {
        match self {
            Name::Cpu => None,
            Name::Cuda(_) => Some("cuda"),
            Name::Vulkan(_) => Some("vulkan"),
            Name::Metal(_) => Some("metal"),
            Name::Wgpu(_) | Name::Software => Some("gpu"),
        }
    }

    /// Whether this program has it.
    pub fn is_built(self) -> bool {
        match self {
            Name::Cpu => true,
            Name::Cuda(_) => cfg!(feature = "cuda"),
            Name::Vulkan(_) => cfg!(feature = "vulkan"),
            Name::Metal(_) => cfg!(feature = "metal"),
            Name::Wgpu(_) | Name::Software => cfg!(feature = "gpu"),
        }
    }

    /// The device, to work on it.
    ///
    /// # Errors
    /// When the program was built without it, or the machine does not have it.
    pub fn open(self) -> Result<Opened, Unavailable> {
        if self == Name::Cpu {
            return Ok(Opened { device: Device::flex(), part: self.to_string(), memory: None });
        }
        if !self.is_built() {
            return Err(Unavailable::NotBuilt { name: self, feature: self.feature().expect("the processor is built") });
        }
        if self == Name::Software && cfg!(feature = "vulkan") {
            return Err(Unavailable::SoftwareInVulkan);
        }
        let absent = || Unavailable::Absent { name: self, present: names() };
        on_gpus::open(self).ok_or_else(absent)
    }
}

/// The names of all devices that are there.
fn names() -> Vec<String> {
    std::iter::once(Name::Cpu)
        .chain(list().into_iter().map(|listed| listed.name))
        .map(|name| name.to_string())
        .collect()
}

/// All devices but the processor.
pub fn list() -> Vec<Listed> {
    on_gpus::list()
}

#[cfg(not(feature = "cube"))]
mod on_gpus {
    use super::{Listed, Name, Opened};

    pub(super) fn open(_name: Name) -> Option<Opened> {
        None
    }

    pub(super) fn list() -> Vec<Listed> {
        Vec::new()
    }
}

#[cfg(feature = "cube")]
mod on_gpus {
    use super::{Device, Listed, Name, Opened};
    use kerple_core::attention::AttentionDims;
    use kerple_gpu::attention::Attention;
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

    fn find(name: Name) -> Option<cubecl::Device> {
        match name {
            Name::Cpu => None,
            Name::Cuda(index) => cubecl::Device::cuda(index).ok(),
            Name::Vulkan(index) => adapters(WgpuBackend::Vulkan).into_iter().nth(index),
            Name::Metal(index) => adapters(WgpuBackend::Metal).into_iter().nth(index),
            Name::Wgpu(index) => adapters(WgpuBackend::Auto).into_iter().nth(index),
            Name::Software => cubecl::Device::wgpu(WgpuDeviceKind::Cpu).ok(),
        }
    }

    pub(super) fn open(name: Name) -> Option<Opened> {
        let device = find(name)?;
        let client = device.client();
        let properties = client.properties();
        let (part, memory) = (properties.identity.name.clone(), properties.memory.max_memory());
        Some(Opened { device: Device::new(device), part, memory })
    }

    pub(super) fn list() -> Vec<Listed> {
        let indexed: [fn(usize) -> Name; 4] = [Name::Cuda, Name::Vulkan, Name::Metal, Name::Wgpu];
        let named = indexed.into_iter().flat_map(|name| (0..).map(name).map_while(listed));
        named.chain(listed(Name::Software)).collect()
    }

    fn listed(name: Name) -> Option<Listed> {
        if !name.is_built() || (name == Name::Software && cfg!(feature = "vulkan")) {
            return None;
        }
        let client = find(name)?.client();
        let properties = client.properties();
        let least = AttentionDims { batch: 1, heads: 1, kv_heads: 1, queries: 1, keys: 1, head_dim: 64 };
        Some(Listed {
            name,
            part: properties.identity.name.clone(),
            memory: properties.memory.max_memory(),
            largest: properties.memory.max_page_size,
            shared: properties.hardware.max_shared_memory_size,
            matrix_units: !client.features().matmul.cmma.is_empty(),
            attention: Attention::runs(&client, least),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in
            [Name::Cpu, Name::Cuda(0), Name::Cuda(3), Name::Vulkan(1), Name::Metal(0), Name::Wgpu(2), Name::Software]
        {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!(("cuda".parse(), "wgpu".parse()), (Ok(Name::Cuda(0)), Ok(Name::Wgpu(0))));
        for wrong in
            ["", "gpu", "cpu:0", "cpu:", "cuda:", "cuda:x", "cuda:-1", "wgpu:gpu", "metal:software", "wgpu:1:2"]
        {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_built_says_how() {
        assert!(Name::Cpu.open().is_ok());
        for name in [Name::Cuda(0), Name::Vulkan(0), Name::Metal(0), Name::Wgpu(0)] {
            if name.is_built() {
                continue;
            }
            let error = name.open().unwrap_err();
            let feature = name.feature().unwrap();
            assert_eq!(error, Unavailable::NotBuilt { name, feature });
            assert!(error.hint().contains(&format!("--features {feature}")), "{}", error.hint());
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_no_other() {
        let name = Name::Wgpu(4096);
        if name.is_built() {
            let Unavailable::Absent { present, .. } = name.open().unwrap_err() else { panic!("another error") };
            assert_eq!(present[0], "cpu");
        }
    }
}
