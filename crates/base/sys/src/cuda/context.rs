//! The primary context of a device, which every call on the device needs.
//!
//! Other code in the process can reset it (`cudaDeviceReset`). Its memory, streams, events and pinned memory are then
//! gone. The context that is retained next has the same handle, and may give the same addresses and handles to others:
//! nothing from before the reset may be freed or used. Only the id of the context shows that it is another one (driver
//! 580 on an H200).

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUcontext;
use straightway_core::{Bytes, Error, ErrorKind, Result};

use super::api::Api;
use super::code::Code;
use super::device::Device;

/// The retained primary context of a device. Clones share it; the last one releases it.
#[derive(Clone, Debug)]
pub struct Context(Arc<Retained>);

#[derive(Debug)]
struct Retained {
    device: Device,
    raw: CUcontext,
    /// The driver's id of the context; `None` if the driver is too old to have ids.
    id: Option<u64>,
}

// SAFETY: the driver's contexts may be used from any thread; `raw` is only ever pushed and popped.
unsafe impl Send for Retained {}
// SAFETY: as above, and from several threads at once.
unsafe impl Sync for Retained {}

/// Proof that the context is current on this thread. Dropping it restores the previous context.
pub(crate) struct Entered<'a> {
    api: &'static Api,
    /// The proof is valid on one thread, and not longer than the context.
    _here: PhantomData<(&'a Context, *const ())>,
}

impl Device {
    /// Retains the primary context, which the runtime API and therefore `PyTorch` share.
    pub fn context(self) -> Result<Context> {
        if self.is_prohibited()? {
            let message = "its compute mode is prohibited: no process may use it";
            let hint = format!("open it with `nvidia-smi -i {} -c DEFAULT`", self.ordinal());
            return Err(Error::new(ErrorKind::Unsupported, "use", self, message).with_hint(hint));
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a valid place for the answer, and the device one of the driver's.
        let code = unsafe { (self.api.primary_ctx_retain)(&raw mut raw, self.raw) };
        code.ok().map_err(|code| not_retained(self, code))?;
        let id = id_of(self, raw).and_then(Result::ok);
        Ok(Context(Arc::new(Retained { device: self, raw, id })))
    }
}

/// The driver's id of a context; `None` if the driver is too old to have ids.
fn id_of(device: Device, raw: CUcontext) -> Option<Result<u64, Code>> {
    let mut id = 0;
    // SAFETY: `id` is a valid place for the answer, and the context was retained.
    let code = unsafe { device.api.ctx_get_id?(raw, &raw mut id) };
    Some(code.ok().map(|()| id))
}

impl Context {
    /// Its device.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// The free memory of the device.
    pub fn memory_free(&self) -> Result<Bytes> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for the answers, and a context is current.
        let code = unsafe { (self.api().mem_get_info)(&raw mut free, &raw mut total) };
        self.check(code, "query the free memory of")?;
        Ok(Bytes(free as u64))
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        // SAFETY: the context is retained for as long as `self` lives.
        let code = unsafe { (self.api().ctx_push)(self.0.raw) };
        self.check(code, "make current")?;
        Ok(Entered {
            api: self.api(),
            _here: PhantomData,
        })
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.0.device.api
    }

    /// Returns an error unless the code is success.
    pub(crate) fn check(&self, code: Code, operation: &'static str) -> Result<()> {
        self.api().check(code, operation, self.device())
    }

    pub(crate) fn error(&self, code: Code, operation: &'static str) -> Error {
        match self.check_alive() {
            Ok(()) => self.api().error(code, operation, self.device()),
            Err(error) => error,
        }
    }

    /// Whether both are the same context.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.0.raw, self.0.id) == (other.0.raw, other.0.id)
    }

    /// Whether it was not reset since it was retained, as far as the driver tells.
    pub(crate) fn is_alive(&self) -> bool {
        let Retained {
            device,
            raw,
            id: Some(id),
        } = *self.0
        else {
            return true;
        };
        match id_of(device, raw) {
            Some(Ok(now)) => now == id,
            Some(Err(code)) => code != Code::CONTEXT_DESTROYED,
            None => true,
        }
    }

    /// Returns an error if it was reset since it was retained.
    pub fn check_alive(&self) -> Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        let message = "other code in this process has reset it, and its memory is lost";
        Err(Error::new(ErrorKind::Transient, "use", self.device(), message)
            .with_hint("load again into new memory, and do not call `cudaDeviceReset` while memory is in use"))
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once in `Device::context`, released once here.
        let code = unsafe { (self.device.api.primary_ctx_release)(self.device.raw) };
        if let Err(code) = code.ok() {
            tracing::warn!(device = %self.device, ?code, "the context was not released");
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `enter` pushed one context on this thread; guards nest, so it is on top.
        let code = unsafe { (self.api.ctx_pop)(&raw mut raw) };
        if let Err(code) = code.ok() {
            tracing::warn!(?code, "the thread's former context was not restored");
        }
    }
}

fn not_retained(device: Device, code: Code) -> Error {
    let error = device.api.error(code, "use", device);
    match code {
        Code::DEVICE_UNAVAILABLE => {
            let (number, message) = (device.ordinal(), "another process holds it exclusively");
            Error::new(ErrorKind::Transient, "use", device, message).with_hint(format!(
                "end that process (`nvidia-smi -i {number}` names it), or share the device with \
                 `nvidia-smi -i {number} -c DEFAULT`"
            ))
        }
        Code::OUT_OF_MEMORY => error.with_hint("the device has no room for a context: see who uses it in `nvidia-smi`"),
        _ => error,
    }
}
