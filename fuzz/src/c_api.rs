//! The C functions in any order, on handles of any kind, freed ones included: a status each time, never a panic, and
//! nothing written where a call fails.
//!
//! Only what the caller must see to is kept to: counts are those of their arrays, memory by address is not invented.

use std::ptr::{null, null_mut};

use bagualu_ffi::*;

use crate::Input;

/// Calls of one input at most.
const CALLS: usize = 200;

/// The target.
pub fn c_api(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pool = Pool { handles: vec![0, 1], made: Vec::new() };
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        let status = pool.call(&mut input);
        assert_ne!(status, bagualu_status::Panic, "{}", message());
    }
    pool.end();
}

/// Handles met so far, freed ones and numbers that are none included.
struct Pool {
    handles: Vec<usize>,
    /// What is to be freed at the end.
    made: Vec<(usize, Free)>,
}

/// Frees what a number stands for.
type Free = fn(usize) -> bagualu_status;

fn message() -> String {
    // SAFETY: the text ends with NUL and stays until the next failure.
    let text = unsafe { std::ffi::CStr::from_ptr(bagualu_last_message(null_mut())) };
    text.to_str().expect("UTF-8").to_owned()
}

fn handle<T>(bits: usize) -> *mut T {
    std::ptr::without_provenance_mut(bits)
}

/// A struct of zeros, its size rarely a wrong one.
fn sized<T: Copy>(input: &mut Input<'_>) -> T {
    let mut words = vec![0usize; size_of::<T>() / 8];
    words[0] =
        if input.one_in(32) { input.quantity() as usize % (size_of::<T>() + 1) } else { size_of::<T>() };
    // SAFETY: as many bytes as the struct has; integers and pointers take any.
    unsafe { words.as_ptr().cast::<T>().read_unaligned() }
}

impl Pool {
    fn any<T>(&self, input: &mut Input<'_>) -> *mut T {
        // The newest often: programs use what they have made.
        let at = if input.one_in(2) { self.handles.len() - 1 } else { input.below(self.handles.len()) };
        handle(self.handles[at])
    }

    /// Keeps what a call made, if it did.
    fn keep<T>(
        &mut self,
        status: bagualu_status,
        made: *mut T,
        free: fn(usize) -> bagualu_status,
    ) -> bagualu_status {
        assert_eq!(status == bagualu_status::Ok, !made.is_null(), "{}", message());
        if !made.is_null() {
            self.handles.push(made.addr());
            self.made.push((made.addr(), free));
        }
        status
    }

    fn end(self) {
        for (bits, free) in self.made {
            let status = free(bits);
            assert!(matches!(status, bagualu_status::Ok | bagualu_status::FreedHandle), "{}", message());
        }
    }

    fn call(&mut self, input: &mut Input<'_>) -> bagualu_status {
        match input.below(8) {
            0 => self.make_budget(input),
            1 => self.make_controller(input),
            2 => self.make_solver(input),
            3 => self.free(input),
            4 => self.budget(input),
            5 => self.solve(input),
            _ => self.controller(input),
        }
    }

    fn make_budget(&mut self, input: &mut Input<'_>) -> bagualu_status {
        let units = input.below(6);
        let events: Vec<_> = (0..input.below(12))
            .map(|_| bagualu_event { unit: input.below(6) as u32, backward: input.below(3) as u32 })
            .collect();
        let floors: Vec<u64> = (0..units).map(|_| input.quantity()).collect();
        let mut made = null_mut();
        // SAFETY: arrays of their counts.
        let status = unsafe {
            let (capacity, share) = (input.quantity(), input.below(3) as u32);
            bagualu_budget_new(
                capacity,
                share,
                events.as_ptr(),
                events.len(),
                floors.as_ptr(),
                null(),
                units,
                &mut made,
            )
        };
        self.keep(status, made, |bits| bagualu_budget_free(handle(bits)))
    }

    fn make_controller(&mut self, input: &mut Input<'_>) -> bagualu_status {
        let kinds: Vec<(Vec<_>, Vec<_>)> = (0..1 + input.below(2)).map(|_| layer_type(input)).collect();
        let types: Vec<_> = kinds
            .iter()
            .map(|(tensors, ops)| bagualu_layer_type {
                tensors: tensors.as_ptr(),
                tensor_count: tensors.len(),
                ops: ops.as_ptr(),
                op_count: ops.len(),
                moe: input.byte().into(),
                experts: input.byte().into(),
                routed: input.below(2) as u32,
                reserved: 0,
            })
            .collect();
        let layers: Vec<u16> = (0..input.below(4)).map(|_| input.below(kinds.len() + 1) as u16).collect();
        let chunks: Vec<_> = (0..1 + input.below(2))
            .map(|_| bagualu_chunk { types: layers.as_ptr(), count: layers.len() })
            .collect();
        let mut stage: bagualu_stage = sized(input);
        (stage.types, stage.type_count) = (types.as_ptr(), types.len());
        (stage.chunks, stage.chunk_count) = (chunks.as_ptr(), chunks.len());
        let knee = |input: &mut Input<'_>| bagualu_knee {
            size_bytes: input.quantity(),
            bytes_per_s: input.quantity(),
        };
        stage.rooflines = bagualu_rooflines {
            copy_out: knee(input),
            copy_in: knee(input),
            cast: knee(input),
            uncast: knee(input),
        };
        (stage.device_bytes, stage.host_bytes) = (input.quantity() << 8, input.quantity());
        stage.balanced_rows = input.quantity() as u32 % 1_000;
        let mut pipeline: bagualu_pipeline = sized(input);
        (pipeline.ranks, pipeline.rank) = (input.below(4) as u32, input.below(3) as u32);
        (pipeline.micro_batches, pipeline.chunks) = (input.below(6) as u32, chunks.len() as u32);
        let mut config: bagualu_controller_config = sized(input);
        (config.fronts, config.points, config.plans) =
            (1 + input.below(6), 1 + input.below(64), input.below(9));
        (config.node_limit, config.fused) = (256, input.below(2) as u32);
        let mut made = null_mut();
        // SAFETY: arrays of their counts, which live until the call has ended.
        let status = unsafe { bagualu_controller_from_stage(&stage, &pipeline, &config, &mut made) };
        self.keep(status, made, |bits| bagualu_controller_free(handle(bits)))
    }

    fn make_solver(&mut self, input: &mut Input<'_>) -> bagualu_status {
        // SAFETY: valid pointers.
        unsafe {
            if input.one_in(2) {
                let mut config: bagualu_selector_config = sized(input);
                (config.method, config.node_limit) = (input.below(4) as u32, 64);
                let mut made = null_mut();
                let status = bagualu_selector_new(&config, &mut made);
                return self.keep(status, made, |bits| bagualu_selector_free(handle(bits)));
            }
            let mut config: bagualu_scheduler_config = sized(input);
            (config.method, config.states) = (input.below(4) as u32, 1 + input.byte() as u32);
            config.node_limit = 64;
            let mut made = null_mut();
            let status = bagualu_scheduler_new(&config, &mut made);
            self.keep(status, made, |bits| bagualu_scheduler_free(handle(bits)))
        }
    }

    fn free(&mut self, input: &mut Input<'_>) -> bagualu_status {
        match input.below(4) {
            0 => bagualu_budget_free(self.any(input)),
            1 => bagualu_controller_free(self.any(input)),
            2 => bagualu_selector_free(self.any(input)),
            _ => bagualu_scheduler_free(self.any(input)),
        }
    }

    fn budget(&mut self, input: &mut Input<'_>) -> bagualu_status {
        let budget = self.any(input);
        let (unit, bytes) = (input.below(7) as u32, input.quantity());
        // SAFETY: valid pointers.
        unsafe {
            match input.below(7) {
                0 => bagualu_budget_forward(budget, &mut sized(input)),
                1 => bagualu_budget_launch(budget, bytes),
                2 => bagualu_budget_release(budget, null_mut()),
                3 => bagualu_budget_hold(budget, unit, bytes),
                4 => bagualu_budget_restart(budget),
                5 => bagualu_budget_read(budget, &mut sized(input)),
                _ => bagualu_budget_headroom(budget, unit, &mut 0),
            }
        }
    }

    fn solve(&mut self, input: &mut Input<'_>) -> bagualu_status {
        // SAFETY: arrays of their counts.
        unsafe {
            if input.one_in(2) {
                let ops: Vec<bagualu_chain_op> = (0..4)
                    .map(|_| bagualu_chain_op {
                        ns: input.quantity(),
                        alloc_bytes: input.quantity(),
                        free_bytes: input.quantity(),
                        resource: input.below(5) as u32,
                        reserved: 0,
                    })
                    .collect();
                let mut chains: bagualu_chains = sized(input);
                for chain in 0..4 {
                    (chains.ops[chain], chains.counts[chain]) = (ops.as_ptr(), input.below(5));
                }
                (chains.base_bytes, chains.capacity_bytes) = (input.quantity(), input.quantity());
                let mut order = [bagualu_step { chain: 0, index: 0 }; 16];
                let scheduler = self.any(input);
                return bagualu_scheduler_schedule(scheduler, &chains, order.as_mut_ptr(), 16, null_mut());
            }
            let tensors: Vec<_> = (0..input.below(6)).map(|_| tensor(input)).collect();
            let ops: Vec<_> = (0..input.below(6)).map(|_| op(input)).collect();
            let layer = bagualu_layer {
                tensors: tensors.as_ptr(),
                tensor_count: tensors.len(),
                ops: ops.as_ptr(),
                op_count: ops.len(),
            };
            let mut limits: bagualu_selection_limits = sized(input);
            (limits.bytes, limits.host_bytes) = (input.quantity(), input.quantity());
            limits.allow_collectives = input.below(17) as u32;
            let layers = [layer, layer];
            let mut plans = [bagualu_layer_plan::default(); 2];
            let (mut selection, selector) = (sized(input), self.any(input));
            bagualu_selector_select(selector, layers.as_ptr(), 2, &limits, plans.as_mut_ptr(), &mut selection)
        }
    }

    fn controller(&mut self, input: &mut Input<'_>) -> bagualu_status {
        let controller = self.any(input);
        let (unit, layer) = (input.below(7) as u32, input.below(4));
        let mut wait = 0x5eed;
        // SAFETY: valid pointers.
        unsafe {
            match input.below(16) {
                0 => bagualu_controller_forward(controller, unit, null_mut()),
                1 => {
                    let status = bagualu_controller_to_gate(controller, &mut wait);
                    assert!(status == bagualu_status::Ok || wait == 0x5eed, "written by a call that failed");
                    status
                }
                2 | 3 => {
                    let mut gate: bagualu_gate = sized(input);
                    gate.rows = input.quantity() as u32;
                    gate.whole_moe = input.below(2) as u32;
                    gate.dispatch_chunks = input.below(4) as u32;
                    gate.has_grant = input.below(2) as u32;
                    gate.granted_bytes = input.quantity();
                    bagualu_controller_gate(controller, layer, &gate, &mut sized(input))
                }
                4 => bagualu_controller_may_start(controller, &mut wait),
                5 => bagualu_controller_layer_done(controller, &mut wait),
                6 => {
                    let measured = input.quantity();
                    let measured = if input.one_in(4) { &raw const measured } else { null() };
                    bagualu_controller_forward_done(controller, measured)
                }
                7 => bagualu_controller_copied_out(controller, unit, input.quantity()),
                8 => bagualu_controller_recover_early(controller, unit, &mut 0),
                9 => bagualu_controller_backward(controller, unit),
                10 => bagualu_controller_may_recover(controller, layer, &mut wait),
                11 => bagualu_controller_recovered(controller),
                12 => bagualu_controller_backward_done(controller),
                13 => bagualu_controller_correct(controller, &mut sized(input)),
                14 => bagualu_controller_decided(controller, unit, layer, &mut sized(input)),
                _ if input.one_in(2) => bagualu_controller_restart(controller),
                _ => bagualu_controller_abandon(controller),
            }
        }
    }
}

/// Any layer type; often one whose operators make their successors' inputs.
fn layer_type(input: &mut Input<'_>) -> (Vec<bagualu_tensor_type>, Vec<bagualu_op_type>) {
    let bytes =
        |input: &mut Input<'_>| bagualu_bytes { fixed: input.quantity(), per_row: input.below(8) as u64 };
    let time =
        |input: &mut Input<'_>| bagualu_time { fixed_ns: input.quantity(), per_row_ps: input.quantity() };
    let tensors = (0..input.below(5)).map(|_| bagualu_tensor_type {
        bytes: bytes(input),
        quantized: bytes(input),
        flags: input.below(17) as u32,
        source: input.below(6) as u32,
    });
    let tensors: Vec<_> = tensors.collect();
    let ops = (0..input.below(5)).map(|at| bagualu_op_type {
        reads: if input.one_in(8) { input.byte().into() } else { 1 << at },
        makes: if input.one_in(8) { input.byte().into() } else { 2 << at },
        saves: input.below(1 << tensors.len()) as u64,
        forward: time(input),
        backward: time(input),
        forward_work: bytes(input),
        backward_work: bytes(input),
        resource: input.below(5) as u32,
        collective: input.below(6) as u32,
    });
    let ops = ops.collect();
    (tensors, ops)
}

fn tensor(input: &mut Input<'_>) -> bagualu_tensor {
    bagualu_tensor {
        bytes: input.quantity(),
        copy_out_ns: input.quantity(),
        copy_in_ns: input.quantity(),
        cast_ns: input.quantity(),
        uncast_ns: input.quantity(),
        quantized_bytes: input.quantity(),
        flags: input.below(17) as u32,
        source: input.below(6) as u32,
    }
}

fn op(input: &mut Input<'_>) -> bagualu_op {
    bagualu_op {
        reads: input.byte().into(),
        makes: input.byte().into(),
        saves: input.byte().into(),
        forward_ns: input.quantity(),
        collective: input.below(6) as u32,
        reserved: 0,
    }
}
