//! The embedded kernels: one module for every card from Ampere on, one for Hopper.

use crate::card::Context;
use crate::driver::{CardInfo, check};
use crate::error::GpuError;
use crate::ptx::{self, Image};
use cudarc::driver::{result, sys};
use std::ffi::CString;
use std::sync::Arc;

/// A loaded module.
pub(crate) struct Module {
    name: &'static str,
    overlaps: bool,
    handle: sys::CUmodule,
    context: Arc<Context>,
}

impl Module {
    /// Loads the text that suits the card; the context must be current.
    pub fn load(info: &CardInfo, context: &Arc<Context>) -> Result<Module, GpuError> {
        let mut last = GpuError::NoKernel("kernels for this card".into());
        for image in ptx::for_card(info.capability) {
            // A copy of its own: embedded bytes lie anywhere, ready code wants to be aligned.
            let bytes = image.bytes.to_vec();
            // SAFETY: a whole image: an ELF file, or a zero-terminated text.
            let loaded = unsafe { result::module::load_data(bytes.as_ptr().cast()) };
            match check("cuModuleLoadData", loaded) {
                Ok(handle) => {
                    let Image { name, overlaps, .. } = image;
                    return Ok(Module { name, overlaps, handle, context: context.clone() });
                }
                Err(error) => {
                    tracing::debug!(%error, "{} does not load", image.name);
                    last = error;
                }
            }
        }
        Err(last)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its kernels wait themselves for the launches before them.
    pub fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// An entry, allowed to use as much dynamic shared memory as the card has.
    pub fn function(&self, name: &str, shared: u32) -> Result<sys::CUfunction, GpuError> {
        use sys::CUfunction_attribute_enum as Attribute;
        let missing = || GpuError::NoKernel(name.to_string());
        let entry = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the module is loaded and stays so as long as this value.
        let function = match unsafe { result::module::get_function(self.handle, entry) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_FOUND => return Err(missing()),
            answer => check("cuModuleGetFunction", answer)?,
        };
        let which = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: the function was just found.
        let fixed = check("cuFuncGetAttribute", unsafe {
            result::function::get_function_attribute(function, which)
        })?;
        let dynamic = i32::try_from(shared).unwrap_or(i32::MAX) - fixed;
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        let set = unsafe { result::function::set_function_attribute(function, which, dynamic.max(0)) };
        check("cuFuncSetAttribute", set)?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded in `load`; its functions go with the card that owns both. An error here cannot be acted upon.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}
