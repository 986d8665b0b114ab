//! Views of a result: terminal tables, HTML, pictures and JSON.
//!
//! A view is a function of a document ([`vcoop_experiment::result::Document`]) and shows nothing that is not in it.
//! JSON is the document itself (`Document::to_json`).
//!
//! Views of single runs need more than the document: [`perfetto`] and the samples of [`data`] observe the run,
//! [`explain`] runs a part of it again.

pub mod chart;
mod compare;
mod cost;
mod curves;
pub mod data;
pub mod explain;
pub mod heat;
mod html;
mod latency;
mod metrics;
mod parts;
pub mod perfetto;
mod reproduce;
mod sim_vs_kvm;
mod style;
mod text;
pub mod text_trace;
mod validate;
mod vcpus;
pub mod vms;

pub use html::{
    charts_of, pictures, render_html, render_reproduction_html, render_validation_html,
};
pub use metrics::open_metrics;
pub use reproduce::render_reproduction;
pub use style::{Style, WIDTH};
pub use text::{render, render_deployment};
pub use validate::render_validation;

/// Slices of the measured time in a report.
pub const SLICES: u32 = 60;
