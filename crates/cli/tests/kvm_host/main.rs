//! The real program on a real KVM host, which QEMU emulates: SVM, Debian's kernel, kvm-amd, and stock guests
//! under KVM. `cargo test --workspace --test kvm_host -- --ignored` runs them; each skips itself where what it
//! needs cannot be had.
//!
//! Time in such a host means little. What is checked is that everything works there, and who comes first.

#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod interrupts;
#[cfg(target_os = "linux")]
mod scx;
#[cfg(target_os = "linux")]
mod stock;

fn main() -> std::process::ExitCode {
    vcoop_testing::layer_main()
}
