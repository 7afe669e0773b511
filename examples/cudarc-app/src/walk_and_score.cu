// Kernels in CUDA C++, as nvcc and NVRTC take them. They know nothing of preempt.

// One step of a walk: the generator of Marsaglia (2003).
template <typename T>
__device__ T step(T x) {
    x ^= x << 13;
    x ^= x >> 17;
    return x ^ (x << 5);
}

// The batch: each thread walks so many steps from its start.
extern "C" __global__ void __launch_bounds__(256) walk(const unsigned *starts, unsigned *ends, int steps) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = starts[i];
    for (int done = 0; done < steps; done++) x = step(x);
    ends[i] = x;
}

// Urgent: each block has the product of its row of weights and the window, both of 256 elements.
extern "C" __global__ void __launch_bounds__(256) score(const int *weights, const int *window, int *scores) {
    __shared__ int parts[256];
    int t = threadIdx.x;
    parts[t] = weights[blockIdx.x * 256 + t] * window[t];
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) parts[t] += parts[t + half];
        __syncthreads();
    }
    if (t == 0) scores[blockIdx.x] = parts[0];
}
