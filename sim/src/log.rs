//! What an executor does, event by event: the only thing the checker believes.
//!
//! Events carry no bytes. Whoever reads them computes sizes from the layer types and the rows.

/// A layer of a unit in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The unit, that is the (micro-batch, model chunk).
    pub unit: u32,
    /// The layer within the chunk.
    pub layer: u16,
}

/// A tensor of a layer of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Item {
    /// The layer.
    pub place: Place,
    /// The tensor's index in the layer type.
    pub tensor: u8,
}

/// In which of its forms a tensor is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// On the device as its operator made it.
    Wide,
    /// On the device in the narrow format.
    Narrow,
    /// In the host pool.
    Host,
    /// On the device as its operator made it, one row chunk of it.
    Part,
}

/// A run of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Run {
    /// The layer.
    pub place: Place,
    /// The operator's index in the layer type.
    pub op: u8,
    /// Which run.
    pub pass: Pass,
}

/// Which run of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pass {
    /// The forward.
    Forward,
    /// The forward again, to make tensors again.
    Again,
    /// The backward.
    Backward,
}

/// One thing that an executor does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The forward of a layer begins.
    Enter {
        /// The layer.
        place: Place,
        /// Its type.
        kind: u16,
        /// Rows its experts receive; 0 without a router.
        rows: u32,
    },
    /// From here on the layer's operators on routed rows run in row chunks.
    Split {
        /// The layer.
        place: Place,
        /// Row chunks of dispatch, experts and combine; 1 is no split.
        dispatch_chunks: u32,
        /// Row chunks of the experts within each of these; 1 is no split.
        expert_chunks: u32,
    },
    /// Storage is taken.
    Alloc(Item, Form),
    /// Storage is given back.
    Free(Item, Form),
    /// An operator starts.
    Start(Run),
    /// An operator ends.
    End(Run),
    /// A copy from one form to another begins. To and from the host it runs beside the operators.
    CopyStart(Item, Form, Form),
    /// A copy ends.
    CopyEnd(Item, Form, Form),
    /// The backward of a unit is over: nothing of it may be left.
    Leave {
        /// The unit.
        unit: u32,
    },
}

/// Takes the events of one rank in the order of their time.
pub trait Log {
    /// `event` happens `ns` nanoseconds after the start.
    fn record(&mut self, ns: u64, event: Event);
}
