//! A controller allocates nothing once it is made: counted over whole iterations through the C functions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use bagualu_ffi::*;

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[track_caller]
fn ok(status: bagualu_status) {
    assert_eq!(status, bagualu_status::Ok);
}

/// One iteration in which every layer receives `rows`, as a program drives it; copies end at once.
///
/// # Safety
/// - `controller` is one of this library.
unsafe fn iterate(
    controller: *mut bagualu_controller,
    rows: u32,
    events: &[bagualu_event],
    types: &mut [u16],
) {
    let mut wait = 0;
    // SAFETY: valid pointers throughout.
    unsafe {
        for event in events {
            let (unit, mut layers) = (event.unit, 0);
            ok(bagualu_controller_layers(controller, unit, types.as_mut_ptr(), types.len(), &mut layers));
            if event.backward == 1 {
                ok(bagualu_controller_backward(controller, unit));
                for layer in (0..layers).rev() {
                    ok(bagualu_controller_may_recover(controller, layer, &mut wait));
                    ok(bagualu_controller_recovered(controller));
                }
                ok(bagualu_controller_backward_done(controller));
                continue;
            }
            ok(bagualu_controller_forward(controller, unit, null_mut()));
            for layer in 0..layers {
                ok(bagualu_controller_to_gate(controller, &mut wait));
                let size = size_of::<bagualu_gate>();
                let gate = bagualu_gate {
                    struct_size: size,
                    rows,
                    whole_moe: 0,
                    dispatch_chunks: 1,
                    has_grant: 0,
                    granted_bytes: 0,
                };
                let mut decision: bagualu_decision = std::mem::zeroed();
                decision.struct_size = size_of::<bagualu_decision>();
                ok(bagualu_controller_gate(controller, layer, &gate, &mut decision));
                ok(bagualu_controller_may_start(controller, &mut wait));
                let mut leaving = 0;
                ok(bagualu_controller_layer_done(controller, &mut leaving));
                ok(bagualu_controller_copied_out(controller, unit, leaving));
            }
            ok(bagualu_controller_forward_done(controller, null()));
        }
        ok(bagualu_controller_restart(controller));
    }
}

#[test]
fn a_controller_allocates_nothing_once_it_is_made() {
    // SAFETY: structs of integers and pointers, for which zeros are a value; valid pointers.
    unsafe {
        let mut config: bagualu_model_config = std::mem::zeroed();
        config.struct_size = size_of::<bagualu_model_config>();
        config.preset = c"glm-423b-a30b".as_ptr();
        let (mut model, mut controller) = (null_mut(), null_mut());
        ok(bagualu_model_read(&config, &mut model));
        ok(bagualu_controller_from_model(model, 0, null(), &mut controller));
        let mut info: bagualu_model_info = std::mem::zeroed();
        info.struct_size = size_of::<bagualu_model_info>();
        ok(bagualu_model_describe(model, &mut info));
        let mut events = vec![bagualu_event::default(); 1 << 12];
        let (mut count, mut types) = (0, vec![0; 256]);
        ok(bagualu_controller_events(controller, events.as_mut_ptr(), events.len(), &mut count));
        let before = COUNT.load(Ordering::Relaxed);
        for rows in [info.balanced_rows, info.balanced_rows / 2, info.balanced_rows] {
            iterate(controller, rows, &events[..count], &mut types);
        }
        assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0);
        // The negative: making one is counted.
        ok(bagualu_controller_free(controller));
        ok(bagualu_controller_from_model(model, 0, null(), &mut controller));
        assert!(COUNT.load(Ordering::Relaxed) > before);
        ok(bagualu_controller_free(controller));
        ok(bagualu_model_free(model));
    }
}
