//! `--spike`: the load up to which the work of operators is provided for.

use bagualu_core::provision::{Aim, Provision};
use bagualu_model::Model;

use crate::Error;
use crate::input::largest_load;
use crate::output::bytes;
use crate::plan::load::LoadFactor;

/// Thousandths: balanced rows.
const BALANCED: u32 = 1_000;

/// The highest load to provide for.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Spike {
    /// Highest load to provide for, in balanced rows: work memory for it is set aside, and up to it no dispatch
    /// is split, where there is room [default: 2.6]
    #[arg(long, value_name = "LOAD")]
    spike: Option<LoadFactor>,
}

impl Spike {
    /// What the static decisions aim at; the ordinary load is no higher than the spike.
    pub fn aim(self, model: &Model) -> Result<Aim, Error> {
        let usual = Aim::default();
        let Some(LoadFactor(spike)) = self.spike else { return Ok(usual) };
        let most = largest_load(model).unwrap_or(u32::MAX);
        let refused = |fix| Error::bad_input("--spike", format!("{} is no spike", LoadFactor(spike)), fix);
        if spike < BALANCED {
            return Err(refused("give 1, which is balanced, or more".to_owned()));
        }
        if spike > most {
            return Err(refused(format!(
                "give at most {}: the rank then receives every row",
                LoadFactor(most)
            )));
        }
        Ok(Aim { spike, usual: usual.usual.min(spike) })
    }
}

/// The load of S*, up to which W is set aside: `any` where there cannot be more rows.
pub fn reach(model: &Model, provision: &Provision) -> String {
    if provision.dispatch_threshold >= model.most_rows {
        return "any".to_owned();
    }
    let permille = u64::from(provision.dispatch_threshold) * u64::from(BALANCED);
    let permille = permille / u64::from(model.balanced_rows.max(1));
    LoadFactor(u32::try_from(permille).unwrap_or(u32::MAX)).to_string()
}

/// What is set aside for work and up to which load, as a sentence.
pub fn reserve(model: &Model, provision: &Provision, aim: Aim) -> String {
    let work = bytes(provision.work_bytes);
    let spike = LoadFactor(aim.spike);
    match reach(model, provision).as_str() {
        "any" => format!("W reserves {work} for the work of operators at any load."),
        load if load == spike.to_string() => {
            format!("W reserves {work} for the work of operators, for rows up to load {load} (--spike).")
        }
        load => format!(
            "W reserves {work} for the work of operators, for rows up to load {load}; aimed at is {spike} (--spike)."
        ),
    }
}
