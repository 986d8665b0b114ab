//! libvirt's state files of its QEMU domains.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::{limits, text};

/// libvirt's facts about a running domain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) name: String,
    /// Index and thread id of each vCPU.
    pub(crate) vcpus: Vec<(u32, u32)>,
}

/// The domains with a state file in a folder, by the process id of their QEMU.
///
/// # Errors
///
/// Those of [`text::there`].
pub(crate) fn domains(folder: &Path) -> io::Result<BTreeMap<u32, Domain>> {
    let mut domains = BTreeMap::new();
    let entries = text::there(fs::read_dir(folder))?.into_iter().flatten().flatten();
    for path in entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "xml")) {
        if domains.len() == limits::DOMAINS {
            break;
        }
        let read = text::there(text::read(&path, limits::STATE_FILE))?;
        let Some((bytes, _)) = read else { continue };
        let Some((pid, vcpus)) = state(&String::from_utf8_lossy(&bytes)) else { continue };
        let stem = path.file_stem().unwrap_or_default().as_encoded_bytes();
        domains.insert(pid, Domain { name: text::shown(stem, limits::SHOWN), vcpus });
    }
    Ok(domains)
}

/// Process id, and index and thread id of each vCPU, of a state file.
fn state(xml: &str) -> Option<(u32, Vec<(u32, u32)>)> {
    // libvirt writes these files itself, one element a line, the state before the domain's definition. The comment at
    // the top and the definition contain text from the user.
    let (_, xml) = xml.split_once("-->")?;
    let xml = xml.split("<domain ").next()?;
    let (_, xml) = xml.split_once("<domstatus ")?;
    let (root, rest) = xml.split_once('>')?;
    let pid = attribute(root, "pid")?;
    let vcpus = rest.split_once("<vcpus>").and_then(|(_, r)| r.split_once("</vcpus>"));
    let vcpus = vcpus.map_or("", |(vcpus, _)| vcpus).split("<vcpu ").skip(1);
    let vcpus = vcpus.filter_map(|v| Some((attribute(v, "id")?, attribute(v, "pid")?)));
    Some((pid, vcpus.take(limits::VCPUS).collect()))
}

/// The number in `name='...'`.
fn attribute(tag: &str, name: &str) -> Option<u32> {
    let tag = tag.split('>').next()?;
    let mut words = tag.split_ascii_whitespace();
    let value = words.find_map(|w| w.strip_prefix(name)?.strip_prefix("='"))?;
    text::number(value.split_once('\'')?.0.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_is_read_up_to_the_definition() {
        let xml = "<!-- virsh edit web -->\n\n\
            <domstatus state='running' reason='booted' pid='30031'>\n  <vcpus>\n    \
            <vcpu id='0' pid='30039'/>\n    <vcpu id='1' pid='30040'/>\n  </vcpus>\n  \
            <domain type='kvm' id='1'>\n    <metadata><vcpus><vcpu id='7' pid='1'/></vcpus>\n";
        assert_eq!(state(xml), Some((30031, vec![(0, 30039), (1, 30040)])));
        let without = xml.replace("<vcpus>", "<other>");
        assert_eq!(state(&without), Some((30031, vec![])));
        for bad in ["", "-->", "--><domstatus pid='x'>", "--><domstatus pid='1"] {
            assert_eq!(state(bad), None, "{bad}");
        }
        assert_eq!(state(&xml.replace("pid='30031'", "pid='-1'")), None);
    }
}
