//! The driver itself: is it there, is it new enough, which cards does it see.

use crate::error::GpuError;
use cudarc::driver::{result, sys};
use std::fmt;

/// CUDA 12.0, which driver R525 brought.
const OLDEST_DRIVER: i32 = 12000;
/// Compute capability 8.0.
const OLDEST_CARD: i32 = 8;

/// A card that the driver sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardInfo {
    /// The driver's index.
    pub index: usize,
    /// As nvidia-smi prints it.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: u32,
    /// All of its memory.
    pub memory: u64,
    /// Most dynamic shared memory that a block may ask for.
    pub shared_per_block: u32,
}

impl CardInfo {
    /// The kernels run on it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.capability.0 >= OLDEST_CARD
    }
}

impl fmt::Display for CardInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        let memory = self.memory as f64 / f64::from(1 << 30);
        write!(
            f,
            "card {}: {}, {memory:.1} GiB, compute capability {major}.{minor}, {}",
            self.index, self.name, self.uuid
        )
    }
}

/// Every card that the driver sees, usable or not.
///
/// # Errors
/// No driver, an old one, or one that does not start. Never panics.
pub fn cards() -> Result<Vec<CardInfo>, GpuError> {
    start()?;
    let count = check("cuDeviceGetCount", result::device::get_count())?;
    (0..count).map(describe).collect()
}

/// The card that a wish names: an index, `CUDA<index>` as llama.cpp prints it, a UUID or the beginning of one. Without a wish the
/// usable card with most memory, the first of equals.
///
/// # Errors
/// As [`cards`]; no such card; one that is too old.
pub fn choose(wish: Option<&str>) -> Result<CardInfo, GpuError> {
    pick(&cards()?, wish)
}

/// The choice among known cards.
fn pick(all: &[CardInfo], wish: Option<&str>) -> Result<CardInfo, GpuError> {
    let found = match wish {
        None => {
            let usable = all.iter().filter(|card| card.is_usable());
            let best = usable.max_by_key(|card| (card.memory, std::cmp::Reverse(card.index)));
            best.or_else(|| all.first()).ok_or(GpuError::NoCard)?
        }
        Some(wish) => {
            let number = wish.strip_prefix("CUDA").or_else(|| wish.strip_prefix("cuda")).unwrap_or(wish);
            let index = number.parse::<usize>().ok();
            let uuid = |card: &&CardInfo| {
                let bare = card.uuid.trim_start_matches("GPU-");
                !wish.is_empty() && (card.uuid.starts_with(wish) || bare.starts_with(wish))
            };
            let found = match index {
                Some(index) => all.iter().find(|card| card.index == index),
                None => all.iter().find(uuid),
            };
            found.ok_or_else(|| GpuError::NoSuchCard {
                asked: wish.to_string(),
                there: match all {
                    [] => "none".to_string(),
                    _ => all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
                },
            })?
        }
    };
    match found.is_usable() {
        true => Ok(found.clone()),
        false => Err(GpuError::OldCard {
            name: found.name.clone(),
            major: found.capability.0,
            minor: found.capability.1,
        }),
    }
}

/// Loads libcuda, checks its version and starts it. Cheap when repeated.
pub(crate) fn start() -> Result<(), GpuError> {
    // SAFETY: loads libcuda, whose initialisers are those of an installed driver; nothing else is called.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there and this function exists in every version of it; the pointer is to a live i32.
    let told = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    fault(told)?;
    // Before any function that an older driver may lack is looked up.
    if version < OLDEST_DRIVER {
        return Err(GpuError::OldDriver { major: version / 1000, minor: version % 1000 / 10 });
    }
    match result::init() {
        Ok(()) => Ok(()),
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(GpuError::NoCard),
        Err(error) => fault(error.0),
    }
}

fn fault(code: sys::CUresult) -> Result<(), GpuError> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => {
            let (code, text) = words(code);
            Err(GpuError::DriverFault { code, text })
        }
    }
}

fn describe(ordinal: i32) -> Result<CardInfo, GpuError> {
    use sys::CUdevice_attribute as Attribute;
    let device = check("cuDeviceGet", result::device::get(ordinal))?;
    let attribute = |which| {
        // SAFETY: the device came from `cuDeviceGet`.
        check("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, which) })
    };
    let uuid = check("cuDeviceGetUuid", result::device::get_uuid(device))?;
    // SAFETY: the device came from `cuDeviceGet`.
    let memory = check("cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?;
    let positive = |value: i32| u32::try_from(value).unwrap_or(0);
    Ok(CardInfo {
        index: usize::try_from(ordinal).unwrap_or(0),
        uuid: uuid_text(&uuid.bytes.map(|byte| byte.cast_unsigned())),
        name: check("cuDeviceGetName", result::device::get_name(device))?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        processors: positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?),
        memory: memory as u64,
        shared_per_block: positive(attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?),
    })
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The driver's name of a code and its explanation.
fn words(code: sys::CUresult) -> (String, String) {
    let error = result::DriverError(code);
    let text = |words: Result<&std::ffi::CStr, _>| {
        words.map_or_else(|_| "unknown".to_string(), |words| words.to_string_lossy().into_owned())
    };
    (text(error.error_name()), text(error.error_string()))
}

/// Turns the driver's answer into ours.
pub(crate) fn check<T>(call: &'static str, answer: Result<T, result::DriverError>) -> Result<T, GpuError> {
    use sys::CUresult as Code;
    answer.map_err(|error| {
        let (code, text) = words(error.0);
        match error.0 {
            // After one of these every call of the process fails.
            Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_SYSTEM_NOT_READY => GpuError::Lost { call, code, text },
            _ => GpuError::Driver { call, code, text },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(index: usize, memory: u64, major: i32) -> CardInfo {
        let mut uuid = [0u8; 16];
        uuid[0] = 0xa0 + index as u8;
        CardInfo {
            index,
            uuid: uuid_text(&uuid),
            name: format!("Card {index}"),
            capability: (major, 0),
            processors: 1,
            memory,
            shared_per_block: 1,
        }
    }

    #[test]
    fn cards_are_named_by_index_uuid_and_llama_cpps_name() {
        let all = [card(0, 8, 8), card(1, 24, 9), card(2, 24, 8), card(3, 99, 7)];
        let index = |wish: Option<&str>| pick(&all, wish).map(|card| card.index);
        assert_eq!(index(None), Ok(1), "most memory, the first of equals, never one that is too old");
        assert_eq!(index(Some("2")), Ok(2));
        assert_eq!(index(Some("CUDA0")), Ok(0));
        assert_eq!(index(Some("GPU-a2")), Ok(2));
        assert_eq!(index(Some("a1000000-")), Ok(1));
        assert!(matches!(index(Some("3")), Err(GpuError::OldCard { major: 7, .. })));
        let error = index(Some("7")).unwrap_err().to_string();
        assert!(error.contains("no card 7") && error.contains("Card 2"), "{error}");
        assert!(matches!(index(Some("")), Err(GpuError::NoSuchCard { .. })));
        assert_eq!(pick(&[], None), Err(GpuError::NoCard));
    }

    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        // On a machine with a card this lists it; on one without it names what is missing. Neither panics.
        match cards() {
            Ok(cards) => assert!(cards.iter().all(|card| card.uuid.starts_with("GPU-"))),
            Err(error) => assert!(error.to_string().contains("--backend cpu"), "{error}"),
        }
    }

    #[test]
    fn uuids_read_as_nvidia_smi_prints_them() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid_text(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
