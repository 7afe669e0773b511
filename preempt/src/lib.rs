//! Preemption on NVIDIA GPUs, in process.
