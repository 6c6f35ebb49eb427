//! The planning objects: budget (Algorithm 1), selector (Algorithm 2), scheduler (§V-B) and controller.

mod budget;
mod config;
mod controller;
pub(crate) mod planned;
mod schedule;
mod scheduler;
mod selector;
mod stage;

pub use budget::*;
pub(crate) use config::read_choices;
pub use config::*;
pub use controller::*;
pub use schedule::*;
pub use scheduler::*;
pub use selector::*;
pub use stage::*;
