//! Decides how many CPUs to use: a governor of this guest, or the host's.

use vcoop_policy::govern::{Governor, GovernorConfig, GovernorInput, Kind};

use crate::error::FoldError;
use crate::files::{Roots, list};
use crate::layout::Layout;

/// The governor of a guest, or the host's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decider {
    /// A governor that uses this guest's own steal.
    Own(Governor),
    /// The host's governor. `asked`: how many CPUs it asks for; `None`: it asks for nothing.
    Host { width: u32, asked: Option<u32> },
}

impl Decider {
    /// At full width.
    pub(crate) fn new(config: &GovernorConfig, layout: &Layout) -> Self {
        match config.kind {
            Kind::HostHint => Self::Host { width: layout.counted(), asked: None },
            _ => {
                let config = GovernorConfig { floor: layout.width_of(config.floor), ..*config };
                Self::Own(Governor::new(&config, layout.counted(), layout.threads()))
            }
        }
    }

    /// Whether the decider can work here.
    pub(crate) fn check(config: &GovernorConfig, roots: &Roots) -> Result<(), FoldError> {
        let path = roots.preferred();
        if config.kind != Kind::HostHint || path.exists() {
            return Ok(());
        }
        Err(FoldError::Missing {
            what: format!(
                "{}: vcoop's driver, which hears the host, is not loaded",
                path.display()
            ),
            remedy: "load it: `vcoop vms --how VM` on the host says how; or take another governor",
        })
    }

    /// How many CPUs to use.
    pub(crate) fn width(&self) -> u32 {
        match self {
            Self::Own(governor) => governor.width(),
            Self::Host { width, .. } => *width,
        }
    }

    /// An interval is over.
    pub(crate) fn on(
        &mut self,
        seen: &GovernorInput<'_>,
        config: &GovernorConfig,
        roots: &Roots,
        layout: &Layout,
    ) {
        match self {
            Self::Own(governor) => _ = governor.on(seen),
            Self::Host { width, asked } => {
                *asked = asked_for(roots, layout);
                *width = layout.width_of(asked.unwrap_or(u32::MAX).max(config.floor));
            }
        }
    }
}

/// How many of the guest's CPUs the host asks for; `None` if the driver is gone, or its text is no list.
fn asked_for(roots: &Roots, layout: &Layout) -> Option<u32> {
    let list = list(&roots.preferred())?;
    let asked = layout.all().intersection(&list).count();
    u32::try_from(asked).ok().filter(|asked| *asked > 0)
}
