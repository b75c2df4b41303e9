//! A seat built against a table that is not the host's.

#[cfg(feature = "moved")]
use abi_moved as abi;
#[cfg(feature = "next")]
use abi_next as abi;

use abi::abi_stable::library::{__call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult};
use abi::abi_stable::{prefix_type::PrefixTypeTrait, std_types::*};

extern "C" fn declare(_: RSlice<'_, u8>) -> RResult<RVec<u8>, RString> {
    RResult::RErr("never called".into())
}

fn table() -> abi::SeatRef {
    let info = "{\"name\":\"other\",\"version\":\"0.1.0\",\"licence\":\"\",\"architectures\":[\"bad\"],\"language\":{\"major\":1,\"minor\":0}}";
    abi::Seat {
        info: RStr::from_str(info),
        #[cfg(feature = "next")]
        unwinds: true,
        #[cfg(feature = "moved")]
        unwinds: 1,
        declare,
        cpu_op: ROption::RNone,
    }
    .leak_into_prefix()
}

extern "C" fn load() -> RootModuleResult {
    __call_root_module_loader(table)
}

// SAFETY: abi_stable 0.11's own name for a library's header.
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
// SAFETY: `load` returns the type named here.
static HEADER: LibHeader = unsafe { LibHeader::from_constructor::<abi::SeatRef>(load, CheckTypeLayout::Yes) };
