//! The `bagualu` command.
fn main() {}
