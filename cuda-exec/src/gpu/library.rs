//! Shared libraries looked for at run time.

use std::ffi::c_void;
use std::path::Path;

use crate::device::{Backend, DeviceError, HostFunction};

/// A loaded library. It is never closed: the vendors' libraries leave exit handlers and threads behind, and DTK's crash
/// when theirs is unloaded.
pub(crate) struct Library {
    inner: std::mem::ManuallyDrop<libloading::Library>,
    backend: Backend,
    name: &'static str,
}

impl Library {
    /// The library at `path` or else the first of `names` that loads; `name` is what errors call it.
    pub(crate) fn load(
        backend: Backend,
        name: &'static str,
        names: &[&str],
        path: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        let mut reason = String::from("no name to look for");
        let given = path.map(|path| vec![path.as_os_str()]);
        for candidate in given.unwrap_or_else(|| names.iter().map(std::ffi::OsStr::new).collect()) {
            // SAFETY: the initialisers of a vendor's library are as safe as linking to it would be.
            match unsafe { libloading::Library::new(candidate) } {
                Ok(library) => {
                    return Ok(Self { inner: std::mem::ManuallyDrop::new(library), backend, name });
                }
                Err(error) => reason = say(&error),
            }
        }
        Err(DeviceError::Absent { backend, library: name, reason })
    }

    /// The function `symbol`.
    ///
    /// # Safety
    /// - `F` is the type of a pointer to a C function of that signature.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &'static str) -> Result<F, DeviceError> {
        // SAFETY: the caller vouches for the type. The pointer stays good since the library is never closed.
        match unsafe { self.inner.get::<F>(symbol.as_bytes()) } {
            Ok(function) => Ok(*function),
            Err(error) => Err(DeviceError::Absent {
                backend: self.backend,
                library: symbol,
                reason: format!("not in {}: {}", self.name, say(&error)),
            }),
        }
    }
}

/// What the loader says.
fn say(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// A struct of C functions, looked up together, so that a library that lacks one is refused when it is opened.
///
/// ```text
/// table! { struct Memory { free(memory: *mut c_void) -> (); } }
/// ```
macro_rules! table {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident {
            $($name:ident ( $($argument:ident : $type:ty),* $(,)? ) -> $result:ty;)*
        }
    ) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the library's own names")]
        #[derive(Clone, Copy)]
        $visibility struct $table {
            $($visibility $name: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        impl $table {
            #[allow(dead_code, reason = "a table may be filled from another vendor's")]
            $visibility fn load(library: &$crate::gpu::library::Library) -> Result<Self, $crate::device::DeviceError> {
                Ok(Self {
                    // SAFETY: the table holds the signatures of the library's headers.
                    $($name: unsafe { library.function(stringify!($name)) }?,)*
                })
            }
        }
    };
}

pub(crate) use table;

/// A function for a C library, which does not unwind.
pub(crate) type CHostFunction = unsafe extern "C" fn(*mut c_void);

/// `function` for a library to call.
pub(crate) fn c_host_function(function: HostFunction) -> CHostFunction {
    // SAFETY: the two types differ only in whether the caller lets a panic through, and whoever submits a function to a
    // vendor's library promises that it does not unwind.
    unsafe { std::mem::transmute::<HostFunction, CHostFunction>(function) }
}
