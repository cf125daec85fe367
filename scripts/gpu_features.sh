# The features that compile for GPUs, those of kerple-conformance last; sourced.
gpu_features=kerple-gpu/wgpu,kerple-gpu/cuda-source,kerple-burn/gpu,kerple-lm/gpu,kerple/gpu,kerple-conformance/gpu
