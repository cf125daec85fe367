# What is compiled for GPUs, and of which crates; sourced.
gpu_crates=(-p kerple-gpu -p kerple-burn -p kerple-lm -p kerple -p kerple-conformance)
gpu_features=kerple-gpu/wgpu,kerple-gpu/cuda-source,kerple-burn/gpu,kerple-lm/gpu,kerple/gpu,kerple-conformance/gpu
