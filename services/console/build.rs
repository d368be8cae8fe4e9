//! Migrations are embedded by a macro, which cargo does not see through.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
