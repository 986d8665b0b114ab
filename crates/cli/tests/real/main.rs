//! The real program on real VMs: stock guests under QEMU. `cargo test --workspace --test real --
//! --ignored` runs them; each skips itself where what it needs cannot be had.

#[cfg(target_os = "linux")]
mod attach;
#[cfg(target_os = "linux")]
mod cooperate;
#[cfg(target_os = "linux")]
mod discovery;
#[cfg(target_os = "linux")]
mod fold;
#[cfg(target_os = "linux")]
mod kernels;
#[cfg(target_os = "linux")]
mod observe;
#[cfg(target_os = "linux")]
mod owner;
#[cfg(target_os = "linux")]
mod placement;
#[cfg(target_os = "linux")]
mod rush;
#[cfg(target_os = "linux")]
mod vcoop;

use vcoop_testing::layer_main;

fn main() -> std::process::ExitCode {
    layer_main()
}
