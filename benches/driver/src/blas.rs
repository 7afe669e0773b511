//! cuBLAS, loaded when it is asked for: a closed library, whose kernels nothing can make preemptible.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublas::sys::{
    self, cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cublasStatus_t, cudaDataType,
};

use crate::gpu::Error;
use crate::stream::Stream;

/// cuBLAS in one context, in which it is to be dropped, too.
#[derive(Debug)]
pub struct Blas(sys::cublasHandle_t);

// SAFETY: every thread may use a handle, one at a time, which `&mut self` says.
unsafe impl Send for Blas {}

impl Blas {
    /// cuBLAS in the calling thread's context. It allocates memory, so do this when nothing runs.
    ///
    /// # Errors
    ///
    /// [`Error::NoBlas`], and errors of the library.
    pub fn new() -> Result<Blas, Error> {
        // SAFETY: loads the library, which has no requirements.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoBlas);
        }
        let mut handle = ptr::null_mut();
        // SAFETY: the place is valid.
        check("cublasCreate", unsafe { sys::cublasCreate_v2(&mut handle) })?;
        Ok(Blas(handle))
    }

    /// The library's version, such as 130101.
    ///
    /// # Errors
    ///
    /// Errors of the library.
    pub fn version(&self) -> Result<u32, Error> {
        let mut version = 0;
        // SAFETY: the handle is alive, and the place is valid.
        check("cublasGetVersion", unsafe { sys::cublasGetVersion_v2(self.0, &mut version) })?;
        Ok(version as u32)
    }

    /// Puts a product into a stream of the driver's: `c = a b`, of square matrices with `size` rows. Elements of `a` and `b` have 16
    /// bits, those of `c` 32 bits; columns follow each other.
    ///
    /// # Safety
    ///
    /// The stream is one of the handle's context. The addresses are those of such matrices, which are valid until the product is
    /// done, and no other work writes them, or reads `c`, meanwhile.
    ///
    /// # Errors
    ///
    /// Errors of the library.
    pub unsafe fn multiply(
        &mut self,
        stream: *mut c_void,
        size: u32,
        [a, b, c]: [u64; 3],
    ) -> Result<(), Error> {
        let (one, zero) = (1f32, 0f32);
        let (none, size) = (cublasOperation_t::CUBLAS_OP_N, size as i32);
        // SAFETY: the caller's promises; the two factors are in host memory, as by default.
        unsafe {
            check("cublasSetStream", sys::cublasSetStream_v2(self.0, stream.cast()))?;
            let product = sys::cublasGemmEx(
                self.0,
                none,
                none,
                size,
                size,
                size,
                (&raw const one).cast(),
                a as *const c_void,
                cudaDataType::CUDA_R_16F,
                size,
                b as *const c_void,
                cudaDataType::CUDA_R_16F,
                size,
                (&raw const zero).cast(),
                c as *mut c_void,
                cudaDataType::CUDA_R_32F,
                size,
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            );
            check("cublasGemmEx", product)
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `cublasCreate`. Nothing can be done about an error.
        unsafe { sys::cublasDestroy_v2(self.0) };
    }
}

impl Stream {
    /// The driver's handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.0.cast()
    }
}

fn check(call: &'static str, status: cublasStatus_t) -> Result<(), Error> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Error::Call { call, name: format!("{status:?}") }),
    }
}
