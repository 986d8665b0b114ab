//! Where policies have vCPUs and loads, as files write it.

use crate::toml_read::Text;
use crate::toml_read::units::{CpuList, cpus_pattern};

/// Where a policy pins a vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// To a pCPU that no other vCPU is pinned to.
    Own,
    /// To one of these; empty: to none.
    To(Vec<u32>),
}

impl Text for Pin {
    const WHAT: &'static str = "a CPU list like \"0\", \"0,2-5\" or \"all\", or \"own\"";
    const PATTERN: &'static str = concat!(r"^\s*(own|all|", cpus_pattern!(), r")\s*$");
    const INTEGERS: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "own" => Ok(Self::Own),
            list => CpuList::parse(list).map(|cpus| Self::To(cpus.0)),
        }
    }
}

/// Where a policy has the host's loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadCpus {
    /// On the pCPUs that no vCPU is pinned to.
    Others,
    /// On these; empty: on all.
    On(Vec<u32>),
}

impl Text for LoadCpus {
    const WHAT: &'static str = "a CPU list like \"0\", \"0,2-5\" or \"all\", or \"others\"";
    const PATTERN: &'static str = concat!(r"^\s*(others|all|", cpus_pattern!(), r")\s*$");
    const INTEGERS: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "others" => Ok(Self::Others),
            list => CpuList::parse(list).map(|cpus| Self::On(cpus.0)),
        }
    }
}
