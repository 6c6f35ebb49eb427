//! Library behind the `bagualu` command.
