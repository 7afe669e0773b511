// Kernels as people write them for nvcc, none of which knows of preemption. `own.ptx` is what nvcc makes of them; see build.py.
//
// Results do not depend on the order of blocks, so that they can be compared bit for bit.
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#define KERNEL extern "C" __global__ void

KERNEL saxpy(const float *x, const float *y, float *out, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}

static __device__ float warp_sum(float value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
    return value;
}

// The same sum in every thread. `parts` has 32 elements.
static __device__ float block_sum(float value, float *parts) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) sum += parts[warp];
    __syncthreads();
    return sum;
}

// A row for each block, which is in dynamic shared memory meanwhile.
KERNEL row_softmax(const float *x, float *out, int columns) {
    extern __shared__ float row[];
    __shared__ float parts[32];
    x += (size_t)blockIdx.x * columns;
    out += (size_t)blockIdx.x * columns;
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = __expf(x[i]);
        sum += row[i];
    }
    sum = block_sum(sum, parts);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = row[i] / sum;
}

KERNEL row_norm(const float *x, const float *scale, const float *shift, float *out, int columns) {
    __shared__ float parts[32];
    x += (size_t)blockIdx.x * columns;
    out += (size_t)blockIdx.x * columns;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += x[i];
    float mean = block_sum(sum, parts) / columns;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    float by = rsqrtf(block_sum(squares, parts) / columns + 1e-5f);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = (x[i] - mean) * by * scale[i] + shift[i];
}

// The block that comes last by the count adds up what all have left. None waits for another.
KERNEL sum_once(const int *x, int *parts, unsigned *count, int *out, int n) {
    __shared__ int of_warps[32];
    __shared__ bool is_last;
    int sum = 0;
    for (int k = 0, i = blockIdx.x * blockDim.x * 16 + threadIdx.x; k < 16; k++, i += blockDim.x)
        if (i < n) sum += x[i];
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < blockDim.x / 32; warp++) sum += of_warps[warp];
        parts[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicAdd(count, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    int all = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) all += ((volatile int *)parts)[i];
    for (int lanes = 16; lanes > 0; lanes /= 2) all += __shfl_xor_sync(0xffffffffu, all, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(out, all);
    if (threadIdx.x == 0) *count = 0;
}

KERNEL tiled_matmul(const float *a, const float *b, float *out, int n) {
    __shared__ float of_a[32][32], of_b[32][32];
    int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * 32 + x, row = blockIdx.y * 32 + y;
    float sum = 0;
    for (int k = 0; k < n; k += 32) {
        of_a[y][x] = a[(size_t)row * n + k + x];
        of_b[y][x] = b[(size_t)(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < 32; i++) sum += of_a[y][i] * of_b[i][x];
        __syncthreads();
    }
    out[(size_t)row * n + column] = sum;
}

// Four warps, a tile of 64 by 64 by the tensor cores.
KERNEL tensor_matmul(const half *a, const half *b, float *out, int n) {
    using namespace nvcuda::wmma;
    int warp = threadIdx.x / 32, row = blockIdx.y * 64 + warp / 2 * 32, column = blockIdx.x * 64 + warp % 2 * 32;
    fragment<accumulator, 16, 16, 16, float> sums[2][2];
    for (int i = 0; i < 4; i++) fill_fragment(sums[i / 2][i % 2], 0.0f);
    for (int k = 0; k < n; k += 16) {
        fragment<matrix_a, 16, 16, 16, half, row_major> of_a[2];
        fragment<matrix_b, 16, 16, 16, half, row_major> of_b[2];
        for (int i = 0; i < 2; i++) {
            load_matrix_sync(of_a[i], a + (size_t)(row + 16 * i) * n + k, n);
            load_matrix_sync(of_b[i], b + (size_t)k * n + column + 16 * i, n);
        }
        for (int i = 0; i < 4; i++) mma_sync(sums[i / 2][i % 2], of_a[i / 2], of_b[i % 2], sums[i / 2][i % 2]);
    }
    for (int i = 0; i < 4; i++)
        store_matrix_sync(out + (size_t)(row + i / 2 * 16) * n + column + i % 2 * 16, sums[i / 2][i % 2], n, mem_row_major);
}

// Warps leave before barriers that others still come to, by their data.
KERNEL warps_leave(const unsigned *x, unsigned *out, int n) {
    __shared__ unsigned tile[256];
    unsigned i = blockIdx.x * 256 + threadIdx.x, first = x[i & ~31u];
    tile[threadIdx.x] = 0;
    __syncthreads();
    if (i >= n || first % 8 == 0) return;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    if (first % 16 == 3) return;
    unsigned sum = 0;
    for (int k = 0; k < 256; k++) sum = sum * 31 + tile[(threadIdx.x + k) % 256];
    __syncthreads();
    tile[255 - threadIdx.x] = sum;
    __syncthreads();
    out[i] = sum ^ tile[threadIdx.x];
}

// Lanes of one warp leave, too.
KERNEL lanes_leave(const unsigned *x, unsigned *out, int n) {
    __shared__ unsigned tile[256];
    unsigned i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x] = 0;
    __syncthreads();
    if (i >= n || x[i] % 7 == 0) return;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    if (threadIdx.x >= 200) return;
    unsigned sum = 0;
    for (int k = 0; k < 256; k++) sum = sum * 31 + tile[(threadIdx.x + k) % 256];
    __syncthreads();
    tile[255 - threadIdx.x] = sum;
    __syncthreads();
    out[i] = sum ^ tile[threadIdx.x];
}

// A grid of three dimensions, tasks of different lengths, an array on the stack.
KERNEL stack_walk(const unsigned *x, unsigned *out, int rounds) {
    unsigned state[64], block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned i = block * blockDim.x + threadIdx.x, value = x[i];
    for (int k = 0; k < 64; k++) state[k] = value += 0x9e3779b9u * (k + 1);
    for (int round = 0; round < rounds * (1 + int(block % 5)); round++) {
        unsigned at = value >> 7 & 63;
        value = value * 1664525u + state[at];
        state[(at + round) % 64] ^= value;
    }
    out[i] = value ^ state[value % 64];
}

// Two buffers of dynamic shared memory, filled by asynchronous copies one step ahead.
KERNEL pipelined_sum(const uint4 *x, unsigned *out, int steps) {
    extern __shared__ uint4 stages[];
    int t = threadIdx.x;
    x += (size_t)blockIdx.x * steps * blockDim.x;
    unsigned sum = 0;
    __pipeline_memcpy_async(&stages[t], &x[t], 16);
    __pipeline_commit();
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps)
            __pipeline_memcpy_async(&stages[(step + 1) % 2 * blockDim.x + t], &x[(size_t)(step + 1) * blockDim.x + t], 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        uint4 value = stages[step % 2 * blockDim.x + (t + step) % blockDim.x];
        sum = (sum ^ value.x) * 0x01000193u + (value.y ^ value.z) + value.w;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + t] = sum;
}

// Sorts 1024 keys in shared memory for each block.
KERNEL sort_1024(const unsigned *x, unsigned *out) {
    __shared__ unsigned keys[1024];
    unsigned t = threadIdx.x;
    keys[t] = x[blockIdx.x * 1024 + t];
    for (unsigned size = 2; size <= 1024; size *= 2)
        for (unsigned stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            unsigned other = t ^ stride;
            if (other > t) {
                unsigned low = keys[t], high = keys[other];
                if ((low > high) == ((t & size) == 0)) keys[t] = high, keys[other] = low;
            }
        }
    __syncthreads();
    out[blockIdx.x * 1024 + t] = keys[t];
}

// A histogram in shared memory, added to the one of the grid by atomics.
KERNEL histogram_256(const uint4 *x, unsigned *bins, int each) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < each; k++) {
        uint4 word = x[((size_t)blockIdx.x * each + k) * blockDim.x + threadIdx.x];
        atomicAdd(&own[word.x >> 24], 1);
        atomicAdd(&own[word.y >> 24], 1);
        atomicAdd(&own[word.z >> 24], 1);
        atomicAdd(&own[word.w >> 24], 1);
    }
    __syncthreads();
    if (own[threadIdx.x]) atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

KERNEL transpose(const unsigned *x, unsigned *out, int n) {
    __shared__ unsigned tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) tile[threadIdx.y + k][threadIdx.x] = x[(size_t)(row + k) * n + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) out[(size_t)(row + k) * n + column] = tile[threadIdx.x][threadIdx.y + k];
}

// Long tasks without a barrier.
KERNEL n_body(const float4 *bodies, float4 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 self = bodies[i];
    float x = 0, y = 0, z = 0;
    for (int k = 0; k < n; k++) {
        float4 other = bodies[k];
        float dx = other.x - self.x, dy = other.y - self.y, dz = other.z - self.z;
        float by = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
        by = other.w * by * by * by;
        x += dx * by, y += dy * by, z += dz * by;
    }
    out[i] = make_float4(x, y, z, self.w);
}

// The same by tiles in shared memory, with barriers.
KERNEL n_body_tiled(const float4 *bodies, float4 *out, int n) {
    __shared__ float4 tile[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    float4 self = bodies[i];
    float x = 0, y = 0, z = 0;
    for (int first = 0; first < n; first += 256) {
        tile[threadIdx.x] = bodies[first + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 256; k++) {
            float4 other = tile[k];
            float dx = other.x - self.x, dy = other.y - self.y, dz = other.z - self.z;
            float by = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
            by = other.w * by * by * by;
            x += dx * by, y += dy * by, z += dz * by;
        }
        __syncthreads();
    }
    out[i] = make_float4(x, y, z, self.w);
}

KERNEL mandelbrot(unsigned *out, int width, int limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float cx = (i % width) * 3.0f / width - 2.2f, cy = (i / width) * 2.4f / width - 1.2f, x = 0, y = 0;
    unsigned count = 0;
    while (x * x + y * y < 4 && count < limit) {
        float next = x * x - y * y + cx;
        y = 2 * x * y + cy, x = next;
        count++;
    }
    out[i] = count;
}

// A sparse matrix by rows; a warp for each row.
KERNEL sparse_rows(const unsigned *columns, const float *values, const float *x, float *out, int each) {
    unsigned row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int k = lane; k < each; k += 32) sum += values[(size_t)row * each + k] * x[columns[(size_t)row * each + k]];
    sum = warp_sum(sum);
    if (lane == 0) out[row] = sum;
}

// A bulk copy into shared memory, which an mbarrier announces, where the hardware has them.
KERNEL bulk_copy(const uint4 *x, uint4 *out, int each) {
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(128) uint4 tile[256];
    __shared__ __align__(8) uint64_t arrived;
    unsigned at = __cvta_generic_to_shared(tile), barrier = __cvta_generic_to_shared(&arrived);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    for (int k = 0; k < each; k++) {
        size_t first = ((size_t)blockIdx.x * each + k) * 256;
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;" ::"r"(barrier) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];" ::"r"(at),
                         "l"(x + first), "r"(barrier)
                         : "memory");
        }
        unsigned done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(barrier), "r"(k & 1)
                         : "memory");
        uint4 value = tile[(threadIdx.x + 1) % 256];
        out[first + threadIdx.x] = make_uint4(value.y, value.z, value.w, value.x + k);
        __syncthreads();
    }
    if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
#else
    for (int k = 0; k < each; k++) {
        size_t first = ((size_t)blockIdx.x * each + k) * 256;
        uint4 value = x[first + (threadIdx.x + 1) % 256];
        out[first + threadIdx.x] = make_uint4(value.y, value.z, value.w, value.x + k);
    }
#endif
}

