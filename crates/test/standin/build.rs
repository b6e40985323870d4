//! Keeps the shared object in memory once it is loaded. Its scheduler is a thread that never ends, and a program may
//! load and unload a library just to check whether it exists.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
