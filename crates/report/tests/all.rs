//! Views of results, but for what only a browser shows.

mod html;
mod metrics;
mod support;
mod vm;
mod width;
