//! Rules of the repository itself.

mod arrows;
mod migrations;
