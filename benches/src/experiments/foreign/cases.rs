//! The kernels: where their PTX is, and how they are launched.

/// An argument of a kernel. Arrays are counted in words of 4 bytes.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// An array that the kernel reads.
    Reads(Content, u32),
    /// An array that the kernel writes, each word of it or some. It holds [`POISON`](super::subject::POISON) before.
    Writes(u32),
    /// An array of zeros that the kernel adds to.
    Adds(u32),
    /// Memory of each block's own, in words, whose contents mean nothing afterwards.
    Scratch(u32),
    /// A null pointer, or a `size_t` of 0.
    Null,
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
    /// An array of `size_t`.
    Sizes(&'static [u64]),
}

/// What an array holds that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// From -1 up to 1.
    Floats,
    /// Two in each word, from -1 up to 1.
    Halves,
    Words,
    /// Numbers below this one.
    Below(u32),
}

/// A kernel of another compiler, with arguments.
#[derive(Debug)]
pub struct Case {
    /// The folder in the corpus, and the file there.
    pub group: &'static str,
    pub file: &'static str,
    /// The entry, or how its mangled name starts.
    pub entry: &'static str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory. Triton's kernels have theirs, and their block, in a file beside the PTX.
    pub shared: u32,
    pub arguments: &'static [Argument],
}

use Argument::*;
use Content::*;

/// 2^26 elements, 256 MiB.
const MANY: u32 = 1 << 26;
/// Rows and columns of the same number of elements.
const ROWS: u32 = 1 << 14;
const COLUMNS: u32 = 1 << 12;

const fn case(
    (group, file, entry): (&'static str, &'static str, &'static str),
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: &'static [Argument],
) -> Case {
    Case { group, file, entry, grid, block, shared, arguments }
}

const fn own(
    entry: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: &'static [Argument],
) -> Case {
    case(("own", "own", entry), grid, block, shared, arguments)
}

const fn triton(name: &'static str, grid: [u32; 3], arguments: &'static [Argument]) -> Case {
    case(("triton", name, name), grid, [0; 3], 0, arguments)
}

/// Candle's kernels over elements have 1024 threads in a block.
const fn elements(file: &'static str, entry: &'static str, arguments: &'static [Argument]) -> Case {
    case(("candle", file, entry), [MANY / 1024, 1, 1], [1024, 1, 1], 0, arguments)
}

const fn candle(
    file: &'static str,
    entry: &'static str,
    grid: u32,
    block: [u32; 3],
    shared: u32,
    arguments: &'static [Argument],
) -> Case {
    case(("candle", file, entry), [grid, 1, 1], block, shared, arguments)
}

/// The blocks of two of them pass sums of 32 warps on in dynamic shared memory, and none of the others has any.
const fn ggml(
    file: &'static str,
    entry: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    arguments: &'static [Argument],
) -> Case {
    case(("ggml", file, entry), grid, block, 256, arguments)
}

const N64: u64 = MANY as u64;
/// A matrix of 4096 by 4096 halves, and the product of two.
const MATRIX: Argument = Reads(Halves, 1 << 23);
const PRODUCT: Argument = Writes(1 << 23);
const SIDE: Argument = U32(4096);

/// Of `own.cu`, whose PTX is in this program.
pub const OWN: &[Case] = &[
    own(
        "saxpy",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        0,
        &[Reads(Floats, MANY), Reads(Floats, MANY), Writes(MANY), F32(1.5), U32(MANY)],
    ),
    own(
        "row_softmax",
        [ROWS, 1, 1],
        [256, 1, 1],
        4 * COLUMNS,
        &[Reads(Floats, MANY), Writes(MANY), U32(COLUMNS)],
    ),
    own(
        "row_norm",
        [ROWS, 1, 1],
        [256, 1, 1],
        0,
        &[
            Reads(Floats, MANY),
            Reads(Floats, COLUMNS),
            Reads(Floats, COLUMNS),
            Writes(MANY),
            U32(COLUMNS),
        ],
    ),
    own(
        "sum_once",
        [2 * MANY / 4096, 1, 1],
        [256, 1, 1],
        0,
        &[Reads(Words, 2 * MANY), Scratch(1), Adds(1), Adds(1), U32(2 * MANY)],
    ),
    own(
        "tiled_matmul",
        [64, 64, 1],
        [32, 32, 1],
        0,
        &[Reads(Floats, 1 << 22), Reads(Floats, 1 << 22), Writes(1 << 22), U32(2048)],
    ),
    own(
        "tensor_matmul",
        [64, 64, 1],
        [128, 1, 1],
        0,
        &[Reads(Halves, 1 << 23), Reads(Halves, 1 << 23), Writes(1 << 24), U32(4096)],
    ),
    own(
        "warps_leave",
        [1 << 16, 1, 1],
        [256, 1, 1],
        0,
        &[Reads(Words, 1 << 24), Writes(1 << 24), U32(1 << 24)],
    ),
    own(
        "lanes_leave",
        [1 << 16, 1, 1],
        [256, 1, 1],
        0,
        &[Reads(Words, 1 << 24), Writes(1 << 24), U32(1 << 24)],
    ),
    own(
        "stack_walk",
        [32, 16, 8],
        [128, 1, 1],
        0,
        &[Reads(Words, 1 << 19), Writes(1 << 19), U32(50)],
    ),
    own(
        "pipelined_sum",
        [4096, 1, 1],
        [128, 1, 1],
        4096,
        &[Reads(Words, 2 * MANY), Writes(1 << 19), U32(64)],
    ),
    own("sort_1024", [1 << 13, 1, 1], [1024, 1, 1], 0, &[Reads(Words, 1 << 23), Writes(1 << 23)]),
    own("histogram_256", [1 << 13, 1, 1], [256, 1, 1], 0, &[Reads(Words, MANY), Adds(256), U32(8)]),
    own(
        "transpose",
        [256, 256, 1],
        [32, 8, 1],
        0,
        &[Reads(Words, MANY), Writes(MANY), U32(1 << 13)],
    ),
    own(
        "n_body",
        [1 << 13, 1, 1],
        [256, 1, 1],
        0,
        &[Reads(Floats, 1 << 23), Writes(1 << 23), U32(1024)],
    ),
    own(
        "n_body_tiled",
        [1 << 13, 1, 1],
        [256, 1, 1],
        0,
        &[Reads(Floats, 1 << 23), Writes(1 << 23), U32(1024)],
    ),
    own("mandelbrot", [49_152, 1, 1], [256, 1, 1], 0, &[Writes(49_152 * 256), U32(4096), U32(256)]),
    own(
        "sparse_rows",
        [1 << 17, 1, 1],
        [256, 1, 1],
        0,
        &[
            Reads(Below(1 << 20), 1 << 25),
            Reads(Floats, 1 << 25),
            Reads(Floats, 1 << 20),
            Writes(1 << 20),
            U32(32),
        ],
    ),
    own("bulk_copy", [1 << 12, 1, 1], [256, 1, 1], 0, &[Reads(Words, MANY), Writes(MANY), U32(16)]),
];

/// Of Triton, candle and ggml.
pub const CORPUS: &[Case] = &[
    triton(
        "add",
        [MANY / 1024, 1, 1],
        &[Reads(Floats, MANY), Reads(Floats, MANY), Writes(MANY), U32(MANY), Null, Null],
    ),
    triton(
        "gelu",
        [MANY / 1024, 1, 1],
        &[Reads(Floats, MANY), Writes(MANY), U32(MANY), Null, Null],
    ),
    triton("softmax", [ROWS, 1, 1], &[Reads(Floats, MANY), Writes(MANY), U32(COLUMNS), Null, Null]),
    triton(
        "layer_norm",
        [ROWS, 1, 1],
        &[
            Reads(Floats, MANY),
            Reads(Floats, COLUMNS),
            Reads(Floats, COLUMNS),
            Writes(MANY),
            U32(COLUMNS),
            F32(1e-5),
            Null,
            Null,
        ],
    ),
    triton(
        "cross_entropy",
        [ROWS, 1, 1],
        &[Reads(Floats, MANY), Reads(Below(COLUMNS), ROWS), Writes(ROWS), U32(COLUMNS), Null, Null],
    ),
    triton(
        "dropout",
        [MANY / 1024, 1, 1],
        &[Reads(Floats, MANY), Writes(MANY), U32(MANY), F32(0.25), U32(77), Null, Null],
    ),
    triton("sum_all", [MANY / 4096, 1, 1], &[Reads(Words, MANY), Adds(1), U32(MANY), Null, Null]),
    triton(
        "scan_rows",
        [1 << 15, 1, 1],
        &[Reads(Words, MANY), Writes(MANY), U32(2048), Null, Null],
    ),
    triton("sort_rows", [1 << 14, 1, 1], &[Reads(Words, 1 << 24), Writes(1 << 24), Null, Null]),
    triton(
        "rotary",
        [1 << 18, 1, 1],
        &[
            Reads(Floats, 1 << 25),
            Reads(Floats, 1 << 19),
            Reads(Floats, 1 << 19),
            Writes(1 << 25),
            U32(32),
            Null,
            Null,
        ],
    ),
    triton("matmul", [1024, 1, 1], &[MATRIX, MATRIX, PRODUCT, SIDE, SIDE, SIDE, Null, Null]),
    triton("matmul_small", [4096, 1, 1], &[MATRIX, MATRIX, PRODUCT, SIDE, SIDE, SIDE, Null, Null]),
    triton(
        "matmul_descriptors",
        [1024, 1, 1],
        &[MATRIX, MATRIX, PRODUCT, SIDE, SIDE, SIDE, Scratch(64), Null],
    ),
    triton(
        "attention",
        [32, 32, 1],
        &[
            Reads(Halves, 1 << 23),
            Reads(Halves, 1 << 23),
            Reads(Halves, 1 << 23),
            Writes(1 << 23),
            U32(4096),
            F32(0.1275),
            Null,
            Null,
        ],
    ),
    triton(
        "attention_causal",
        [32, 64, 1],
        &[
            Reads(Halves, 1 << 23),
            Reads(Halves, 1 << 23),
            Reads(Halves, 1 << 23),
            Writes(1 << 23),
            U32(4096),
            F32(0.18),
            Null,
            Null,
        ],
    ),
    elements("unary", "uexp_f32", &[U64(N64), Null, Null, Reads(Floats, MANY), Writes(MANY)]),
    elements("unary", "ugelu_f32", &[U64(N64), Null, Null, Reads(Floats, MANY), Writes(MANY)]),
    elements("unary", "usin_f32", &[U64(N64), Null, Null, Reads(Floats, MANY), Writes(MANY)]),
    elements(
        "binary",
        "badd_f32",
        &[U64(N64), Null, Null, Reads(Floats, MANY), Reads(Floats, MANY), Writes(MANY)],
    ),
    elements(
        "binary",
        "bdiv_f32",
        &[U64(N64), Null, Null, Reads(Floats, MANY), Reads(Floats, MANY), Writes(MANY)],
    ),
    elements(
        "affine",
        "affine_f32",
        &[U64(N64), Null, Null, Reads(Floats, MANY), Writes(MANY), F32(2.0), F32(0.5)],
    ),
    elements(
        "cast",
        "cast_f32_f16",
        &[U64(N64), Null, Null, Reads(Floats, MANY), Writes(MANY / 2)],
    ),
    elements(
        "ternary",
        "where_u32_f32",
        &[
            U64(N64),
            Null,
            Null,
            Reads(Below(2), MANY),
            Reads(Floats, MANY),
            Reads(Floats, MANY),
            Writes(MANY),
        ],
    ),
    elements(
        "fill",
        "copy2d_f32",
        &[Reads(Floats, MANY), Writes(MANY), U32(ROWS), U32(COLUMNS), U32(COLUMNS), U32(COLUMNS)],
    ),
    candle(
        "reduce",
        "fast_sum_f32",
        ROWS,
        [1024, 1, 1],
        0,
        &[
            U64(N64),
            U64(COLUMNS as u64),
            U64(2),
            Sizes(&[ROWS as u64, COLUMNS as u64, COLUMNS as u64, 1]),
            Reads(Floats, MANY),
            Writes(ROWS),
        ],
    ),
    candle(
        "reduce",
        "fast_argmax_f32",
        ROWS,
        [1024, 1, 1],
        0,
        &[
            U64(N64),
            U64(COLUMNS as u64),
            U64(2),
            Sizes(&[ROWS as u64, COLUMNS as u64, COLUMNS as u64, 1]),
            Reads(Floats, MANY),
            Writes(ROWS),
        ],
    ),
    candle(
        "reduce",
        "softmax_f32",
        ROWS,
        [1, 32, 1],
        0,
        &[Reads(Floats, MANY), Writes(MANY), U32(COLUMNS)],
    ),
    candle(
        "reduce",
        "rmsnorm_f32",
        ROWS,
        [1024, 1, 1],
        0,
        &[
            Reads(Floats, MANY),
            Writes(MANY),
            Reads(Floats, COLUMNS),
            U32(COLUMNS),
            U32(1024),
            F32(1e-5),
        ],
    ),
    candle(
        "reduce",
        "layernorm_f32",
        ROWS,
        [1024, 1, 1],
        0,
        &[
            Reads(Floats, MANY),
            Writes(MANY),
            Reads(Floats, COLUMNS),
            Reads(Floats, COLUMNS),
            U32(COLUMNS),
            U32(1024),
            F32(1e-5),
        ],
    ),
    candle(
        "reduce",
        "rope_f32",
        MANY / 2048,
        [1024, 1, 1],
        0,
        &[
            Reads(Floats, MANY),
            Reads(Floats, 1 << 18),
            Reads(Floats, 1 << 18),
            Writes(MANY),
            U32(128),
            U32(1 << 19),
            U32(128),
            U32(0),
        ],
    ),
    candle(
        "sort",
        "asort_asc_f32",
        4096,
        [1024, 1, 1],
        4096,
        &[Reads(Floats, 1 << 22), Writes(1 << 22), U32(1024), U32(1024)],
    ),
    candle(
        "indexing",
        "gather_u32_f32",
        (1 << 25) / 1024,
        [1024, 1, 1],
        0,
        &[
            U64(1 << 25),
            Reads(Below(4096), 1 << 25),
            Reads(Floats, 1 << 25),
            Writes(1 << 25),
            U64(1 << 13),
            U64(4096),
            U64(4096),
            U64(1),
        ],
    ),
    candle(
        "indexing",
        "is_u32_f32",
        (1 << 25) / 1024,
        [1024, 1, 1],
        0,
        &[
            U64(1 << 25),
            U64(1),
            Sizes(&[1 << 15, 1]),
            Reads(Below(1 << 15), 1 << 15),
            Reads(Floats, 1 << 25),
            Writes(1 << 25),
            U64(1),
            U64(1 << 15),
            U64(1 << 15),
            U64(1 << 10),
        ],
    ),
    candle(
        "conv",
        "conv2d_f32",
        (8 * 64 * 64 * 64) / 1024,
        [1024, 1, 1],
        0,
        &[
            U64(8 * 64 * 64 * 64),
            U64(64),
            U64(64),
            U64(1),
            U64(1),
            U64(1),
            Sizes(&[8, 64, 64, 64, 1 << 18, 1 << 12, 64, 1, 64, 64, 3, 3, 576, 9, 3, 1]),
            Reads(Floats, 8 * 64 * 64 * 64),
            Reads(Floats, 64 * 64 * 9),
            Writes(8 * 64 * 64 * 64),
        ],
    ),
    candle(
        "conv",
        "im2col_f32",
        (8 * 64 * 64 * 576) / 1024,
        [1024, 1, 1],
        0,
        &[
            U64(8 * 64 * 64 * 576),
            U64(64),
            U64(64),
            U64(3),
            U64(3),
            U64(1),
            U64(1),
            U64(1),
            Sizes(&[8, 64, 64, 64, 1 << 18, 1 << 12, 64, 1]),
            Reads(Floats, 8 * 64 * 64 * 64),
            Writes(8 * 64 * 64 * 576),
        ],
    ),
    candle(
        "conv",
        "avg_pool2d_f32",
        (1 << 24) / 1024,
        [1024, 1, 1],
        0,
        &[
            U64(N64),
            U64(2),
            U64(2),
            U64(2),
            U64(2),
            Sizes(&[16, 64, 256, 256, 64 << 16, 1 << 16, 256, 1]),
            Reads(Floats, MANY),
            Writes(1 << 24),
        ],
    ),
    candle(
        "conv",
        "upsample_nearest2d_f32",
        MANY / 1024,
        [1024, 1, 1],
        0,
        &[
            U64(256),
            U64(256),
            F64(0.5),
            F64(0.5),
            Sizes(&[16, 64, 128, 128, 64 << 14, 1 << 14, 128, 1]),
            Reads(Floats, 1 << 24),
            Writes(MANY),
        ],
    ),
    // Blocks of 32 weights are 18 bytes: any bits are weights.
    candle(
        "quantized",
        "dequantize_mul_mat_vec_q4_0_cuda",
        1 << 16,
        [32, 1, 1],
        0,
        &[
            Reads(Words, (1 << 16) * (COLUMNS / 32) * 18 / 4),
            Reads(Floats, COLUMNS),
            Writes(1 << 16),
            U32(COLUMNS),
            U32(1 << 16),
        ],
    ),
    ggml(
        "scale",
        "_Z9scale_f32IfEv",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        &[Reads(Floats, MANY), Writes(MANY), F32(1.5), F32(0.25), U64(N64)],
    ),
    ggml(
        "norm",
        "_Z8norm_f32ILi1024E",
        [ROWS, 1, 1],
        [1024, 1, 1],
        &[
            Reads(Floats, MANY),
            Writes(MANY),
            U32(COLUMNS),
            U64(COLUMNS as u64),
            U64(0),
            U64(0),
            F32(1e-5),
        ],
    ),
    ggml(
        "norm",
        "_Z14group_norm_f32ILi1024E",
        [ROWS, 1, 1],
        [1024, 1, 1],
        &[Reads(Floats, MANY), Writes(MANY), U32(COLUMNS), U32(MANY), F32(1e-5)],
    ),
    ggml(
        "softmax",
        "_Z17soft_max_back_f32",
        [ROWS, 1, 1],
        [32, 1, 1],
        &[Reads(Floats, MANY), Reads(Floats, MANY), Writes(MANY), U32(COLUMNS), F32(1.0)],
    ),
    ggml(
        "sumrows",
        "_Z15reduce_rows_f32ILb0E",
        [ROWS, 1, 1],
        [512, 1, 1],
        &[Reads(Floats, MANY), Writes(ROWS), U32(COLUMNS)],
    ),
    ggml(
        "argmax",
        "_Z10argmax_f32",
        [ROWS, 1, 1],
        [1024, 1, 1],
        &[Reads(Floats, MANY), Writes(ROWS), U64(COLUMNS as u64)],
    ),
    ggml(
        "diagmask",
        "_Z17diag_mask_inf_f32",
        [ROWS, COLUMNS / 32, 1],
        [1, 32, 1],
        &[Reads(Floats, MANY), Writes(MANY), U32(COLUMNS), U32(COLUMNS), U32(0)],
    ),
    ggml(
        "softcap",
        "_Z11softcap_f32",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        &[Reads(Floats, MANY), Writes(MANY), F32(0.1), F32(30.0), U32(MANY)],
    ),
    ggml(
        "clamp",
        "_Z15op_clamp_kernelIfEv",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        &[Reads(Floats, MANY), Writes(MANY), F32(-0.5), F32(0.5), U32(MANY)],
    ),
    ggml(
        "arange",
        "_Z10arange_f32",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        &[Writes(MANY), U32(MANY), F32(0.0), F32(0.5)],
    ),
    ggml(
        "roll",
        "_Z13roll_f32_cuda",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        &[
            Reads(Floats, MANY),
            Writes(MANY),
            U64(COLUMNS as u64),
            U64(ROWS as u64),
            U64(1),
            U64(1),
            U32(7),
            U32(3),
            U32(0),
            U32(0),
        ],
    ),
    ggml(
        "upscale",
        "_Z11upscale_f32PKf",
        [MANY / 256, 1, 1],
        [256, 1, 1],
        &[
            Reads(Floats, MANY / 4),
            Writes(MANY),
            U32(4),
            U32(4 * (COLUMNS / 2)),
            U32(MANY),
            U32(MANY),
            U32(COLUMNS),
            U32(ROWS),
            U32(1),
            U32(1),
            F32(2.0),
            F32(2.0),
            F32(1.0),
            F32(1.0),
        ],
    ),
];
