//! Stories that run through the four real binaries.

mod faults;
mod happy;
mod settings;
mod telemetry;
