//! The Pareto front of a layer: fewest bytes against least added time (§IV-B), closures included.
//!
//! An operator's run is paid once, whoever asks for it. Operators whose closures overlap form a *part* of
//! the layer; parts, and tensors that cannot be recomputed, are independent of each other. Tensors are
//! decided one at a time. A [`Label`] is a partial configuration; it remembers which operators of the
//! undecided rest already run.

use super::evaluate::{closures, run_ns};
use super::{FrontPoint, MitigateError};
use crate::layer::{Collectives, Layer, LayerPlan, Strategy};
use crate::limits::{MAX_FRONT, MAX_OPS, MAX_TENSORS};
use crate::set::Set;

/// Working storage of [`front`].
#[derive(Clone, Debug)]
pub struct FrontScratch {
    from: [Label; MAX_FRONT],
    to: [Label; MAX_FRONT],
}

impl FrontScratch {
    /// Empty storage.
    pub const fn new() -> Self {
        Self { from: [Label::EMPTY; MAX_FRONT], to: [Label::EMPTY; MAX_FRONT] }
    }
}

impl Default for FrontScratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes the Pareto front of `layer` into `out`: bytes ascending, added time strictly descending.
///
/// Returns how many points that is. A front of more points than `out` or the scratch holds is thinned;
/// then every point's `slack_ns` says by how much what was left out could be faster.
pub fn front(
    layer: &Layer<'_>,
    allow: Collectives,
    scratch: &mut FrontScratch,
    out: &mut [FrontPoint],
) -> Result<usize, MitigateError> {
    let parts = Parts::new(layer, allow);
    let mut labels = Labels::new(scratch, false);
    labels.start(layer.bytes(layer.block_inputs()));
    for part in parts.iter() {
        parts.decide(part, &mut labels);
    }
    labels.write(out)
}

/// A part of a layer whose choices do not depend on the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// A tensor that cannot be recomputed.
    Held(usize),
    /// Operators whose closures overlap, and the saved tensors that they make.
    Run(Set),
}

/// A layer taken apart.
pub(crate) struct Parts<'l> {
    layer: &'l Layer<'l>,
    closures: [Option<Set>; MAX_OPS],
    parts: heapless::Vec<Part, MAX_TENSORS>,
}

impl<'l> Parts<'l> {
    pub(crate) fn new(layer: &'l Layer<'l>, allow: Collectives) -> Self {
        let mut this = Self { layer, closures: closures(layer, allow), parts: heapless::Vec::new() };
        // Each part holds at least one tensor of its own, so the vector cannot overflow.
        let mut reach = [Set::EMPTY; MAX_TENSORS];
        for op in layer.order() {
            let tensors = this.decides(op);
            let Some(closure) = this.closures[op] else {
                for tensor in tensors.iter() {
                    let _ = this.parts.push(Part::Held(tensor));
                }
                continue;
            };
            if !tensors.is_empty() {
                this.join(op, closure, &mut reach);
            }
        }
        let made: Set = layer.ops().iter().fold(Set::EMPTY, |made, op| made | op.makes);
        for tensor in (layer.saved() - made).iter().filter(|&t| layer.tensors()[t].bytes > 0) {
            let _ = this.parts.push(Part::Held(tensor));
        }
        this
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Part> {
        self.parts.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The saved tensors that `op` makes. One of no bytes is best kept.
    fn decides(&self, op: usize) -> Set {
        let saved = self.layer.ops()[op].makes & self.layer.saved();
        saved.iter().filter(|&t| self.layer.tensors()[t].bytes > 0).collect()
    }

    /// Puts `op` into the part that its closure overlaps, joining parts that it connects.
    fn join(&mut self, op: usize, closure: Set, reach: &mut [Set; MAX_TENSORS]) {
        let (mut ops, mut all) = (Set::one(op), closure);
        let mut index = 0;
        while index < self.parts.len() {
            match self.parts[index] {
                Part::Run(others) if !(reach[index] & closure).is_empty() => {
                    ops |= others;
                    all |= reach[index];
                    let last = self.parts.len() - 1;
                    self.parts.swap_remove(index);
                    reach[index] = reach[last];
                }
                _ => index += 1,
            }
        }
        reach[self.parts.len()] = all;
        let _ = self.parts.push(Part::Run(ops));
    }

    /// Extends every label by every choice of `part`.
    pub(crate) fn decide(&self, part: Part, labels: &mut Labels<'_>) {
        let ops = match part {
            Part::Held(tensor) => {
                let step = Step { layer: self.layer, tensor, run: None, live: Set::EMPTY };
                return labels.step(&step);
            }
            Part::Run(ops) => ops,
        };
        let mut left = ops;
        for op in self.layer.order().rev().filter(|&op| ops.contains(op)) {
            left.remove(op);
            let closure = self.closures[op].unwrap_or_default();
            let later = left.iter().fold(Set::EMPTY, |set, q| set | self.closures[q].unwrap_or_default());
            let tensors = self.decides(op);
            for tensor in tensors.iter() {
                let last = Some(tensor) == tensors.last();
                let live = if last { later } else { later | closure };
                labels.step(&Step { layer: self.layer, tensor, run: Some((op, closure)), live });
            }
        }
    }
}

/// The decision on one tensor.
struct Step<'l> {
    layer: &'l Layer<'l>,
    tensor: usize,
    /// Its producer and the producer's closure, where it may run again.
    run: Option<(usize, Set)>,
    /// Operators that still matter afterwards.
    live: Set,
}

/// A partial configuration.
#[derive(Clone, Copy, Debug)]
struct Label {
    bytes: u64,
    host: u64,
    /// Added time, that of all of `running` included.
    ns: u64,
    /// Operators that run again, as far as the undecided rest is concerned.
    running: Set,
    plan: LayerPlan,
}

impl Label {
    const EMPTY: Self = Self { bytes: 0, host: 0, ns: 0, running: Set::EMPTY, plan: LayerPlan::KEEP };
}

/// The non-dominated labels, by bytes.
pub(crate) struct Labels<'s> {
    from: &'s mut [Label],
    to: &'s mut [Label],
    len: usize,
    slack_ns: u64,
    /// Whether fewer host bytes make a label worth keeping.
    host: bool,
}

impl<'s> Labels<'s> {
    pub(crate) fn new(scratch: &'s mut FrontScratch, host: bool) -> Self {
        Self { from: &mut scratch.from, to: &mut scratch.to, len: 0, slack_ns: 0, host }
    }

    /// Starts from one label that holds `bytes`.
    pub(crate) fn start(&mut self, bytes: u64) {
        self.from[0] = Label { bytes, ..Label::EMPTY };
        self.len = 1;
        self.slack_ns = 0;
    }

    fn step(&mut self, step: &Step<'_>) {
        let mut streams = Stream::all(step);
        self.merge(&mut streams, Some(step), self.to.len());
    }

    /// Merges the streams, thinning just as much as `capacity` asks for.
    fn merge(&mut self, streams: &mut [Stream], step: Option<&Step<'_>>, capacity: usize) {
        let mut loss = 0u64;
        loop {
            let to = &mut self.to[..capacity];
            let mut sink = Sink { to, len: 0, best: heapless::Vec::new(), host: self.host, loss };
            if fill(&self.from[..self.len], streams, step, &mut sink) {
                self.len = sink.len;
                break;
            }
            let widest = self.from[..self.len].iter().map(|l| l.ns).max().unwrap_or(0);
            loss = loss.saturating_mul(2).max(widest / capacity as u64).max(1);
        }
        self.slack_ns = self.slack_ns.saturating_add(loss);
        core::mem::swap(&mut self.from, &mut self.to);
    }

    /// Writes the labels as points.
    pub(crate) fn write(&mut self, out: &mut [FrontPoint]) -> Result<usize, MitigateError> {
        if out.is_empty() {
            return Err(MitigateError::FrontFull { capacity: 0 });
        }
        if self.len > out.len() {
            self.merge(&mut [Stream::SAME], None, out.len());
        }
        for (point, label) in out.iter_mut().zip(&self.from[..self.len]) {
            *point = FrontPoint {
                bytes: label.bytes,
                host_bytes: label.host,
                added_ns: label.ns,
                slack_ns: self.slack_ns.min(label.ns),
                plan: label.plan,
            };
        }
        Ok(self.len)
    }
}

/// One choice applied to those labels that it suits: sorted by bytes as they are.
#[derive(Clone, Copy)]
struct Stream {
    strategy: Strategy,
    /// The labels it suits: those in which the producer runs, those in which it does not, or all.
    runs: Option<bool>,
    bytes: u64,
    host: u64,
    ns: u64,
    /// Whether it lets the producer run.
    starts: bool,
    at: usize,
}

impl Stream {
    const SAME: Self =
        Self { strategy: Strategy::Keep, runs: None, bytes: 0, host: 0, ns: 0, starts: false, at: 0 };

    /// The choices of a tensor. Where its producer runs anyway, recomputing it is free and best.
    fn all(step: &Step<'_>) -> heapless::Vec<Self, 5> {
        let tensor = &step.layer.tensors()[step.tensor];
        let idle = step.run.map(|_| false);
        let mut all = heapless::Vec::new();
        // Five at most, so no push can fail.
        if step.run.is_some() {
            let free = Self { strategy: Strategy::Recompute, runs: Some(true), ..Self::SAME };
            let _ = all.push(free);
            let _ = all.push(Self { runs: idle, starts: true, ..free });
        }
        if let Some(copy) = tensor.copy {
            let (host, ns) = (tensor.bytes, copy.out_ns + copy.in_ns);
            let _ = all.push(Self { strategy: Strategy::Offload, runs: idle, host, ns, ..Self::SAME });
        }
        if let Some(cast) = tensor.cast.filter(|cast| cast.bytes < tensor.bytes) {
            let (bytes, ns) = (cast.bytes, cast.cast_ns + cast.uncast_ns);
            let _ = all.push(Self { strategy: Strategy::Quantize, runs: idle, bytes, ns, ..Self::SAME });
        }
        let _ = all.push(Self { runs: idle, bytes: tensor.bytes, ..Self::SAME });
        all
    }

    /// The next label with this choice made.
    fn head(&mut self, from: &[Label], step: Option<&Step<'_>>) -> Option<Label> {
        let Some(step) = step else {
            return from.get(self.at).copied();
        };
        let run = step.run.unwrap_or((usize::MAX, Set::EMPTY));
        let suits = |l: &Label| self.runs.is_none_or(|runs| l.running.contains(run.0) == runs);
        self.at += from.get(self.at..)?.iter().position(suits)?;
        let mut label = from[self.at];
        label.bytes += self.bytes;
        label.host += self.host;
        label.ns += self.ns;
        if self.starts {
            label.ns += run_ns(step.layer, run.1 - label.running);
            label.running |= run.1;
        }
        label.running = label.running & step.live;
        match self.strategy {
            Strategy::Keep => {}
            Strategy::Recompute => label.plan.recompute.insert(step.tensor),
            Strategy::Offload => label.plan.offload.insert(step.tensor),
            Strategy::Quantize => label.plan.quantize.insert(step.tensor),
        }
        Some(label)
    }
}

/// Merges the streams by bytes into the sink; `false` where they do not fit.
fn fill(from: &[Label], streams: &mut [Stream], step: Option<&Step<'_>>, sink: &mut Sink<'_>) -> bool {
    let mut heads = [None; 5];
    for (head, stream) in heads.iter_mut().zip(streams.iter_mut()) {
        stream.at = 0;
        *head = stream.head(from, step);
    }
    loop {
        let mut next: Option<(usize, Label)> = None;
        for (index, head) in heads.iter().enumerate() {
            if let Some(l) = head
                && next.is_none_or(|(_, n)| (l.bytes, l.ns) < (n.bytes, n.ns))
            {
                next = Some((index, *l));
            }
        }
        let Some((index, label)) = next else { return true };
        if !sink.push(label, step) {
            return false;
        }
        streams[index].at += 1;
        heads[index] = streams[index].head(from, step);
    }
}

/// Takes labels by ascending bytes and drops those that another makes needless.
struct Sink<'t> {
    to: &'t mut [Label],
    len: usize,
    /// The least added time so far for each set of running operators.
    best: heapless::Vec<(Set, u64), 32>,
    host: bool,
    /// A label goes where another is slower by at most this, ns.
    loss: u64,
}

impl Sink<'_> {
    /// `false` where there is no room.
    fn push(&mut self, label: Label, step: Option<&Step<'_>>) -> bool {
        if self.needless(&label, step) {
            return true;
        }
        while let Some(last) = self.len.checked_sub(1).map(|i| self.to[i])
            && last.bytes == label.bytes
            && last.running == label.running
            && last.ns >= label.ns
            && (!self.host || last.host >= label.host)
        {
            self.len -= 1;
        }
        if self.len == self.to.len() {
            return false;
        }
        self.to[self.len] = label;
        self.len += 1;
        match self.best.iter_mut().find(|(set, _)| *set == label.running) {
            Some((_, ns)) => *ns = label.ns,
            // Without room for its set a label merely makes no other needless.
            None => drop(self.best.push((label.running, label.ns))),
        }
        true
    }

    /// Whether a label of no more bytes does as well: it can buy what this one runs beyond it, and then
    /// follow every choice that this one could still make.
    fn needless(&self, label: &Label, step: Option<&Step<'_>>) -> bool {
        let missing = |set: Set| step.map_or(0, |s| run_ns(s.layer, label.running - set));
        let allowed = label.ns.saturating_add(self.loss);
        if self.host {
            let kept = &self.to[..self.len];
            return kept.iter().any(|l| l.host <= label.host && l.ns + missing(l.running) <= allowed);
        }
        self.best.iter().any(|&(set, ns)| ns + missing(set) <= allowed)
    }
}
