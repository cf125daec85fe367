//! `kerple devices`

use crate::args::DevicesArgs;
use crate::command_error::CommandResult;
use crate::output::{print_json, remarkln, resultln};
use kerple_burn::device::{self, DeviceInfo, DeviceName};
use kerple_lm::runtime::Runtime;

/// Lists the processor, and what else this program was built for and the machine has.
pub fn run(args: &DevicesArgs) -> CommandResult {
    let (cpu, others) = (Runtime::cpu(None).provenance, device::list());
    if args.json {
        let threads = cpu.threads;
        print_json(&serde_json::json!({ "name": "cpu", "part": cpu.cpu, "threads": threads }));
        others.iter().for_each(|listed| print_json(&as_json(listed)));
        return Ok(());
    }
    resultln!("{:<14} {}, {} threads", "cpu", cpu.cpu, cpu.threads);
    others.iter().for_each(|listed| resultln!("{}", line(listed)));
    let kinds = [DeviceName::Cuda(0), DeviceName::Wgpu(0), DeviceName::Vulkan(0), DeviceName::Metal(0)];
    let missing: Vec<&str> =
        kinds.into_iter().filter(|kind| !kind.is_built()).filter_map(DeviceName::feature).collect();
    if !missing.is_empty() {
        remarkln!("built without {}; see docs/gpu.md on how to build with them", missing.join(", "));
    }
    Ok(())
}

fn as_json(listed: &DeviceInfo) -> serde_json::Value {
    let DeviceInfo { name, part, memory, largest, shared, matrix_units, attention } = listed;
    serde_json::json!({
        "name": name.to_string(), "part": part, "memory": memory, "largest_array": largest, "shared_memory": shared,
        "matrix_units": matrix_units, "attention_kernels": attention,
    })
}

fn line(listed: &DeviceInfo) -> String {
    let DeviceInfo { name, part, memory, largest, shared, matrix_units, attention } = listed;
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let memory = memory.map_or_else(|| "memory unknown".to_owned(), gib);
    let units = if *matrix_units { ", matrix units" } else { "" };
    let kernels = if *attention { "attention with tables" } else { "no kernels" };
    let name = name.to_string();
    format!("{name:<14} {part}, {memory}, arrays to {}, {} KiB shared{units}; {kernels}", gib(*largest), shared >> 10)
}
