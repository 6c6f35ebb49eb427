//! A BF16 matrix product by cuBLAS, for copies to hide behind.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use bagualu_exec::cuda::CudaDevice;
use bagualu_exec::device::DeviceSlice;

use crate::measure::Memory;
use crate::{Bench, Products};

/// Rows and columns of the matrices.
const SIZE: i32 = 8192;

/// The names under which cuBLAS comes with a toolkit or with PyTorch.
const NAMES: [&str; 4] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"];

type Create = unsafe extern "C" fn(*mut *mut c_void) -> i32;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;
#[rustfmt::skip]
type GemmEx = unsafe extern "C" fn(
    *mut c_void, i32, i32, i32, i32, i32, *const c_void, *const c_void, i32, i32, *const c_void, i32, i32,
    *const c_void, *mut c_void, i32, i32, i32, i32,
) -> i32;

pub struct Gemm {
    device: Arc<CudaDevice>,
    handle: *mut c_void,
    set_stream: SetStream,
    product: GemmEx,
    matrices: [Memory; 3],
}

/// `CUDA_R_16BF`, `CUBLAS_COMPUTE_32F`, `CUBLAS_GEMM_DEFAULT`.
const BF16: i32 = 14;
const COMPUTE_32F: i32 = 68;
const DEFAULT: i32 = -1;

impl Gemm {
    pub fn new(bench: &Bench, device: &Arc<CudaDevice>) -> Result<Self, String> {
        // SAFETY: loading a vendor's library is as safe as linking to it.
        let library = NAMES.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok());
        let library = library
            .ok_or("no cuBLAS found (libcublas.so.13, .12, .11); scripts/device-check.sh looks in PyTorch")?;
        // It is never closed, so that its functions stay.
        let library = Box::leak(Box::new(library));
        // SAFETY: the signatures of `cublas_v2.h`.
        let (create, set_stream, product) = unsafe {
            (
                *library.get::<Create>(b"cublasCreate_v2").map_err(|e| e.to_string())?,
                *library.get::<SetStream>(b"cublasSetStream_v2").map_err(|e| e.to_string())?,
                *library.get::<GemmEx>(b"cublasGemmEx").map_err(|e| e.to_string())?,
            )
        };
        let bytes = u64::from(SIZE.unsigned_abs()).pow(2) * 2;
        let matrices = [
            Memory::filled(bench, bytes, 1)?,
            Memory::filled(bench, bytes, 2)?,
            Memory::filled(bench, bytes, 3)?,
        ];
        let mut handle = null_mut();
        // SAFETY: the device is current, and the pointer is to a local.
        let status = device.with_current(|| unsafe { create(&mut handle) }).map_err(|e| e.to_string())?;
        if status != 0 {
            return Err(format!("cublasCreate returned {status}"));
        }
        Ok(Self { device: Arc::clone(device), handle, set_stream, product, matrices })
    }
}

impl Products for Gemm {
    fn submit(&self, stream: *mut c_void, count: u32) -> Result<(), String> {
        let [a, b, c] = self.matrices.each_ref().map(|matrix| address(matrix.slice));
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (one, zero) = ((&raw const one).cast(), (&raw const zero).cast());
        let submit = || {
            // SAFETY: the handle and the stream live.
            let mut status = unsafe { (self.set_stream)(self.handle, stream) };
            for _ in 0..count {
                if status != 0 {
                    break;
                }
                // SAFETY: three square matrices of `SIZE`, which live until the stream has run empty; the factors are
                // read before the call returns.
                #[rustfmt::skip]
                let product = unsafe {
                    (self.product)(
                        self.handle, 0, 0, SIZE, SIZE, SIZE, one, a, BF16, SIZE, b, BF16, SIZE, zero, c, BF16, SIZE,
                        COMPUTE_32F, DEFAULT,
                    )
                };
                status = product;
            }
            status
        };
        match self.device.with_current(submit).map_err(|error| error.to_string())? {
            0 => Ok(()),
            status => Err(format!("cuBLAS returned {status}")),
        }
    }
}

fn address(slice: DeviceSlice) -> *mut c_void {
    slice.address() as *mut c_void
}
