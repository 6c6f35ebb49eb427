//! The engine's two streams, and how copies are submitted to them.

use std::sync::Arc;

use crate::device::{Device, DeviceError, DeviceSlice, Event, PinnedSlice, Stream, StreamUse};

/// One stream each way.
#[derive(Debug)]
pub(super) struct Lanes {
    device: Arc<dyn Device>,
    pub out: Stream,
    pub back: Stream,
    /// Recorded on one stream for another to wait for, again and again: whoever waits keeps the mark it saw.
    fence: Event,
}

/// A copy that was not submitted as a whole.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: DeviceError,
    /// Whether part of it is under way, with no event to say when it ends.
    pub under_way: bool,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self { error, under_way: false }
    }
}

impl Lanes {
    pub fn open(device: Arc<dyn Device>) -> Result<Self, DeviceError> {
        let out = device.create_stream(StreamUse::CopyOut)?;
        let undo = |error, streams: &[Stream]| {
            for &stream in streams {
                // The first error is the one to tell.
                let _ = device.destroy_stream(stream);
            }
            error
        };
        let back = device.create_stream(StreamUse::CopyIn).map_err(|error| undo(error, &[out]))?;
        let fence = device.create_event().map_err(|error| undo(error, &[out, back]))?;
        Ok(Self { device, out, back, fence })
    }

    /// Copies `from` into `pieces` after what was submitted to `producer`; `left` marks the end.
    ///
    /// # Safety
    /// - All of them live, and `from` unchanged, until `left` is done.
    pub unsafe fn copy_out(
        &self,
        from: DeviceSlice,
        pieces: impl Iterator<Item = PinnedSlice>,
        producer: Stream,
        left: Event,
    ) -> Result<(), Failure> {
        self.order(producer, self.out)?;
        submit(from, pieces, |part, piece| {
            // SAFETY: passed on to the caller.
            unsafe { self.device.copy_out(part, piece, self.out) }
        })?;
        self.mark(left, self.out, from)
    }

    /// Copies `pieces` into `into` after what `left` marks, and after what was submitted to `after`; `arrived` marks the end.
    ///
    /// # Safety
    /// - All of them live, and nothing else uses `into`, until `arrived` is done.
    pub unsafe fn copy_in(
        &self,
        pieces: impl Iterator<Item = PinnedSlice>,
        into: DeviceSlice,
        after: Option<Stream>,
        left: Event,
        arrived: Event,
    ) -> Result<(), Failure> {
        if let Some(after) = after {
            self.order(after, self.back)?;
        }
        // What makes a reload unable to overtake its own copy-out.
        self.device.stream_wait(self.back, left)?;
        submit(into, pieces, |part, piece| {
            // SAFETY: passed on to the caller.
            unsafe { self.device.copy_in(piece, part, self.back) }
        })?;
        self.mark(arrived, self.back, into)
    }

    /// Blocks for both, also where one fails.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let out = self.device.synchronize(self.out);
        out.and(self.device.synchronize(self.back))
    }

    /// `then` goes on after what was submitted to `first`.
    fn order(&self, first: Stream, then: Stream) -> Result<(), DeviceError> {
        self.device.record(self.fence, first)?;
        self.device.stream_wait(then, self.fence)
    }

    fn mark(&self, end: Event, stream: Stream, copied: DeviceSlice) -> Result<(), Failure> {
        let under_way = copied.bytes() > 0;
        self.device.record(end, stream).map_err(|error| Failure { error, under_way })
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let _ = self.device.destroy_event(self.fence);
        for stream in [self.out, self.back] {
            let _ = self.device.destroy_stream(stream);
        }
    }
}

/// Submits a copy of `memory` piece by piece; the pieces together are at least as long.
fn submit(
    memory: DeviceSlice,
    pieces: impl Iterator<Item = PinnedSlice>,
    mut copy: impl FnMut(DeviceSlice, PinnedSlice) -> Result<(), DeviceError>,
) -> Result<(), Failure> {
    let mut offset = 0;
    for piece in pieces {
        let bytes = piece.bytes().min(memory.bytes() - offset);
        let (Some(part), Some(piece)) = (memory.part(offset, bytes), piece.part(0, bytes)) else { break };
        if bytes == 0 {
            break;
        }
        copy(part, piece).map_err(|error| Failure { error, under_way: offset > 0 })?;
        offset += bytes;
    }
    Ok(())
}
