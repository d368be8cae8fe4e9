//! Rules of the repository itself.

mod alerts;
mod arrows;
mod migrations;
