//! The execution environment: the device, the provenance for rows, and the other ranks. It is an
//! argument everywhere and not part of a plan.

use crate::ranks::Ranks;
use burn::tensor::Device;
use kerple_burn::device::{DeviceName, OpenDevice};
use kerple_burn::implementation::{DeviceKind, Impl};
use kerple_core::cpu::{Bf16Unit, InstructionSet};
use kerple_core::precision::Precision;
use kerple_data::machine::MemoryLimit;
use kerple_run::Provenance;

/// A device in a machine, and the program that works there.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Where models are.
    pub device: Device,
    /// What they compute with.
    pub implementation: Impl,
    /// What rows say of it.
    pub provenance: Provenance,
    /// The processes that work together, of which this is one.
    pub ranks: Ranks,
    /// Whether numbers come back from the device without waiting for it: then losses are read after every update, otherwise when
    /// something asks for them.
    pub reads_freely: bool,
    /// The memory of a device that has its own and reports it; for the CPU the operating system is
    /// asked.
    pub memory: Option<MemoryLimit>,
}

impl Runtime {
    /// The processor, for a program built from this commit.
    pub fn cpu(commit: Option<String>) -> Runtime {
        let provenance = Provenance {
            commit,
            cpu: processor(),
            simd: InstructionSet::current().name().to_owned(),
            threads: rayon::current_num_threads() as u64,
            device: "cpu".to_owned(),
            precision: "f32".to_owned(),
        };
        let (device, ranks) = (crate::device(), Ranks::alone());
        Runtime { device, implementation: Impl::Kernel, provenance, ranks, reads_freely: true, memory: None }
    }

    /// The memory that models have here, where it is known: on the processor, this process's share of the machine's.
    pub fn limit(&self) -> Option<MemoryLimit> {
        match DeviceKind::of(&self.device)? {
            DeviceKind::Cpu => self.ranks.limit(),
            DeviceKind::Gpu => self.memory.clone(),
        }
    }

    /// The precision of what layers keep for their backward: on CPUs that of products, on GPUs `f32`.
    pub fn kept_precision(&self) -> Precision {
        match DeviceKind::of(&self.device) {
            Some(DeviceKind::Cpu) => self.implementation.precision(),
            _ => Precision::F32,
        }
    }

    /// The same with models on another device.
    pub fn on(self, name: DeviceName, opened: OpenDevice) -> Runtime {
        let OpenDevice { device, part, memory } = opened;
        let provenance = Provenance { device: format!("{name} ({part})"), ..self.provenance };
        let reads_freely = DeviceKind::of(&device) == Some(DeviceKind::Cpu);
        let memory = memory.map(|bytes| MemoryLimit { name: "the memory of the device", bytes });
        Runtime { device, provenance, reads_freely, memory, ..self }
    }

    /// The same with products of this precision.
    pub fn with_precision(self, precision: Precision) -> Runtime {
        let on_cpu = DeviceKind::of(&self.device) == Some(DeviceKind::Cpu);
        let simd = match precision {
            Precision::Bf16 if on_cpu => Bf16Unit::current().name().to_owned(),
            _ => self.provenance.simd,
        };
        let provenance = Provenance { precision: precision.to_string(), simd, ..self.provenance };
        Runtime { implementation: Impl::with_precision(precision), provenance, ..self }
    }

    /// The same as one of several processes.
    pub fn with_ranks(self, ranks: Ranks) -> Runtime {
        Runtime { ranks, ..self }
    }

    /// The same for work that this process does by itself.
    pub fn alone(&self) -> Runtime {
        self.clone().with_ranks(Ranks::alone())
    }
}

/// The processor, as the operating system names it.
fn processor() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}
