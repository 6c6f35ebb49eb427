//! What others measured, predicted from shapes by the command itself and compared: `docs/predictions.md`.
//!
//! Nothing is fitted. Every row that is computed here must be in the document as it is printed; each bound is the one
//! that is reached.

mod public;

use public::{Compared, megatron_runs, planned, row};

/// Megatron-LM's own runs on eight H100: peak of the last pipeline rank, and what of it is allocated between
/// iterations.
#[test]
fn runs_of_megatrons_test_suite() {
    for run in megatron_runs() {
        let plan = planned(&run.flags, run.gpus, &[]);
        let rank = plan.last();
        let held = Compared { measured: run.peak_bytes - run.allocated_bytes, predicted: rank.activations };
        let peak = Compared { measured: run.peak_bytes, predicted: rank.peak() };
        let mut cells = vec![format!("`{}`", run.run)];
        cells.extend(held.cells());
        match run.nodes_known {
            true => cells.extend(peak.cells()),
            false => cells.extend(["–", "–", "–"].map(str::to_owned)),
        }
        row(&cells);
        assert!(held.permille().abs() <= run.activations_permille, "{}: {}", run.run, held.permille());
        if !run.nodes_known {
            continue;
        }
        let libraries = run.allocated_bytes.checked_sub(rank.fixed).expect("no less than is modelled");
        assert!(libraries <= run.libraries_mib << 20, "{}: {} MiB", run.run, libraries >> 20);
        // The workspaces of libraries are in the device's margin and weigh nothing where it matters.
        if run.peak_bytes > 4 << 30 {
            assert!(peak.permille().abs() <= 30, "{}: {}", run.run, peak.permille());
        }
    }
}
