//! The kernels of a device: where they come from, and when.

use std::ffi::{CString, c_void};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::api::{Api, LaunchSize, Raw};
use super::image;
use crate::device::DeviceError;
use crate::fp8::kernel::{Launch, SOURCE, names};

/// Where the kernels of the casts come from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Kernels {
    /// Compiled for the device at the first cast, by NVRTC or hiprtc. Without a compiler only casts are refused.
    #[default]
    Compiled,
    /// PTX, a cubin, a fat binary, a code object or a bundle of these, read at the first cast. One that ends early is refused;
    /// otherwise it is trusted as a library is: it is code.
    File(PathBuf),
}

/// The kernels, once they are needed. They stay loaded: a cast may be under way when the device is dropped, and they end
/// with the library's context.
pub(super) struct Module<A: Api> {
    api: Arc<A>,
    kernels: Kernels,
    loaded: OnceLock<Functions>,
    /// Held while they are loaded; a failure is tried again at the next cast.
    loading: Mutex<()>,
}

/// The kernels by name.
type Functions = Vec<(&'static str, Raw)>;

impl<A: Api> Module<A> {
    pub(super) fn new(api: Arc<A>, kernels: Kernels) -> Self {
        Self { api, kernels, loaded: OnceLock::new(), loading: Mutex::new(()) }
    }

    /// Submits a cast to `stream`. The device is current.
    ///
    /// # Safety
    /// - `stream` lives.
    /// - `wide`, `values` and `scales` are memory of this device as the launch's shape needs it, aligned to their
    ///   elements, until it has ended.
    pub(super) unsafe fn launch(
        &self,
        launch: &Launch,
        [wide, values, scales]: [u64; 3],
        stream: Raw,
    ) -> Result<(), DeviceError> {
        let function = self.function(launch.name)?;
        let size = LaunchSize { grid: launch.grid, block: launch.threads };
        let mut arguments = [
            (&raw const wide).cast_mut().cast::<c_void>(),
            (&raw const values).cast_mut().cast(),
            (&raw const scales).cast_mut().cast(),
            (&raw const launch.shape).cast_mut().cast(),
        ];
        // SAFETY: the module lives as long as `self`; these are the kernel's parameters, and the caller vouches for the
        // rest.
        unsafe { self.api.launch_kernel(function, size, stream, &mut arguments) }
    }

    fn function(&self, name: &'static str) -> Result<Raw, DeviceError> {
        let loaded = match self.loaded.get() {
            Some(loaded) => loaded,
            None => self.load()?,
        };
        let found = loaded.iter().find(|(known, _)| *known == name);
        found.map(|(_, function)| *function).ok_or_else(|| DeviceError::Absent {
            backend: A::BACKEND,
            library: name,
            reason: "not a kernel of the casts".to_owned(),
        })
    }

    fn load(&self) -> Result<&Functions, DeviceError> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let image = self.image()?;
        // SAFETY: the compiler gives whole images, and a file was found to be as long as it says; PTX has a zero behind it in
        // either case.
        let module = unsafe { self.api.load(&image) }?;
        let functions = names().map(|name| {
            let terminated = CString::new(name).unwrap_or_default();
            // SAFETY: loaded just now.
            unsafe { self.api.function(module, &terminated) }.map(|function| (name, function))
        });
        match functions.collect::<Result<Vec<_>, _>>() {
            Ok(functions) => Ok(self.loaded.get_or_init(|| functions)),
            Err(error) => {
                // SAFETY: loaded just now, and not used.
                unsafe { self.api.unload(module) };
                Err(error)
            }
        }
    }

    fn image(&self) -> Result<Vec<u8>, DeviceError> {
        match &self.kernels {
            Kernels::Compiled => self.api.compile(&CString::new(SOURCE).unwrap_or_default()),
            Kernels::File(path) => {
                let unusable = |why: &dyn fmt::Display| DeviceError::Absent {
                    backend: A::BACKEND,
                    library: "the file of kernels",
                    reason: format!("{}: {why}", path.display()),
                };
                let mut image = fs::read(path).map_err(|error| unusable(&error))?;
                image::check(&image).map_err(|why| unusable(&why))?;
                image.resize(image.len() + image::ZEROS, 0);
                Ok(image)
            }
        }
    }
}
