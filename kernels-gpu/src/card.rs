//! A card: one context, one stream, one module of kernels, and memory of its own.

use crate::driver::{CardInfo, check, choose};
use crate::error::GpuError;
use crate::launch::{Command, KernelId, Launch, PinnedId, RecordingId};
use crate::machine::{LoadError, LoadItem, Machine, same_length};
use crate::memory::{Allocation, Buffer, Ledger};
use crate::module::Module;
use crate::upload;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// Choices for a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CardOptions {
    /// Index, `CUDA<index>` or UUID; without it the usable card with most memory.
    pub card: Option<String>,
    /// Most bytes that may be allocated: makes a large card act like a small one.
    pub memory_limit: Option<u64>,
}

/// An opened card.
pub struct Card {
    info: CardInfo,
    // Dropped in this order: what runs, what it runs on, then the context.
    recordings: Vec<Recording>,
    module: Module,
    kernels: Vec<(String, sys::CUfunction)>,
    pinned: Vec<PinnedMemory>,
    blocks: Vec<DeviceMemory>,
    ledger: Ledger,
    /// Nothing was given since the last wait.
    idle: bool,
    /// Launches that may begin early do so.
    overlaps: bool,
    stream: Stream,
    context: Arc<Context>,
}

// SAFETY: the driver's handles may be used from any thread that has the context current, and every method makes it current first;
// `&self` methods only call driver functions that are safe to call concurrently.
unsafe impl Send for Card {}

impl Card {
    /// Opens a card and loads the kernels that suit it. The driver compiles them when it sees them for the first time.
    ///
    /// # Errors
    /// See [`choose`]; the module does not load.
    pub fn open(options: &CardOptions) -> Result<Card, GpuError> {
        let info = choose(options.card.as_deref())?;
        let context = Arc::new(Context::retain(&info)?);
        context.bind()?;
        let stream = Stream::new(&context)?;
        let module = Module::load(&info, &context)?;
        let overlaps = module.overlaps();
        Ok(Card {
            info,
            recordings: Vec::new(),
            module,
            kernels: Vec::new(),
            pinned: Vec::new(),
            blocks: Vec::new(),
            ledger: Ledger::new(options.memory_limit),
            idle: true,
            overlaps,
            stream,
            context,
        })
    }

    /// What the driver says of it.
    #[must_use]
    pub fn info(&self) -> &CardInfo {
        &self.info
    }

    fn give(&self, command: &Command) -> Result<(), GpuError> {
        let stream = self.stream.0;
        match command {
            Command::Launch(launch) => self.launch(launch),
            Command::Upload { from, at, to } => {
                let bytes = self.pinned_memory(*from)?.part(*at, to.bytes())?;
                // SAFETY: pinned memory of this length lives as long as the card; it is only handed out after a wait.
                check("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to.address(), bytes, stream) })
            }
            Command::Download { from, to, at } => {
                let memory = self.pinned_memory(*to)?;
                memory.part(*at, from.bytes())?;
                // SAFETY: the range was checked; pinned memory lives as long as the card and is only handed out after a wait.
                let code = unsafe {
                    let target = memory.pointer.cast::<u8>().add(usize::try_from(*at).unwrap_or(0));
                    let length = usize::try_from(from.bytes()).unwrap_or(0);
                    sys::cuMemcpyDtoHAsync_v2(target.cast::<c_void>(), from.address(), length, stream)
                };
                check("cuMemcpyDtoHAsync", code.result())
            }
            Command::Copy { from, to } => {
                same_length("a copy", from.bytes(), to.bytes())?;
                let length = usize::try_from(from.bytes()).unwrap_or(0);
                // SAFETY: both ranges lie in allocations of this card (only it makes buffers) and are as long.
                check("cuMemcpyDtoDAsync", unsafe {
                    result::memcpy_dtod_async(to.address(), from.address(), length, stream)
                })
            }
            Command::Clear(buffer) => {
                let length = usize::try_from(buffer.bytes()).unwrap_or(0);
                // SAFETY: the range lies in an allocation of this card.
                check("cuMemsetD8Async", unsafe {
                    result::memset_d8_async(buffer.address(), 0, length, stream)
                })
            }
        }
    }

    fn launch(&self, launch: &Launch) -> Result<(), GpuError> {
        let (_, function) = self
            .kernels
            .get(launch.kernel.0 as usize)
            .ok_or_else(|| GpuError::NoKernel(format!("kernel number {}", launch.kernel.0)))?;
        let mut words = [0u64; MOST_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        if launch.arguments.len() > MOST_ARGUMENTS {
            return Err(GpuError::NoKernel(format!("a launch of {} arguments", launch.arguments.len())));
        }
        for ((word, pointer), argument) in words.iter_mut().zip(&mut pointers).zip(&launch.arguments) {
            *word = argument.word();
            *pointer = (&raw mut *word).cast::<c_void>();
        }
        let mut attribute = overlap_attribute();
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.stream.0,
            attrs: &raw mut attribute,
            numAttrs: u32::from(launch.overlaps && self.overlaps),
        };
        // SAFETY: the function belongs to the loaded module; every pointer leads to an eight-byte word that outlives the call, and the
        // driver copies as many bytes as the entry declares. What a kernel does with the addresses is checked by its launcher.
        let code = unsafe {
            sys::cuLaunchKernelEx(&raw const config, *function, pointers.as_mut_ptr(), std::ptr::null_mut())
        };
        check("cuLaunchKernelEx", code.result())
    }

    /// Records commands as a graph; the context is current.
    fn capture(&self, commands: &[Command]) -> Result<Recording, GpuError> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not capturing: capture begins and ends in this function.
        check("cuStreamBeginCapture", unsafe { result::stream::begin_capture(self.stream.0, mode) })?;
        let given = commands.iter().try_for_each(|command| self.give(command));
        // SAFETY: as above. Also after a failure: a stream must not stay in capture.
        let graph = unsafe { result::stream::end_capture(self.stream.0) };
        given?;
        let graph = check("cuStreamEndCapture", graph)?;
        // SAFETY: the graph is whole; the executable keeps what it needs of it.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags_enum(0)) };
        // SAFETY: the graph is not used after this.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let executable = check("cuGraphInstantiate", executable)?;
        check("cuGraphDestroy", destroyed)?;
        let recording = Recording { executable, context: self.context.clone() };
        // SAFETY: both handles are alive.
        check("cuGraphUpload", unsafe { result::graph::upload(recording.executable, self.stream.0) })?;
        Ok(recording)
    }

    fn pinned_memory(&self, id: PinnedId) -> Result<&PinnedMemory, GpuError> {
        let none = GpuError::Range { what: "pinned memory", from: id.0 as u64, to: id.0 as u64, bytes: 0 };
        self.pinned.get(id.0).ok_or(none)
    }

    fn recording(&self, id: RecordingId) -> Result<&Recording, GpuError> {
        let none = GpuError::Range { what: "a recording", from: id.0 as u64, to: id.0 as u64, bytes: 0 };
        self.recordings.get(id.0).ok_or(none)
    }

    fn start(&self, recording: &Recording) -> Result<(), GpuError> {
        // SAFETY: both handles are alive.
        check("cuGraphLaunch", unsafe { result::graph::launch(recording.executable, self.stream.0) })
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream.0) })
    }
}

/// More than any entry has.
const MOST_ARGUMENTS: usize = 48;

fn overlap_attribute() -> sys::CUlaunchAttribute {
    // SAFETY: a plain C structure for which zeroes are valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    attribute
}

impl Machine for Card {
    fn describe(&self) -> String {
        format!("{} ({})", self.info, self.module.name())
    }

    fn processors(&self) -> u32 {
        self.info.processors
    }

    fn shared_per_block(&self) -> u32 {
        self.info.shared_per_block
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    fn free_bytes(&self) -> Result<u64, GpuError> {
        self.context.bind()?;
        let (free, _) = check("cuMemGetInfo", result::mem_get_info())?;
        Ok(self.ledger.free(free as u64))
    }

    fn allocate(&mut self, name: &str, bytes: u64, advice: &'static str) -> Result<Buffer, GpuError> {
        let free = self.free_bytes()?;
        self.ledger.admit(name, bytes, free, advice)?;
        let length = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: the context is current; the memory is used through buffers of this length only.
        let address = match unsafe { result::malloc_sync(length) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(GpuError::OutOfMemory { buffer: name.to_string(), bytes, free, advice });
            }
            answer => check("cuMemAlloc", answer)?,
        };
        self.blocks.push(DeviceMemory { address, context: self.context.clone() });
        self.ledger.add(name, bytes);
        Ok(Buffer::new(address, bytes))
    }

    fn allocations(&self) -> &[Allocation] {
        self.ledger.all()
    }

    fn pin(&mut self, bytes: u64) -> Result<PinnedId, GpuError> {
        self.context.bind()?;
        self.pinned.push(PinnedMemory::new(bytes, &self.context)?);
        Ok(PinnedId(self.pinned.len() - 1))
    }

    fn pinned(&mut self, id: PinnedId) -> Result<&mut [u8], GpuError> {
        self.wait()?;
        self.pinned_memory(id)?;
        Ok(self.pinned[id.0].bytes_mut())
    }

    fn kernel(&mut self, name: &str) -> Result<KernelId, GpuError> {
        if let Some(known) = self.kernels.iter().position(|(known, _)| known == name) {
            return Ok(KernelId(u32::try_from(known).unwrap_or(u32::MAX)));
        }
        self.context.bind()?;
        let function = self.module.function(name, self.info.shared_per_block)?;
        self.kernels.push((name.to_string(), function));
        Ok(KernelId(u32::try_from(self.kernels.len() - 1).unwrap_or(u32::MAX)))
    }

    fn run(&mut self, commands: &[Command]) -> Result<(), GpuError> {
        self.context.bind()?;
        self.idle = false;
        commands.iter().try_for_each(|command| self.give(command))
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, GpuError> {
        self.context.bind()?;
        let recording = match self.capture(commands) {
            // Drivers before 12.3 do not record launches that begin early.
            Err(error @ GpuError::Driver { .. }) if self.overlaps => {
                tracing::warn!(%error, "launches are recorded one after another");
                self.overlaps = false;
                self.capture(commands)?
            }
            recording => recording?,
        };
        self.recordings.push(recording);
        Ok(RecordingId(self.recordings.len() - 1))
    }

    fn replay(&mut self, recording: RecordingId) -> Result<(), GpuError> {
        self.context.bind()?;
        self.idle = false;
        self.start(self.recording(recording)?)
    }

    fn time(&mut self, recording: RecordingId, replays: u32) -> Result<Duration, GpuError> {
        self.context.bind()?;
        let (begin, end) = (Event::new(&self.context)?, Event::new(&self.context)?);
        let recording = self.recording(recording)?;
        begin.mark(&self.stream)?;
        for _ in 0..replays {
            self.start(recording)?;
        }
        end.mark(&self.stream)?;
        self.synchronize()?;
        // SAFETY: both events were recorded and have passed.
        let milliseconds = check("cuEventElapsedTime", unsafe { result::event::elapsed(begin.0, end.0) })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    fn wait(&mut self) -> Result<(), GpuError> {
        if !self.idle {
            self.context.bind()?;
            self.synchronize()?;
            self.idle = true;
        }
        Ok(())
    }

    fn write(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), GpuError> {
        same_length("a write", to.bytes(), bytes.len() as u64)?;
        self.context.bind()?;
        // SAFETY: the range lies in an allocation of this card; the bytes outlive the wait below.
        check("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to.address(), bytes, self.stream.0) })?;
        self.synchronize()
    }

    fn read(&self, from: Buffer, bytes: &mut [u8]) -> Result<(), GpuError> {
        same_length("a read", from.bytes(), bytes.len() as u64)?;
        self.context.bind()?;
        // SAFETY: the range lies in an allocation of this card; the bytes outlive the wait below.
        check("cuMemcpyDtoHAsync", unsafe {
            result::memcpy_dtoh_async(bytes, from.address(), self.stream.0)
        })?;
        self.synchronize()
    }

    fn load(&mut self, items: &[LoadItem<'_>], progress: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
        self.wait()?;
        upload::upload(&self.context, items, progress)
    }
}

/// The card's primary context.
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be made current on any thread.
unsafe impl Send for Context {}
// SAFETY: as above; `bind` only reads.
unsafe impl Sync for Context {}

impl Context {
    fn retain(info: &CardInfo) -> Result<Context, GpuError> {
        let ordinal = i32::try_from(info.index).unwrap_or(i32::MAX);
        let device = check("cuDeviceGet", result::device::get(ordinal))?;
        // SAFETY: the device came from `cuDeviceGet`; released in `drop`.
        let context = check("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        Ok(Context { device, context })
    }

    /// Makes it current on this thread.
    pub fn bind(&self) -> Result<(), GpuError> {
        // SAFETY: retained, so alive.
        check("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`. An error here cannot be acted upon.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Commands in order.
pub(crate) struct Stream(pub sys::CUstream, Arc<Context>);

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, GpuError> {
        let kind = result::stream::StreamKind::NonBlocking;
        Ok(Stream(check("cuStreamCreate", result::stream::create(kind))?, context.clone()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.1.bind().is_ok() {
            // SAFETY: created in `new` and not used again. An error here cannot be acted upon.
            let _ = unsafe { result::stream::destroy(self.0) };
        }
    }
}

/// A mark in a stream.
pub(crate) struct Event(pub sys::CUevent, Arc<Context>);

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event, GpuError> {
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
        Ok(Event(check("cuEventCreate", result::event::create(flags))?, context.clone()))
    }

    pub fn mark(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { result::event::record(self.0, stream.0) })
    }

    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the handle is alive.
        check("cuEventSynchronize", unsafe { result::event::synchronize(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.1.bind().is_ok() {
            // SAFETY: created in `new` and not used again. An error here cannot be acted upon.
            let _ = unsafe { result::event::destroy(self.0) };
        }
    }
}

struct Recording {
    executable: sys::CUgraphExec,
    context: Arc<Context>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated in `record` and not used again. An error here cannot be acted upon.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

struct DeviceMemory {
    address: u64,
    context: Arc<Context>,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `allocate`; buffers of it are names that only this card takes. An error here cannot be acted upon.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Host memory that the card reads and writes directly.
pub(crate) struct PinnedMemory {
    pointer: *mut c_void,
    bytes: usize,
    context: Arc<Context>,
}

impl PinnedMemory {
    /// The context must be current.
    pub fn new(bytes: u64, context: &Arc<Context>) -> Result<PinnedMemory, GpuError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the context is current; freed in `drop`.
        let pointer = check("cuMemHostAlloc", unsafe { result::malloc_host(bytes.max(1), 0) })?;
        // SAFETY: `bytes` bytes were just allocated.
        unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { pointer, bytes, context: context.clone() })
    }

    fn part(&self, from: u64, bytes: u64) -> Result<&[u8], GpuError> {
        let to = from.saturating_add(bytes);
        if to > self.bytes as u64 {
            return Err(GpuError::Range { what: "pinned memory", from, to, bytes: self.bytes as u64 });
        }
        // SAFETY: the range was checked, the memory is initialised.
        Ok(unsafe {
            std::slice::from_raw_parts(
                self.pointer.cast::<u8>().add(usize::try_from(from).unwrap_or(0)),
                usize::try_from(bytes).unwrap_or(0),
            )
        })
    }

    /// All of it. The caller has waited for the copies that use it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` initialised bytes, borrowed by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast::<u8>(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new` and not used again. An error here cannot be acted upon.
            let _ = unsafe { result::free_host(self.pointer) };
        }
    }
}
