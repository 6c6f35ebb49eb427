//! Recomputes a rank's real memory from its log, and what must hold of it.
//!
//! It shares no code with the planner, the controller or the executor, and reads no sum of theirs: bytes
//! are the layer types' own at the logged rows. Work, pending copies, tensors that are back early and host
//! slots all count.

use bagualu_core::cost::LayerModel;

use crate::log::{Event, Form, Item, Log, Pass, Place, Run};

/// The most bytes at once, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    /// Iteration, from 0.
    pub iteration: u32,
    /// Nanoseconds from the start of the iteration.
    pub ns: u64,
    /// Unit whose event it was.
    pub unit: u32,
    /// Layer within the unit's chunk.
    pub layer: u16,
    /// Bytes on the device.
    pub bytes: u64,
}

/// Something that must not happen, whatever the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// An operator reads a tensor that is not there, or not whole yet.
    ReadsMissing(Run, u8),
    /// A copy reads a form that is not there, or not whole yet.
    CopiesMissing(Item, Form),
    /// An operator's output has no storage when it ends.
    NotStored(Run, u8),
    /// Storage is taken twice.
    AllocatedTwice(Item, Form),
    /// Storage is given back that was not taken.
    FreedTwice(Item, Form),
    /// Storage is given back while a copy uses it.
    FreedInCopy(Item, Form),
    /// A unit left something behind.
    Leaked(Item),
    /// An event names a layer that was not entered, or a type, tensor or operator that does not exist.
    Unknown(Place),
    /// Time ran backwards.
    Backwards {
        /// The earlier time, which came later.
        ns: u64,
    },
}

/// What the checker found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// The most device bytes.
    pub peak: Moment,
    /// The first time that the device bytes passed the capacity.
    pub first_excess: Option<Moment>,
    /// The iterations in which they did.
    pub excess_iterations: Vec<u32>,
    /// The most host bytes.
    pub host_peak: u64,
    /// Whether the host bytes ever passed the pool.
    pub host_excess: bool,
    /// The first fault.
    pub first_fault: Option<Fault>,
    /// How many there were.
    pub faults: u64,
}

/// Follows the log of one rank.
#[derive(Debug)]
pub struct Checker<'a> {
    types: &'a [LayerModel<'a>],
    device_bytes: u64,
    host_limit: u64,
    units: Vec<Vec<Option<Entered>>>,
    iteration: u32,
    now: u64,
    /// Device bytes of tensors, and of operators' work.
    stored: u64,
    work: u64,
    host: u64,
    exceeded: bool,
    verdict: Verdict,
    curve: Option<Vec<(u64, u64)>>,
}

/// A layer in flight.
#[derive(Clone, Debug)]
struct Entered {
    kind: u16,
    rows: u32,
    /// Rows of one row chunk, and of one row chunk of the experts.
    part_rows: u32,
    expert_rows: u32,
    /// Bit sets of tensors, by [`Form`]: has storage; is whole; a copy reads or writes it.
    stored: [u64; 4],
    whole: [u64; 4],
    in_copy: [u64; 4],
    /// Tensors that had storage before.
    seen: u64,
    pass: Pass,
    /// Made in this pass and stored nowhere: part of the work of those who use it.
    passing: u64,
    /// Work of the operator that runs, bytes.
    work: u64,
}

impl<'a> Checker<'a> {
    /// A checker of a rank with these layer types, `device_bytes` for activations and `host_bytes` for
    /// offloaded tensors.
    pub fn new(types: &'a [LayerModel<'a>], device_bytes: u64, host_bytes: u64) -> Self {
        Self {
            types,
            device_bytes,
            host_limit: host_bytes,
            units: Vec::new(),
            iteration: 0,
            now: 0,
            stored: 0,
            work: 0,
            host: 0,
            exceeded: false,
            verdict: Verdict::default(),
            curve: None,
        }
    }

    /// Begins an iteration: time starts again at 0.
    pub fn begin(&mut self, iteration: u32) {
        (self.iteration, self.now, self.exceeded) = (iteration, 0, false);
    }

    /// Keeps the curve of device bytes over time from here on: (ns, bytes) at each change.
    pub fn keep_curve(&mut self) {
        self.curve = Some(Vec::new());
    }

    /// The curve kept, if it was.
    pub fn take_curve(&mut self) -> Vec<(u64, u64)> {
        self.curve.take().unwrap_or_default()
    }

    /// What was found so far.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The iteration ends in the middle: nothing of it is left.
    pub fn abandon(&mut self) {
        self.units.clear();
        (self.stored, self.work, self.host) = (0, 0, 0);
    }

    /// Device bytes now.
    pub fn device_bytes(&self) -> u64 {
        self.stored.saturating_add(self.work)
    }

    fn fault(&mut self, fault: Fault) {
        self.verdict.first_fault.get_or_insert(fault);
        self.verdict.faults += 1;
    }

    fn entered(&mut self, place: Place) -> Option<&mut Entered> {
        let layers = self.units.get_mut(place.unit as usize);
        layers.and_then(|layers| layers.get_mut(place.layer as usize)).and_then(Option::as_mut)
    }

    fn enter(&mut self, place: Place, entered: Entered) {
        let (unit, layer) = (place.unit as usize, place.layer as usize);
        if self.units.len() <= unit {
            self.units.resize_with(unit + 1, Vec::new);
        }
        let layers = &mut self.units[unit];
        if layers.len() <= layer {
            layers.resize_with(layer + 1, || None);
        }
        if layers[layer].replace(entered).is_some() {
            self.fault(Fault::Unknown(place));
        }
    }

    fn storage(&mut self, item: Item, form: Form, take: bool) {
        let types = self.types;
        let Some(entered) = self.entered(item.place) else {
            return self.fault(Fault::Unknown(item.place));
        };
        let Some((model, bytes)) = entered.bytes(types, item.tensor, form) else {
            return self.fault(Fault::Unknown(item.place));
        };
        let bit = 1u64 << item.tensor;
        let had = entered.stored[form as usize] & bit != 0;
        let in_copy = entered.in_copy[form as usize] & bit != 0;
        if had != take {
            let produced = model.ops.iter().any(|op| op.makes.bits() & bit != 0);
            entered.stored[form as usize] ^= bit;
            entered.whole[form as usize] &= !bit;
            if take && form == Form::Wide && !produced && entered.seen & bit == 0 {
                // It comes from outside the layer.
                entered.whole[form as usize] |= bit;
            }
            entered.seen |= bit;
        }
        match (had, take) {
            (true, true) => return self.fault(Fault::AllocatedTwice(item, form)),
            (false, false) => return self.fault(Fault::FreedTwice(item, form)),
            _ if in_copy => self.fault(Fault::FreedInCopy(item, form)),
            _ => {}
        }
        let sum = if form == Form::Host { &mut self.host } else { &mut self.stored };
        *sum = if take { sum.saturating_add(bytes) } else { sum.saturating_sub(bytes) };
    }

    fn copy(&mut self, item: Item, from: Form, to: Form, ends: bool) {
        let bit = 1u64 << (item.tensor & 63);
        let Some(entered) = self.entered(item.place) else {
            return self.fault(Fault::Unknown(item.place));
        };
        let source = entered.stored[from as usize] & entered.whole[from as usize] & bit != 0;
        let target = entered.stored[to as usize] & bit != 0;
        if ends {
            entered.in_copy[from as usize] &= !bit;
            entered.in_copy[to as usize] &= !bit;
            entered.whole[to as usize] |= bit;
        } else {
            entered.in_copy[from as usize] |= bit;
            entered.in_copy[to as usize] |= bit;
        }
        if !source {
            self.fault(Fault::CopiesMissing(item, from));
        }
        if !target {
            self.fault(Fault::CopiesMissing(item, to));
        }
    }

    fn start(&mut self, run: Run) {
        let types = self.types;
        let Some((entered, model)) = self.entered(run.place).and_then(|e| e.model(types).map(|m| (&*e, m)))
        else {
            return self.fault(Fault::Unknown(run.place));
        };
        let Some(op) = model.ops.get(run.op as usize) else {
            return self.fault(Fault::Unknown(run.place));
        };
        // What another pass left in registers, as it were, is gone.
        let passing = if entered.pass == run.pass { entered.passing } else { 0 };
        let there = entered.on_device() | passing;
        let needed = if run.pass == Pass::Backward { op.saves } else { op.reads };
        // An operator off the routed rows has nothing per row, so that their number does not matter.
        let expert = model.experts.contains(run.op as usize);
        let rows = if expert { entered.expert_rows } else { entered.part_rows };
        let work = if run.pass == Pass::Backward { op.backward_work } else { op.forward_work };
        let mut bytes = work.at(rows);
        if expert && rows < entered.part_rows {
            bytes = bytes.and_then(|b| b.checked_add(entered.gathering(model)?));
        }
        if run.pass == Pass::Again {
            // What is still stored is made a second time; a block input is replayed, not made.
            let twice = op.makes.iter().filter(|&t| entered.on_device() & 1 << t != 0);
            for tensor in twice.filter(|&t| !model.tensors[t].block_input) {
                bytes = bytes.and_then(|b| b.checked_add(model.tensors[tensor].bytes.at(rows)?));
            }
        }
        let bytes = bytes.unwrap_or(u64::MAX);
        if let Some(entered) = self.entered(run.place) {
            (entered.work, entered.pass, entered.passing) = (bytes, run.pass, passing);
        }
        self.work = self.work.saturating_add(bytes);
        for tensor in needed.iter().filter(|&t| there & 1 << t == 0) {
            self.fault(Fault::ReadsMissing(run, tensor as u8));
        }
    }

    fn end(&mut self, run: Run) {
        let types = self.types;
        let Some((entered, model)) = self.entered(run.place).and_then(|e| e.model(types).map(|m| (e, m)))
        else {
            return self.fault(Fault::Unknown(run.place));
        };
        let Some(op) = model.ops.get(run.op as usize) else {
            return self.fault(Fault::Unknown(run.place));
        };
        let work = core::mem::take(&mut entered.work);
        let mut missing = 0;
        if run.pass == Pass::Backward {
            entered.passing = 0;
        } else {
            let makes = op.makes.bits();
            for form in [Form::Wide, Form::Part] {
                entered.whole[form as usize] |= entered.stored[form as usize] & makes;
            }
            let saved = model.ops.iter().fold(0, |saved, op| saved | op.saves.bits());
            let inputs = (0..model.tensors.len()).filter(|&t| model.tensors[t].block_input);
            let tracked = inputs.fold(saved, |all, t| all | 1 << t);
            let unstored = makes & !entered.on_device();
            entered.passing |= unstored;
            missing = if run.pass == Pass::Forward { unstored & tracked } else { 0 };
        }
        self.work = self.work.saturating_sub(work);
        if missing != 0 {
            self.fault(Fault::NotStored(run, missing.trailing_zeros() as u8));
        }
    }

    fn leave(&mut self, unit: u32) {
        let Some(layers) = self.units.get_mut(unit as usize) else {
            return self.fault(Fault::Unknown(Place { unit, layer: 0 }));
        };
        for (layer, entered) in core::mem::take(layers).into_iter().enumerate() {
            let left = entered.map_or(0, |e| e.stored.iter().fold(0, |all, set| all | set));
            if left != 0 {
                let place = Place { unit, layer: layer as u16 };
                self.fault(Fault::Leaked(Item { place, tensor: left.trailing_zeros() as u8 }));
            }
        }
    }

    /// Compares the bytes after an event with the capacity.
    fn measure(&mut self, place: Place) {
        let bytes = self.device_bytes();
        let moment =
            Moment { iteration: self.iteration, ns: self.now, unit: place.unit, layer: place.layer, bytes };
        if bytes > self.verdict.peak.bytes {
            self.verdict.peak = moment;
        }
        if bytes > self.device_bytes {
            self.verdict.first_excess.get_or_insert(moment);
            if !self.exceeded {
                self.exceeded = true;
                self.verdict.excess_iterations.push(self.iteration);
            }
        }
        self.verdict.host_peak = self.verdict.host_peak.max(self.host);
        self.verdict.host_excess |= self.host > self.host_limit;
        if let Some(curve) = &mut self.curve
            && curve.last().is_none_or(|&(_, last)| last != bytes)
        {
            curve.push((self.now, bytes));
        }
    }
}

impl Log for Checker<'_> {
    fn record(&mut self, ns: u64, event: Event) {
        if ns < self.now {
            self.fault(Fault::Backwards { ns });
        }
        self.now = ns;
        let place = match event {
            Event::Enter { place, kind, rows } => {
                if kind as usize >= self.types.len() {
                    self.fault(Fault::Unknown(place));
                }
                self.enter(place, Entered::new(kind, rows));
                place
            }
            Event::Split { place, dispatch_chunks, expert_chunks } => {
                match self.entered(place) {
                    Some(entered) => {
                        entered.part_rows = entered.rows.div_ceil(dispatch_chunks.max(1));
                        entered.expert_rows = entered.part_rows.div_ceil(expert_chunks.max(1));
                    }
                    None => self.fault(Fault::Unknown(place)),
                }
                place
            }
            Event::Alloc(item, form) => {
                self.storage(item, form, true);
                item.place
            }
            Event::Free(item, form) => {
                self.storage(item, form, false);
                item.place
            }
            Event::Start(run) => {
                self.start(run);
                run.place
            }
            Event::End(run) => {
                self.end(run);
                run.place
            }
            Event::CopyStart(item, from, to) => {
                self.copy(item, from, to, false);
                item.place
            }
            Event::CopyEnd(item, from, to) => {
                self.copy(item, from, to, true);
                item.place
            }
            Event::Leave { unit } => {
                self.leave(unit);
                Place { unit, layer: 0 }
            }
        };
        self.measure(place);
    }
}

impl Entered {
    fn new(kind: u16, rows: u32) -> Self {
        Self {
            kind,
            rows,
            part_rows: rows,
            expert_rows: rows,
            stored: [0; 4],
            whole: [0; 4],
            in_copy: [0; 4],
            seen: 0,
            pass: Pass::Forward,
            passing: 0,
            work: 0,
        }
    }

    fn model<'a>(&self, types: &'a [LayerModel<'a>]) -> Option<&'a LayerModel<'a>> {
        types.get(self.kind as usize)
    }

    /// A tensor's layer type, and the bytes of one of its forms.
    fn bytes<'a>(
        &self,
        types: &'a [LayerModel<'a>],
        tensor: u8,
        form: Form,
    ) -> Option<(&'a LayerModel<'a>, u64)> {
        let model = self.model(types)?;
        let index = tensor;
        let tensor = model.tensors.get(index as usize)?;
        let bytes = match form {
            Form::Narrow => tensor.quantized?.at(self.rows)?,
            Form::Part => {
                let experts = model.experts.iter().filter_map(|op| model.ops.get(op));
                let made = experts.fold(0, |all, op| all | op.makes.bits());
                let rows = if made & 1 << index != 0 { self.expert_rows } else { self.part_rows };
                tensor.bytes.at(rows)?
            }
            Form::Wide | Form::Host => tensor.bytes.at(self.rows)?,
        };
        Some((model, bytes))
    }

    /// While the experts run in row chunks, what the other chunks put out stands beside them.
    fn gathering(&self, model: &LayerModel<'_>) -> Option<u64> {
        let (mut makes, mut reads, mut saves) = (0, 0, 0);
        for (index, op) in model.ops.iter().enumerate() {
            saves |= op.saves.bits();
            match model.experts.contains(index) {
                true => makes |= op.makes.bits(),
                false => reads |= op.reads.bits(),
            }
        }
        let tensors = model.tensors.iter().enumerate();
        let outputs = tensors.filter(|&(t, _)| makes & reads & !saves & 1 << t != 0);
        outputs.map(|(_, t)| Some(t.bytes.at(self.part_rows)? - t.bytes.at(self.expert_rows)?)).sum()
    }

    /// Tensors that an operator can read where they are.
    fn on_device(&self) -> u64 {
        let readable = |form: Form| self.stored[form as usize] & self.whole[form as usize];
        readable(Form::Wide) | readable(Form::Part)
    }
}
