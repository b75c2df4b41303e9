//! A seat's own operator, mapped into this process: the exception, for an operator that no host kernel has.
//!
//! Its errors and panics belong to the request that ran it. Nothing can be done here about code that writes through a wild
//! pointer or ends the process; that is why plugins.toml must allow it by name.

use crate::error::SeatError;
use crate::seat::Seat;
use crate::table::{self, OpenFault};
use bloomery_seat::CpuCall;
use bloomery_seat::abi::SeatRef;
use bloomery_seat::abi::abi_stable::std_types::{ROption, RSlice, RSliceMut};
use std::os::fd::IntoRawFd;
use std::path::PathBuf;

/// A seat's operator, ready to be called from any thread.
#[derive(Clone, Copy)]
pub struct NativeOperators {
    table: SeatRef,
}

impl Seat {
    /// Maps the seat's library into this process, for good, and returns its operator.
    ///
    /// # Errors
    /// [`SeatError::NativeNotAllowed`] unless plugins.toml allows it, [`SeatError::NoNative`] when the seat has no operator,
    /// or what the loader says.
    pub fn native(&self) -> Result<NativeOperators, SeatError> {
        let operators = vec![self.info.name.clone()];
        if !self.cpu_op {
            return Err(SeatError::NoNative { operators });
        }
        if !self.allow_native {
            return Err(SeatError::NativeNotAllowed { operators });
        }
        let fault = |e: std::io::Error| SeatError::Probe { message: format!("private copy: {e}") };
        // The loader remembers libraries by path and would give back another one under a number that is used again. So the
        // descriptor is never closed; the library stays mapped anyway.
        let descriptor = self.library.copy().try_clone().map_err(fault)?.into_raw_fd();
        let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
        // SAFETY: the operator of this host allowed this very library to run in the process, and its probe ran already.
        let table = unsafe { table::open(&path) }.map_err(|e| match e {
            OpenFault::NotOpened(message) => SeatError::Open { message },
            OpenFault::NoTable(message) => SeatError::NoTable { message },
            OpenFault::OtherTable(message) => SeatError::Table { message },
        })?;
        if table.unwinds() { Ok(NativeOperators { table }) } else { Err(SeatError::Aborts) }
    }
}

impl NativeOperators {
    /// Runs one operator. Operands are f32 rows, row-major; several results lie one after another in `output`.
    ///
    /// # Errors
    /// The seat's message, or its panic with the place: the request failed, nothing else did.
    pub fn call(&self, call: &CpuCall, operands: &[&[f32]], output: &mut [f32]) -> Result<(), SeatError> {
        let refused = |message: String| SeatError::Refused { message };
        let ROption::RSome(function) = self.table.cpu_op() else {
            return Err(SeatError::NoNative { operators: vec![call.name.clone()] });
        };
        let request = serde_json::to_vec(call).map_err(|e| refused(e.to_string()))?;
        let operands: Vec<RSlice<'_, f32>> = operands.iter().map(|o| RSlice::from_slice(o)).collect();
        let result = function(
            RSlice::from_slice(&request),
            RSlice::from_slice(&operands),
            RSliceMut::from_mut_slice(output),
        );
        result.into_result().map_err(|e| refused(e.into()))
    }
}
