//! A seat that does as the model's key `bad.mode` says: answers with any bytes, or misbehaves in one of many ways. Its table
//! is written by hand, so that nothing of the SDK stands between the misdeed and the host.

use bloomery_seat::abi::abi_stable::library::{
    __call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult,
};
use bloomery_seat::abi::abi_stable::{prefix_type::PrefixTypeTrait, std_types::*};
use bloomery_seat::abi::{Seat, SeatRef};
use bloomery_seat::prelude::*;
use std::io::Write;

/// Same-length parts of it are patched by the tests into other seats.
const INFO: &str = concat!(
    "{\"name\":\"bad-seat-a\",\"version\":\"0.3.0\",\"licence\":\"MIT\",\"architectures\":[\"bad\",\"bad2\"],",
    "\"language\":{\"major\":1,\"minor\":0}}"
);

extern "C" fn declare(request: RSlice<'_, u8>) -> RResult<RVec<u8>, RString> {
    let facts: ModelFacts = match bloomery_seat::facts_from_json(&String::from_utf8_lossy(request.as_slice()))
    {
        Ok(facts) => facts,
        Err(e) => return RResult::RErr(e.to_string().into()),
    };
    let answer = || RResult::ROk(facts.string("answer").unwrap_or("{}").as_bytes().to_vec().into());
    match facts.string("mode").unwrap_or("answer") {
        "answer" => answer(),
        "refuse" => RResult::RErr("the model has no key `bad.block_count`".into()),
        "guarded-panic" => {
            let guarded = bloomery_seat::export::declare_bytes(request.as_slice(), |facts| {
                panic!("index 3 of {} layers in {}", facts.tensors.len(), facts.arch)
            });
            guarded.map(RVec::from).map_err(RString::from).into()
        }
        "bare-panic" => panic!("a panic in a bare extern function"),
        "exit" => std::process::exit(0),
        "exit-with-words" => {
            eprintln!("something went wrong here");
            std::process::exit(7)
        }
        "loop" => loop {
            std::hint::spin_loop();
        },
        "sleep" => loop {
            std::thread::park();
        },
        "null" => {
            // SAFETY: none; this seat is bad.
            unsafe { std::ptr::write_volatile(std::hint::black_box(8) as *mut u8, 1) };
            answer()
        }
        "overflow" => {
            let depth = deep(1);
            RResult::RErr(depth.to_string().into())
        }
        "abort" => std::process::abort(),
        "print" => {
            println!("hello from the seat\nbloomery-seat-answer 1 0 0");
            let _ = std::io::stdout().flush();
            answer()
        }
        "flood" => loop {
            println!("{}", "hello ".repeat(10_000));
        },
        "close" => {
            for descriptor in 0..64 {
                // SAFETY: none; this seat is bad.
                drop(unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
            }
            answer()
        }
        "hoard" => {
            let mut hoard: Vec<Vec<u8>> = vec![];
            loop {
                hoard.push(Vec::with_capacity(1 << 30));
            }
        }
        "child" => {
            // A process that would outlive the probe and hold its descriptors.
            let _ = std::process::Command::new("/bin/sleep").arg("600").spawn();
            answer()
        }
        "exit-handler" => {
            extern "C" fn late() {
                eprintln!("after the answer");
                std::process::abort()
            }
            unsafe extern "C" {
                fn atexit(f: extern "C" fn()) -> i32;
            }
            // SAFETY: `late` is a function without arguments, as atexit wants it.
            unsafe { atexit(late) };
            answer()
        }
        "environment" => {
            let mut names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
            names.sort();
            let place = std::env::current_dir().unwrap_or_default();
            RResult::RErr(format!("variables {names:?} in {}", place.display()).into())
        }
        other => RResult::RErr(format!("no mode {other}").into()),
    }
}

#[inline(never)]
fn deep(n: u64) -> u64 {
    let room = std::hint::black_box([n; 256]);
    if n == u64::MAX { 0 } else { deep(n + 1) + room[(n % 256) as usize] }
}

extern "C" fn cpu_op(
    call: RSlice<'_, u8>,
    operands: RSlice<'_, RSlice<'_, f32>>,
    mut output: RSliceMut<'_, f32>,
) -> RResult<(), RString> {
    let operands: Vec<&[f32]> = operands.iter().map(|o| o.as_slice()).collect();
    bloomery_seat::export::call_bytes(call.as_slice(), &operands, output.as_mut_slice(), run)
        .map_err(RString::from)
        .into()
}

fn run(call: &CpuCall, operands: &[&[f32]], output: &mut [f32]) -> Result<()> {
    match call.name.as_str() {
        "scale" => {
            let by = call.attributes.get("by").copied().unwrap_or(1.0) as f32;
            for (o, i) in output.iter_mut().zip(operands[0]) {
                *o = i * by;
            }
            Ok(())
        }
        "panic" => panic!("in an operator of {} rows", call.rows),
        "short" => {
            output[0] = operands[3][0];
            Ok(())
        }
        other => Err(Error::refused(format!("no operator {other}"))),
    }
}

fn table() -> SeatRef {
    let seat = Seat {
        info: RStr::from_str(INFO),
        unwinds: cfg!(panic = "unwind"),
        declare,
        cpu_op: ROption::RSome(cpu_op),
    };
    seat.leak_into_prefix()
}

extern "C" fn load() -> RootModuleResult {
    __call_root_module_loader(table)
}

// SAFETY: abi_stable 0.11's own name for a library's header.
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
// SAFETY: `load` returns the type named here.
static HEADER: LibHeader = unsafe { LibHeader::from_constructor::<SeatRef>(load, CheckTypeLayout::Yes) };
