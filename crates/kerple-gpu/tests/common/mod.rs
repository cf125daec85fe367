//! The device that kernels are tested on, and inputs.

use kerple_gpu::cubecl::Device;
use kerple_gpu::cubecl::client::Client;
use kerple_gpu::cubecl::device::WgpuDeviceKind;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// A software renderer, unless `KERPLE_TEST_DEVICE` names a kind of device.
pub fn client() -> Client {
    // no software renderer stands in for a GPU
    let gpu = || {
        Device::wgpu(WgpuDeviceKind::DiscreteGpu(0))
            .or_else(|_| Device::wgpu(WgpuDeviceKind::IntegratedGpu(0)))
            .or_else(|_| Device::wgpu(WgpuDeviceKind::VirtualGpu(0)))
    };
    let device = match std::env::var("KERPLE_TEST_DEVICE").as_deref() {
        Err(_) | Ok("wgpu:software") => Device::wgpu(WgpuDeviceKind::Cpu),
        Ok("wgpu" | "vulkan" | "metal") => gpu(),
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("KERPLE_TEST_DEVICE={other}: wgpu, vulkan, metal or cuda"),
    };
    device.expect("a device; for tests without a GPU install Mesa's lavapipe").client()
}

/// Numbers of `f32` in f64.
pub fn random(rng: &mut ChaCha8Rng, count: usize, spread: f64) -> Vec<f64> {
    (0..count).map(|_| f64::from((rng.random_range(-1.0..1.0) * spread) as f32)).collect()
}
