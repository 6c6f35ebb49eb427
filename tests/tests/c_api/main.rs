//! The C and C++ libraries as their users meet them: installed below a prefix, linked by other compilers.
//!
//! A tool that is not on this machine skips what needs it, with the reason; CI installs them all (`.ci/run`).

mod bridge;
mod c;
mod cpp;
mod header;
mod install;
mod memory;
mod symbols;
mod tools;
