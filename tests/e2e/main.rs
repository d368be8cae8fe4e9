//! Stories that run through the five real binaries.

mod codecs;
mod faults;
mod happy;
mod letters;
mod settings;
mod telemetry;
mod upgrade;
