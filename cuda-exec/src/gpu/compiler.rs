//! Compilers of kernels at run time: NVRTC and hiprtc, which have the same functions under two prefixes.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use super::library::{Library, table};
use crate::device::{Backend, DeviceError};

table! {
    /// NVRTC, since 11.1. Cubins and not PTX: a driver takes them from a newer compiler of its major version, PTX it
    /// does not.
    struct Nvrtc {
        nvrtcCreateProgram(program: *mut *mut c_void, source: *const c_char, name: *const c_char, headers: i32, texts: *const *const c_char, names: *const *const c_char) -> i32;
        nvrtcCompileProgram(program: *mut c_void, count: i32, options: *const *const c_char) -> i32;
        nvrtcGetCUBINSize(program: *mut c_void, bytes: *mut usize) -> i32;
        nvrtcGetCUBIN(program: *mut c_void, code: *mut c_char) -> i32;
        nvrtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize) -> i32;
        nvrtcGetProgramLog(program: *mut c_void, log: *mut c_char) -> i32;
        nvrtcDestroyProgram(program: *mut *mut c_void) -> i32;
        nvrtcGetErrorString(code: i32) -> *const c_char;
    }
}

#[cfg(feature = "hip")]
table! {
    /// hiprtc.
    struct Hiprtc {
        hiprtcCreateProgram(program: *mut *mut c_void, source: *const c_char, name: *const c_char, headers: i32, texts: *const *const c_char, names: *const *const c_char) -> i32;
        hiprtcCompileProgram(program: *mut c_void, count: i32, options: *const *const c_char) -> i32;
        hiprtcGetCodeSize(program: *mut c_void, bytes: *mut usize) -> i32;
        hiprtcGetCode(program: *mut c_void, code: *mut c_char) -> i32;
        hiprtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize) -> i32;
        hiprtcGetProgramLog(program: *mut c_void, log: *mut c_char) -> i32;
        hiprtcDestroyProgram(program: *mut *mut c_void) -> i32;
        hiprtcGetErrorString(code: i32) -> *const c_char;
    }
}

/// A compiler of either vendor. Both tables have these types in this order.
pub(crate) struct Compiler {
    functions: Nvrtc,
    /// What errors call it.
    call: &'static str,
}

impl Compiler {
    /// NVRTC under the first of `names`, or at `path`.
    #[cfg(feature = "cuda")]
    pub(crate) fn nvrtc(names: &[&str], path: Option<&Path>) -> Result<Self, DeviceError> {
        let library = Library::load(Backend::Cuda, "libnvrtc.so", names, path)?;
        Ok(Self { functions: Nvrtc::load(&library)?, call: "nvrtcCompileProgram" })
    }

    /// hiprtc under the first of `names`, or at `path`.
    #[cfg(feature = "hip")]
    pub(crate) fn hiprtc(names: &[&str], path: Option<&Path>) -> Result<Self, DeviceError> {
        let library = Library::load(Backend::Hip, "libhiprtc.so", names, path)?;
        let hiprtc = Hiprtc::load(&library)?;
        let functions = Nvrtc {
            nvrtcCreateProgram: hiprtc.hiprtcCreateProgram,
            nvrtcCompileProgram: hiprtc.hiprtcCompileProgram,
            nvrtcGetCUBINSize: hiprtc.hiprtcGetCodeSize,
            nvrtcGetCUBIN: hiprtc.hiprtcGetCode,
            nvrtcGetProgramLogSize: hiprtc.hiprtcGetProgramLogSize,
            nvrtcGetProgramLog: hiprtc.hiprtcGetProgramLog,
            nvrtcDestroyProgram: hiprtc.hiprtcDestroyProgram,
            nvrtcGetErrorString: hiprtc.hiprtcGetErrorString,
        };
        Ok(Self { functions, call: "hiprtcCompileProgram" })
    }

    /// Code for `options`: a cubin or a code object.
    pub(crate) fn compile(&self, source: &CStr, options: &[CString]) -> Result<Vec<u8>, DeviceError> {
        let functions = &self.functions;
        let mut program = null_mut();
        // SAFETY: the strings live, and no headers are given.
        let code = unsafe {
            (functions.nvrtcCreateProgram)(
                &mut program,
                source.as_ptr(),
                c"bagualu.cu".as_ptr(),
                0,
                null(),
                null(),
            )
        };
        self.check(code, String::new)?;
        let program = Program { functions, raw: program };
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives, and the strings do.
        let code =
            unsafe { (functions.nvrtcCompileProgram)(program.raw, options.len() as i32, options.as_ptr()) };
        self.check(code, || program.log())?;
        program.code(self)
    }

    fn check(&self, code: i32, log: impl FnOnce() -> String) -> Result<(), DeviceError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: any number may be asked for; the text is static and terminated.
        let mut message = unsafe {
            let text = (self.functions.nvrtcGetErrorString)(code);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        let log = log();
        if !log.is_empty() {
            message = format!("{message}\n{log}");
        }
        Err(DeviceError::Library { call: self.call, code: code.into(), message })
    }
}

/// A program of the compiler, until it is dropped.
struct Program<'a> {
    functions: &'a Nvrtc,
    raw: *mut c_void,
}

impl Program<'_> {
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program lives, and the pointer is to a local.
        let code = unsafe { (self.functions.nvrtcGetProgramLogSize)(self.raw, &mut bytes) };
        if code != 0 || bytes == 0 {
            return String::new();
        }
        let mut log = vec![0_u8; bytes];
        // SAFETY: the log has that many bytes.
        let code = unsafe { (self.functions.nvrtcGetProgramLog)(self.raw, log.as_mut_ptr().cast()) };
        if code != 0 {
            return String::new();
        }
        String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
    }

    fn code(&self, compiler: &Compiler) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = 0;
        // SAFETY: the program lives, and the pointer is to a local.
        let code = unsafe { (self.functions.nvrtcGetCUBINSize)(self.raw, &mut bytes) };
        compiler.check(code, String::new)?;
        let mut image = vec![0_u8; bytes];
        // SAFETY: the code has that many bytes.
        let code = unsafe { (self.functions.nvrtcGetCUBIN)(self.raw, image.as_mut_ptr().cast()) };
        compiler.check(code, String::new)?;
        Ok(image)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `compile`, and given up here.
        let _ = unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fp8::kernel;

    /// Compiles the casts, and something that is no kernel, with a compiler that may not be here.
    fn try_out(compiler: Result<Compiler, DeviceError>, architectures: &[&str]) {
        let compiler = match compiler {
            Ok(compiler) => compiler,
            Err(error) => return println!("skipped: {error}"),
        };
        let source = CString::new(kernel::SOURCE).unwrap();
        for architecture in architectures {
            let options = [CString::new(*architecture).unwrap()];
            let image = compiler.compile(&source, &options).expect("the casts compile");
            println!("{architecture}: {} bytes", image.len());
            for name in kernel::names() {
                assert!(
                    image.windows(name.len()).any(|part| part == name.as_bytes()),
                    "{architecture}: {name}"
                );
            }
            let error = compiler.compile(c"no kernel", &options).unwrap_err();
            let log = error.to_string();
            assert!(log.contains("error:"), "the compiler's log is in the error: {log}");
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn nvrtc_compiles_where_it_is() {
        let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
        let architectures = ["--gpu-architecture=sm_80", "--gpu-architecture=sm_90"];
        try_out(Compiler::nvrtc(&names, None), &architectures);
    }

    #[cfg(feature = "hip")]
    #[test]
    fn hiprtc_compiles_where_it_is() {
        let names = ["libhiprtc.so", "libamdhip64.so.5", "libamdhip64.so"];
        try_out(Compiler::hiprtc(&names, None), &["--offload-arch=gfx906", "--offload-arch=gfx90a"]);
    }
}
